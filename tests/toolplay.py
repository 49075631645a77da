"""Playing tool worlds by hand and by script, for their tests."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent import evaluation
from jaxagent.envs.tools.base import ToolEnv
from jaxagent.planners.scripted import scripted

Call = str | tuple[int, int]  # "operation argument", or their numbers


@functools.cache
def player(env: ToolEnv, script: str, num_episodes: int = 512):
    """`(key, params) -> results`, compiled."""
    policy = scripted(env, script)
    return jax.jit(lambda key, params: evaluation.evaluate(env, params, policy, None, key, num_episodes=num_episodes))


@functools.cache
def _compiled(env: ToolEnv):
    return jax.jit(env.reset), jax.jit(env.step)


def results(env: ToolEnv, params: Any, script: str, *, num_episodes: int = 512) -> evaluation.EpisodeResults:
    """Episodes of a script."""
    return jax.device_get(player(env, script, num_episodes)(jax.random.key(0), params))


def play(
    env: ToolEnv, params: Any, calls: Sequence[Call], world: Mapping[str, Any]
) -> tuple[np.ndarray, list[dict[str, Any]], list[str]]:
    """Rewards, infos and words of calls one after the other, in a world some of whose fields are given.

    Infos also hold whether the call `terminated`, and the `world` that it led to.
    """
    reset, step = _compiled(env)
    _, state = reset(jax.random.key(0), params)
    state = state._replace(world=state.world._replace(**world))
    rewards, infos, words = [], [], []
    for call in calls:
        obs, state, reward, terminated, _, info = step(jax.random.key(0), state, jnp.int32(action_of(env, call)), params)
        rewards.append(float(reward))
        infos.append(info | {"terminated": bool(terminated), "world": state.world})
        words.append(said(env, obs["tokens"]))
    return np.array(rewards), infos, words


def action_of(env: ToolEnv, call: Call) -> int:
    if isinstance(call, tuple):
        operation, argument = call
    else:
        name, _, word = call.partition(" ")
        operation = [one.name for one in env.world.operations].index(name)
        argument = env.world.operations[operation].arguments.index(word) if word else 0
    return int(env.calls.first[operation]) + argument


def said(env: ToolEnv, tokens: Sequence[int]) -> str:
    return " ".join(env.vocabulary[token] for token in tokens if token)
