"""Evaluation: exactly one episode an environment, so short episodes do not count more than long ones."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent import rollout
from jaxagent.envs.base import Environment
from jaxagent.envs.grid import GridEnv
from jaxagent.envs.vector import VectorEnv
from jaxagent.interop.farama.episodes import Episodes
from jaxagent.metrics import ONLY_IN_RATIOS, mean_interval, proportion_interval, ratios
from jaxagent.rollout import RolloutState
from jaxagent.types import Agent, Carry, Policy, PolicyInput, PyTree


class EpisodeResults(NamedTuple):
    """One entry an episode. Leaves are `[N]`, or `[..., N]` under an outer vmap."""

    total_reward: jax.Array  # float32, undiscounted
    length: jax.Array  # int32
    success: jax.Array | None  # bool; None where the environment does not define it
    performance: jax.Array | None  # float32, the true objective; None where there is none
    totals: dict[str, jax.Array] | None = None  # what else the environment counts; None where that is nothing


def evaluate(
    env: Environment, params: PyTree, policy: Policy, agent: Agent, key: jax.Array, *, num_episodes: int
) -> EpisodeResults:
    """Plays `num_episodes` levels drawn from `key` side by side, one episode each, to the end. Pure; jit it."""
    vector_env = VectorEnv(env, num_envs=num_episodes, reset_mode="none")
    start_key, act_key = jax.random.split(key)
    state = rollout.init(vector_env, policy, start_key, params)
    num_envs = (num_episodes,)
    outcome = EpisodeResults(jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32), None, None)
    info = jax.eval_shape(lambda s: _step(vector_env, policy, agent, s, params, act_key)[2], state)
    outcome = outcome._replace(
        **{n: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), info[n]) for n in _OUTCOMES if n in info}
    )

    def play(loop: tuple[RolloutState, EpisodeResults]) -> tuple[RolloutState, EpisodeResults]:
        state, outcome = loop
        step_key = jax.random.fold_in(act_key, state.vector.step)
        active = ~state.vector.ended
        state, reward, info = _step(vector_env, policy, agent, state, params, step_key)
        latest = {
            name: jax.tree.map(lambda new, old: jnp.where(active, new, old), info[name], getattr(outcome, name))
            for name in _OUTCOMES
            if name in info
        }
        return state, EpisodeResults(outcome.total_reward + reward, outcome.length + active, None, None)._replace(**latest)

    def unfinished(loop: tuple[RolloutState, EpisodeResults]) -> jax.Array:
        return (~loop[0].vector.ended).any()

    return jax.lax.while_loop(unfinished, play, (state, outcome))[1]


_OUTCOMES = ("success", "performance", "totals")


def evaluate_in_farama(
    env: GridEnv, params: PyTree, policy: Policy, agent: Agent, *, num_episodes: int, seed: int, level: str | None = None
) -> EpisodeResults:
    """Plays in Farama's own environments of the same id, on levels that Farama draws, one episode each, to the end.

    In a mixture, `level` is the id of the one to play; what the agent sees has the mixture's shapes.

    Raises:
      ImportError: `minigrid` is not installed.
      ValueError: an environment that Farama does not have, or no level of the mixture.
    """
    episodes = Episodes(env, params, num_episodes=num_episodes, seed=seed, level=level)
    act_key = jax.random.key(seed)

    @jax.jit
    def act(agent: Agent, carry: Carry, inputs: PolicyInput, key: jax.Array) -> tuple[Carry, jax.Array]:
        carry, action, _ = policy.act(agent, carry, inputs, key)
        return carry, action

    carry, action = policy.init(num_episodes), jnp.zeros(num_episodes, jnp.int32)
    reward, success = np.zeros(num_episodes, np.float32), np.zeros(num_episodes, bool)
    total, length = np.zeros_like(reward), np.zeros(num_episodes, np.int32)
    for step in itertools.takewhile(lambda _: not episodes.ended.all(), itertools.count()):
        is_first = jnp.full(num_episodes, step == 0)
        inputs = PolicyInput(episodes.observation(), action, jnp.asarray(reward), is_first)
        carry, action = act(agent, carry, inputs, jax.random.fold_in(act_key, step))
        length += ~episodes.ended
        reward, succeeds = episodes.step(np.asarray(action))
        total, success = total + reward, success | succeeds
    outcome = jnp.asarray(success) if env.level.can_succeed else None
    return EpisodeResults(jnp.asarray(total), jnp.asarray(length), outcome, None)


def summarise(results: EpisodeResults) -> dict[str, Any]:
    """Plain numbers: `episodes`, `success_rate`, `return_mean`, `length_mean`, `performance_mean`, each with its `_ci95`.

    What the environment does not define is None. What else it counts is told as means and `metrics.RATIOS`. Leading axes are
    pooled.
    """
    summary: dict[str, Any] = {"episodes": int(np.size(results.length))}
    success = results.success
    estimates = {
        "success_rate": None if success is None else proportion_interval(int(np.sum(success)), np.size(success)),
        "return_mean": mean_interval(np.ravel(results.total_reward)),
        "length_mean": mean_interval(np.ravel(results.length)),
        "performance_mean": None if results.performance is None else mean_interval(np.ravel(results.performance)),
    }
    for name, estimate in estimates.items():
        summary[name], summary[f"{name}_ci95"] = estimate or (None, None)
    if results.performance is not None:
        summary["reward_gap"] = summary["return_mean"] - summary["performance_mean"]
    if results.totals is None:
        return summary
    counted = results.totals | ({} if success is None else {"success": success})
    sums = {name: float(np.sum(values)) for name, values in counted.items()}
    means = {f"{name}_mean": sums[name] / summary["episodes"] for name in results.totals if name not in ONLY_IN_RATIOS}
    return summary | means | {name: None if np.isnan(value) else float(value) for name, value in ratios(sums).items()}


def _step(
    vector_env: VectorEnv, policy: Policy, agent: Agent, state: RolloutState, params: PyTree, key: jax.Array
) -> tuple[RolloutState, jax.Array, dict[str, jax.Array]]:
    """Acts once in every row. Returns the state reached, the rewards [B] and the info [B]."""
    inputs = rollout.policy_input(vector_env, policy, state)
    carry, action, _ = policy.act(agent, state.carry, inputs, key)
    vector, out = vector_env.step(state.vector, rollout.into_space(vector_env, action), params)
    return rollout.advance(state, vector, carry, action, out), out.reward, out.info
