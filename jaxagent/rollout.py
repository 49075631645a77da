"""Acting in many environments: `unroll(vector_env, policy) -> transitions [T, B]`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxagent.envs.vector import VectorEnv, VectorState, VectorStep
from jaxagent.ops.compact import chunk_size, over_rows, put_rows, take_rows
from jaxagent.ops.lanes import largest
from jaxagent.types import Agent, Batch, Box, Carry, Metrics, Policy, PolicyInput, PyTree, Transition, ValueFunction


class Episodes(NamedTuple):
    """Running totals of the episode that each row is in. Leaves are `[B]`."""

    total_reward: jax.Array  # float32
    length: jax.Array  # int32


class RolloutState(NamedTuple):
    vector: VectorState
    carry: Carry  # [B, ...] the policy's memory
    last_action: PyTree  # [B, ...]
    last_reward: jax.Array  # [B] float32
    episodes: Episodes


def init(vector_env: VectorEnv, policy: Policy, key: jax.Array, params: PyTree) -> RolloutState:
    """Every row at the start of an episode."""
    num_envs, action = vector_env.num_envs, vector_env.env.spec.action
    return RolloutState(
        vector=vector_env.init(key, params),
        carry=policy.init(num_envs),
        last_action=jnp.zeros((num_envs, *action.shape), action.dtype),
        last_reward=jnp.zeros(num_envs, jnp.float32),
        episodes=Episodes(jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.int32)),
    )


def policy_input(vector_env: VectorEnv, policy: Policy, state: RolloutState) -> PolicyInput:
    """What the policy sees next."""
    vector = state.vector
    env_state = vector.env_state if policy.privileged else None
    return PolicyInput(vector_env.observe(vector), state.last_action, state.last_reward, vector.is_first, env_state)


def unroll(
    vector_env: VectorEnv,
    policy: Policy,
    agent: Agent,
    state: RolloutState,
    params: PyTree,
    key: jax.Array,
    *,
    num_steps: int,
    until_ended: bool = False,
) -> tuple[RolloutState, Batch, Metrics]:
    """Acts `num_steps` times in every row.

    With `until_ended` it stops when every row, in every lane, has ended for good (mode `none`): what follows is zeros. The
    policy must have no critic then.

    Where the policy has a critic, `extras["next_value"]` is the value of what each action led to, seen before any reset and
    with the policy's memory before it: the bootstrap of one-step targets. It has a meaning where the step did not terminate.

    Returns:
      The state reached, a batch [T, B], and metrics of the episodes that ended: `episodes`, `return_sum`, `length_sum`,
      `truncated_sum`, `success_sum` and `performance_sum` (where the environment defines them), a sum of each of its totals,
      `env_steps`, `resets_per_level`.
    """
    state = state._replace(vector=vector_env.refresh(state.vector, params))

    def body(state: RolloutState, key: jax.Array) -> tuple[RolloutState, tuple[Transition, Metrics]]:
        return step(vector_env, policy, agent, state, params, key)

    scan = _scan_until_ended if until_ended else jax.lax.scan
    end, (transition, metrics) = scan(body, state, jax.random.split(key, num_steps))
    if policy.value is not None:
        last = policy.value(agent, end.carry, policy_input(vector_env, policy, end))
        extras = dict(transition.extras)
        before_reset = extras.pop("value_before_reset", None)
        next_value = jnp.concatenate([extras["value"][1:], last[None]])
        if before_reset is not None:
            next_value = jnp.where(transition.terminated | transition.truncated, before_reset, next_value)
        transition = transition._replace(extras=extras | {"next_value": next_value})
    metrics = {name: value.sum() for name, value in metrics.items()}
    if vector_env.has_pool:
        metrics["resets_per_level"] = metrics["episodes"] / vector_env.num_levels
    return end, Batch(transition, state.carry), metrics


def _scan_until_ended(body: Callable[..., Any], state: RolloutState, keys: jax.Array) -> tuple[RolloutState, Any]:
    """As `jax.lax.scan`, but for what comes after the end of all rows."""
    shapes = jax.eval_shape(body, state, keys[0])[1]
    rows = jax.tree.map(lambda s: jnp.zeros((keys.shape[0], *s.shape), s.dtype), shapes)

    def goes_on(loop: tuple[jax.Array, RolloutState, Any]) -> jax.Array:
        place, state, _ = loop
        return (place < keys.shape[0]) & largest(~state.vector.ended)

    def once(loop: tuple[jax.Array, RolloutState, Any]) -> tuple[jax.Array, RolloutState, Any]:
        place, state, rows = loop
        state, row = body(state, keys[place])
        return place + 1, state, jax.tree.map(lambda all_, one: all_.at[place].set(one), rows, row)

    _, end, rows = jax.lax.while_loop(goes_on, once, (jnp.int32(0), state, rows))
    return end, rows


def step(
    vector_env: VectorEnv, policy: Policy, agent: Agent, state: RolloutState, params: PyTree, key: jax.Array
) -> tuple[RolloutState, tuple[Transition, Metrics]]:
    """Acts once in every row. Returns the state reached, the transition [B] and the sums over the episodes that ended."""
    inputs = policy_input(vector_env, policy, state)
    carry, action, extras = policy.act(agent, state.carry, inputs, key)
    vector, out = vector_env.step(state.vector, into_space(vector_env, action), params)
    if policy.value is not None and vector_env.reset_mode == "same_step":  # else the next row sees that observation
        extras = extras | {"value_before_reset": _value_before_reset(policy.value, agent, carry, inputs, action, out)}
    transition = Transition(
        observation=inputs.observation,
        action=action,
        reward=out.reward,
        terminated=out.terminated,
        truncated=out.truncated,
        is_first=inputs.is_first,
        mask=out.mask,
        extras=extras,
    )
    episodes, metrics = count_episodes(state.episodes, out)
    state = advance(state, vector, carry, action, out)._replace(episodes=episodes)
    return state, (transition, metrics)


def advance(state: RolloutState, vector: VectorState, carry: Carry, action: PyTree, out: VectorStep) -> RolloutState:
    """The state after a step; a row at the start of an episode remembers no action and no reward."""
    fresh = vector.is_first
    last_action = jax.tree.map(lambda a: jnp.where(_expand(fresh, a), 0, a), action)
    return RolloutState(vector, carry, last_action, jnp.where(fresh, 0.0, out.reward), state.episodes)


def count_episodes(episodes: Episodes, out: VectorStep) -> tuple[Episodes, Metrics]:
    """Adds one step to the running totals; sums those of the episodes that it ended, and starts these rows anew."""
    total = Episodes(episodes.total_reward + out.reward, episodes.length + out.mask)
    done = out.terminated | out.truncated
    metrics = {
        "env_steps": out.mask.sum(dtype=jnp.int32),
        "episodes": done.sum(dtype=jnp.int32),
        "return_sum": jnp.where(done, total.total_reward, 0.0).sum(),
        "length_sum": jnp.where(done, total.length, 0).sum(),
        "truncated_sum": (out.truncated & ~out.terminated).sum(dtype=jnp.float32),
    }
    outcomes = {name: out.info[name] for name in ("success", "performance") if name in out.info}
    for name, values in (outcomes | out.info.get("totals", {})).items():
        metrics[f"{name}_sum"] = jnp.where(done, values, 0).sum(dtype=jnp.float32)
    return jax.tree.map(lambda x: jnp.where(done, 0, x), total), metrics


def into_space(vector_env: VectorEnv, action: PyTree) -> PyTree:
    """Clips a box action to its bounds: policies sample from unbounded densities. Other actions pass."""
    space = vector_env.env.spec.action
    if not isinstance(space, Box):
        return action
    low, high = (
        jnp.broadcast_to(jnp.reshape(jnp.asarray(b, space.dtype), (-1,)), (space.size,)) for b in (space.low, space.high)
    )
    return jnp.clip(action, low.reshape(space.shape), high.reshape(space.shape))


def _value_before_reset(
    value: ValueFunction, agent: Agent, carry: Carry, inputs: PolicyInput, action: PyTree, out: VectorStep
) -> jax.Array:
    """Value [B] of the observation before the reset, where a time limit cut the episode; zero elsewhere."""
    reached = inputs._replace(
        observation=out.observation, last_action=action, last_reward=out.reward, is_first=jnp.zeros_like(inputs.is_first)
    )

    def evaluate(rows: jax.Array, values: jax.Array) -> jax.Array:
        return put_rows(values, rows, value(agent, *take_rows((carry, reached), rows)))

    cut = out.truncated & ~out.terminated
    return over_rows(cut, evaluate, jnp.zeros_like(out.reward), size=chunk_size(cut.shape[0]))


def _expand(mask: jax.Array, like: jax.Array) -> jax.Array:
    """`mask` [B] with trailing axes, to broadcast against `like` [B, ...]."""
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))
