"""The scripts of the tool worlds as policies."""

import jax
import jax.numpy as jnp

from jaxagent.envs.tools.base import SCRIPTS, ToolEnv, ToolState
from jaxagent.types import Agent, Carry, Policy, PolicyInput, PyTree


def scripted(env: ToolEnv, script: str) -> Policy:
    """Acts as one of `SCRIPTS` says, by looking at the state: it needs no agent.

    `optimal` earns the most of the true objective, `sft` is right but wordy, `hack` earns reward without doing what was asked,
    `random` takes any action that means something.

    Raises:
      ValueError: an unknown script, or an environment that is no tool world.
    """
    if not isinstance(env, ToolEnv):
        raise ValueError(f"env: expected a world of tools, got {type(env).__name__}")
    if script not in SCRIPTS:
        raise ValueError(f"script: expected one of {', '.join(SCRIPTS)}, got {script!r}")

    def init(num_rows: int) -> jax.Array:
        return jnp.zeros(num_rows, jnp.int32)  # the argument that an operation waits for

    def act_in_one(state: ToolState, waiting: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        if script == "random":
            noise = jax.random.uniform(key, (env.num_actions,))
            return jnp.argmax(jnp.where(env.action_mask(state), noise, -1.0)).astype(jnp.int32), waiting
        operation, argument = env.world.scripted(script, key, state.world)
        argument = jnp.where(state.operation >= 0, waiting, argument)
        return env.action_of(state, operation, argument), argument

    def act(agent: Agent, carry: Carry, inputs: PolicyInput, key: jax.Array) -> tuple[Carry, PyTree, dict[str, PyTree]]:
        del agent
        row_keys = jax.random.split(key, carry.shape[0])
        action, carry = jax.vmap(act_in_one)(inputs.env_state, carry, row_keys)
        return carry, action, {}

    return Policy(init, act, privileged=True)
