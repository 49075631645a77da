"""What every registered environment promises (see `jaxagent.envs.base`)."""

import datetime
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.envs import registry
from jaxagent.types import Box, DictSpace, Discrete, MultiDiscrete, Space

NUM_ENVS = 6
NUM_STEPS = 12
NUM_ROTATING = 3
LEVELS = [name for name in registry.names() if name.startswith(("MiniGrid-", "BabyAI-"))]


def _rule(name: str) -> tuple:
    """What decides which code a level runs; levels of one rule differ in sizes and numbers."""
    level = registry.make(name)[0].level
    return level.verbs, level.compound, level.num_actions, level.pickup_toggles, level.starts_holding, level.rejects


def _sample_of_levels() -> list[str]:
    """The smallest level of each rule, and a few of the others, which change from day to day."""
    sample: dict[tuple, str] = {}
    for name in sorted(LEVELS, key=lambda name: math.prod(registry.make(name)[0].level.size)):
        sample.setdefault(_rule(name), name)
    others = sorted(set(LEVELS) - set(sample.values()))
    day, apart = datetime.date.today().toordinal(), len(others) // NUM_ROTATING
    return [*sample.values(), *(others[(day + i * apart) % len(others)] for i in range(NUM_ROTATING))]


OTHERS = [name for name in registry.names() if name not in LEVELS]
NAMES = [*OTHERS, *_sample_of_levels(), "CartPole-v1", "Pendulum-v1", "Breakout-MinAtar"]


def _random_action(space: Space, key: jax.Array) -> jax.Array:
    if isinstance(space, Box):
        low, high = jnp.asarray(space.low), jnp.asarray(space.high)
        return jax.random.uniform(key, space.shape, space.dtype, low.min(), high.max())
    high = space.n if isinstance(space, Discrete) else jnp.asarray(space.nvec)
    return jax.random.randint(key, space.shape, 0, high)


def _play(env, params, key):
    """One row: `NUM_STEPS` random steps, without resets."""
    reset_key, step_keys = key, jax.random.split(jax.random.fold_in(key, 1), NUM_STEPS)
    first = env.reset(reset_key, params)

    def body(state, key):
        action = _random_action(env.spec.action, key)
        observation, state, *rest = env.step(key, state, action, params)
        return state, (observation, *rest)

    return first[0], jax.lax.scan(body, first[1], step_keys)


def _assert_in_space(space: Space, value, name: str) -> None:
    if isinstance(space, DictSpace):
        assert set(value) == set(space), name
        for entry in space:
            _assert_in_space(space[entry], value[entry], f"{name}.{entry}")
        return
    assert value.shape[value.ndim - len(space.shape) :] == space.shape and value.dtype == space.dtype, name
    if isinstance(space, Box):
        low, high = (np.reshape(np.broadcast_to(bound, space.size), space.shape) for bound in (space.low, space.high))
        assert (value >= low).all() and (value <= high).all(), name
    else:
        high = space.n if isinstance(space, Discrete) else np.array(space.nvec)
        assert (value >= 0).all() and (value < high).all(), name


@pytest.mark.parametrize("name", NAMES)
def test_contract(name):
    env, params = registry.make(name)
    assert hash(env) == hash(registry.make(name)[0]) and env == registry.make(name)[0]
    assert isinstance(env.spec.action, Discrete | MultiDiscrete | Box)
    keys = jax.random.split(jax.random.key(3), NUM_ENVS)
    traces = []

    def play(params, key):
        traces.append(1)
        return _play(env, params, key)

    together = jax.jit(jax.vmap(play, in_axes=(None, 0)))
    first, (state, (observation, reward, terminated, truncated, info)) = together(params, keys)
    again = together(params, keys)
    jax.tree.map(np.testing.assert_array_equal, (first, reward, info), (again[0], again[1][1][1], again[1][1][4]))
    assert len(traces) == 1  # a second call compiles nothing

    _assert_in_space(env.spec.observation, jax.device_get(first), "reset")
    _assert_in_space(env.spec.observation, jax.device_get(observation), "step")
    assert (reward.shape, reward.dtype) == ((NUM_ENVS, NUM_STEPS), jnp.float32)
    assert terminated.dtype == truncated.dtype == jnp.bool_
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((first, state, observation, reward)))
    if "success" in info:
        assert info["success"].dtype == jnp.bool_

    alone = jax.jit(play)(params, keys[2])
    assert jax.tree.structure(alone) == jax.tree.structure((first, (state, (observation, reward, terminated, truncated, info))))
    jax.tree.map(
        lambda one, many: np.testing.assert_allclose(_plain(one), _plain(many[2]), rtol=1e-6),
        alone,
        (first, (state, (observation, reward, terminated, truncated, info))),
    )


def _plain(leaf: jax.Array) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


@pytest.mark.parametrize("name", ["Collector-v0", "MiniGrid-Empty-5x5-v0", "CartPole-v1"])
def test_the_step_limit_is_a_traced_truncation(name):
    env, params = registry.make(name)
    field = "max_steps_in_episode" if name == "CartPole-v1" else "max_steps"
    short = registry.override(params, {field: 3})
    _, (_, (_, _, terminated, truncated, _)) = jax.jit(lambda p, k: _play(env, p, k))(short, jax.random.key(0))
    assert not terminated[:3].any()
    np.testing.assert_array_equal(truncated[:3], [False, False, True])


@pytest.mark.fast
def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="MiniGrid-DoorKey-8x8-v0"):
        registry.make("MiniGrid-DoorKey-8x8")
    with pytest.raises(ValueError, match="max_steps"):
        registry.make("Collector-v0", params={"max_step": 3})
    with pytest.raises(ValueError, match="obs"):
        registry.make("Collector-v0", ob="packed")
