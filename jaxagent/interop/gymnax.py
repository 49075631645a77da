"""gymnax >= 1.0, both ways: its environments in our engine, ours as a gymnax `Environment`."""

import difflib
import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent import schema
from jaxagent.envs.base import Environment, StepOutput
from jaxagent.envs.registry import GYMNAX_PREFIX
from jaxagent.errors import DataError
from jaxagent.types import ActionSpace, Box, DictSpace, Discrete, EnvSpec, MultiDiscrete, PyTree, Space, check_action

if TYPE_CHECKING:
    from gymnax.environments.environment import Environment as GymnaxEnvironment
    from gymnax.environments.spaces import Space as GymnaxSpace


class Registered(NamedTuple):
    """How to build an environment that gymnax registers; equal where id and options are."""

    id: str
    options: tuple[tuple[str, Hashable], ...]  # sorted by name


@dataclass(frozen=True)
class GymnaxEnv:
    """A gymnax environment without its auto-reset, so that a step returns the observation and state that it reached.

    Runs gymnax' `step_env` and `reset_env`: what a subclass adds by overriding `step` itself is left out. Values and dtypes
    are gymnax' own, but for the reward, which is always float32, and for weak types, which a scan's carry could not hold.

    Attributes:
      spec: static description. Episodes are cut at `spec.max_steps` even where the params ask for more.
      source: a registered id with its options, or a gymnax environment, which is compared by identity.
    """

    spec: EnvSpec
    source: "Registered | GymnaxEnvironment"

    @property
    def inner(self) -> "GymnaxEnvironment":
        """The gymnax environment itself."""
        return _instance(self.source) if isinstance(self.source, Registered) else self.source

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        return _strong(self.inner.reset_env(key, params))

    def step(self, key: jax.Array, state: PyTree, action: PyTree, params: PyTree) -> StepOutput:
        check_action(self.spec.action, action)
        if isinstance(self.spec.action, Discrete):
            action = jnp.clip(action, 0, self.spec.action.n - 1)
        observation, state, reward, terminated, info = _strong(self.inner.step_env(key, state, action, params))
        truncated = self.inner.is_truncated(state, params) | (state.time >= self.spec.max_steps)
        return observation, state, reward.astype(jnp.float32), terminated.astype(bool), truncated, info


def ids() -> tuple[str, ...]:
    """The ids that gymnax registers, those that users registered with it included."""
    import gymnax

    return tuple(gymnax.registered_envs)


def make(name: str, *, max_steps_in_episode: int | None = None, **options: Any) -> tuple[GymnaxEnv, PyTree]:
    """Builds a registered gymnax environment.

    Environments of equal id and options are equal, so that a second one finds what was compiled for the first.

    Args:
      name: an id of gymnax, such as `CartPole-v1`, with or without `gymnax/` before it.
      max_steps_in_episode: the time limit, and the bound in the spec; gymnax' default if None.
      **options: arguments of the environment's constructor; lists count as tuples.

    Raises:
      ValueError: an unknown id or option, or an option of another type than the constructor says.
      DataError: the environment's data cannot be had.
    """
    gymnax_id = name.removeprefix(GYMNAX_PREFIX)
    if gymnax_id not in ids():
        near = difflib.get_close_matches(gymnax_id, ids(), n=3) or ids()
        raise ValueError(f"name: expected an id that gymnax registers, found {name!r}; nearest: {', '.join(near)}")
    source = Registered(gymnax_id, tuple(sorted((option, _hashable(option, value)) for option, value in options.items())))
    try:
        if options:
            schema.checked_arguments(type(_instance(Registered(gymnax_id, ()))), options)
        inner = _instance(source)
    except OSError as error:  # some environments fetch a data set
        raise DataError(f"{gymnax_id}: its data cannot be had: {error}") from error
    params = inner.default_params
    if max_steps_in_episode is not None:
        params = params.replace(max_steps_in_episode=max_steps_in_episode)
    return _wrap(inner, source, params, gymnax_id)


def from_gymnax(env: "GymnaxEnvironment", params: PyTree | None = None, *, name: str | None = None) -> tuple[GymnaxEnv, PyTree]:
    """A gymnax environment as ours.

    Args:
      env: an instance of gymnax' `Environment`. Wrappers act on the step that resets by itself, so they are refused.
      params: its params, `env.default_params` if None. The returned ones are traced leaves: float32, int32 or bool where they
        were Python numbers, arrays as they are, and what flax holds static stays static. `max_steps_in_episode` becomes the
        bound in the spec, which larger values given later do not exceed.
      name: for the spec, `env.name` if None.

    Raises:
      ValueError: a wrapper, params without `max_steps_in_episode`, or a space that we have no counterpart for.
    """
    from gymnax.environments.environment import Environment as GymnaxEnvironment

    if not isinstance(env, GymnaxEnvironment):
        raise ValueError(f"env: expected an instance of gymnax' Environment (unwrapped), found {type(env).__name__}")
    return _wrap(env, env, env.default_params if params is None else params, name or env.name)


def to_gymnax(env: Environment, params: PyTree) -> "GymnaxEnvironment":
    """One of our environments as a gymnax `Environment`, with gymnax' auto-reset and six-valued step.

    `params` become its `default_params`. A multi-discrete action is a `Tuple` space there, and both a tuple and an array are
    taken; dict observations stay dicts.
    """
    return _exported_class()(env, params)


class ExportedState(NamedTuple):
    """Our state, and beside it what gymnax asks of a state after the step."""

    env_state: PyTree
    time: jax.Array  # int32, steps taken
    terminated: jax.Array  # bool
    truncated: jax.Array  # bool


@functools.cache
def _exported_class() -> type:
    """Made on demand, because its base class costs gymnax' import."""
    from gymnax.environments.environment import Environment as GymnaxEnvironment
    from gymnax.environments.spaces import Space as GymnaxSpace

    class ExportedEnv(GymnaxEnvironment):
        """Hashed by identity: gymnax compiles `default_params` in where a call gives none."""

        def __init__(self, env: Environment, params: PyTree) -> None:
            self._env = env
            self._params = params

        @property
        def default_params(self) -> PyTree:
            return self._params

        @property
        def name(self) -> str:
            return self._env.spec.name

        @property
        def num_actions(self) -> int:
            action = self._env.spec.action
            return action.n if isinstance(action, Discrete) else int(np.prod(action.shape))

        def reset_env(self, key: jax.Array, params: PyTree) -> tuple[PyTree, ExportedState]:
            observation, env_state = self._env.reset(key, params)
            off = jnp.zeros((), bool)
            return observation, ExportedState(env_state, jnp.zeros((), jnp.int32), off, off)

        def step_env(
            self, key: jax.Array, state: ExportedState, action: PyTree, params: PyTree
        ) -> tuple[PyTree, ExportedState, jax.Array, jax.Array, dict[str, Any]]:
            if isinstance(action, tuple):
                action = jnp.stack(action)
            observation, env_state, reward, terminated, truncated, info = self._env.step(key, state.env_state, action, params)
            return observation, ExportedState(env_state, state.time + 1, terminated, truncated), reward, terminated, info

        def is_terminated(self, state: ExportedState, params: PyTree) -> jax.Array:
            return state.terminated

        def is_truncated(self, state: ExportedState, params: PyTree) -> jax.Array:
            return state.truncated

        def action_space(self, params: PyTree | None = None) -> GymnaxSpace:
            return _gymnax_action_space(self._env.spec.action)

        def observation_space(self, params: PyTree | None = None) -> GymnaxSpace:
            return _gymnax_space(self._env.spec.observation)

    return ExportedEnv


# gymnax to ours ---------------------------------------------------------------------------------------------------------------


@functools.cache
def _instance(source: Registered) -> "GymnaxEnvironment":
    """One gymnax object per id and options: gymnax hashes its environments by identity."""
    import gymnax

    try:
        return gymnax.make(source.id, **dict(source.options))[0]
    except TypeError as error:  # an unknown keyword
        raise ValueError(f"{source.id}: expected options of its constructor, found {dict(source.options)} ({error})") from error


def _wrap(
    inner: "GymnaxEnvironment", source: "Registered | GymnaxEnvironment", params: PyTree, name: str
) -> tuple[GymnaxEnv, PyTree]:
    limit = getattr(params, "max_steps_in_episode", None)
    if limit is None:
        raise ValueError(f"params: expected a field max_steps_in_episode to bound episodes, found {type(params).__name__}")
    observation, _ = jax.eval_shape(inner.reset_env, jax.random.key(0), params)
    spec = EnvSpec(
        name=name,
        observation=_our_space("observation", inner.observation_space(params), observation),
        action=_our_action_space(inner.action_space(params)),
        max_steps=int(limit),
    )
    return GymnaxEnv(spec, source), jax.tree.map(_traced, params)


def _hashable(option: str, value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_hashable(option, item) for item in value)
    if not isinstance(value, Hashable):
        raise ValueError(
            f"{option}: expected a number, text or list, found {type(value).__name__}; "
            "build the environment with gymnax.make and pass it to from_gymnax"
        )
    return value


def _traced(leaf: Any) -> jax.Array:
    """A params leaf as a strongly typed array: float32 and int32 for Python's numbers."""
    narrow = {"float64": jnp.float32, "int64": jnp.int32}
    dtype = jnp.asarray(leaf).dtype
    return jnp.asarray(leaf, narrow.get(dtype.name, dtype))


def _strong(tree: PyTree) -> PyTree:
    """Arrays without weak types: gymnax' reset and step differ in them, and a scan's carry may not."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), tree)


def _our_action_space(space: "GymnaxSpace") -> ActionSpace:
    from gymnax.environments import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box):
        return _our_box(space, jax.ShapeDtypeStruct(space.shape, space.dtype))
    raise ValueError(f"action: expected gymnax' Discrete or Box, found {space}")


def _our_space(field: str, space: "GymnaxSpace", value: Any) -> Space:
    """The space of an observation, with the dtype of `value`: some gymnax environments emit another than they declare."""
    from gymnax.environments import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), dtype=np.dtype(value.dtype).name)
    if isinstance(space, spaces.Box):
        return _our_box(space, value)
    if isinstance(space, spaces.Dict):
        return DictSpace(tuple((name, _our_space(f"{field}.{name}", part, value[name])) for name, part in space.spaces.items()))
    raise ValueError(f"{field}: expected gymnax' Discrete, Box or Dict, found {space}")


def _our_box(space: "GymnaxSpace", value: jax.ShapeDtypeStruct) -> Box:
    return Box(_bound(space.low, value.shape), _bound(space.high, value.shape), value.shape, np.dtype(value.dtype).name)


def _bound(value: Any, shape: tuple[int, ...]) -> float | tuple[float, ...]:
    """One number where all elements share it, else one an element."""
    flat = np.broadcast_to(np.asarray(value, np.float64), shape).ravel()
    return float(flat[0]) if np.all(flat == flat[0]) else tuple(flat.tolist())


# ours to gymnax ---------------------------------------------------------------------------------------------------------------


def _gymnax_action_space(space: ActionSpace) -> "GymnaxSpace":
    from gymnax.environments import spaces

    if isinstance(space, MultiDiscrete):
        return spaces.Tuple(tuple(spaces.Discrete(n) for n in space.nvec))
    return _gymnax_space(space)


def _gymnax_space(space: Space) -> "GymnaxSpace":
    from gymnax.environments import spaces

    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    if isinstance(space, MultiDiscrete):
        dtype = jnp.dtype(space.dtype)
        return spaces.Box(jnp.zeros(space.shape, dtype), jnp.array(space.nvec, dtype) - 1, space.shape, dtype)
    if isinstance(space, DictSpace):
        return spaces.Dict({name: _gymnax_space(part) for name, part in space.items()})
    low, high = (np.reshape(np.broadcast_to(bound, space.size), space.shape) for bound in (space.low, space.high))
    return spaces.Box(jnp.asarray(low, space.dtype), jnp.asarray(high, space.dtype), space.shape, jnp.dtype(space.dtype))
