"""Our environments as Gymnasium's `Env` and `VectorEnv`: numpy in and out, compiled steps inside.

Letters: `B` environments.
"""

import functools
import re
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxagent import render
from jaxagent.envs.base import Environment, Info, StepOutput
from jaxagent.envs.registry import make
from jaxagent.envs.vector import ResetMode, VectorEnv, VectorState, VectorStep
from jaxagent.types import Box, Discrete, MultiDiscrete, PyTree, Space

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.vector import AutoresetMode

Source = str | Environment | tuple[Environment, PyTree]  # a registry id, an environment, or one with its params

RENDER_MODES = ("rgb_array", "ansi")
_RESET_MODES: dict[str, ResetMode] = {"SameStep": "same_step", "NextStep": "next_step"}  # Gymnasium's names and ours


def to_gymnasium(env: Source, params: PyTree | None = None, *, render_mode: str | None = None) -> "gymnasium.Env":
    """One of our environments as a Gymnasium `Env`.

    Seeding decides everything: two resets with one seed, followed by the same actions, give the same episodes.
    `info["mission"]` is the mission's text where the environment has one; the observation holds its index.

    Args:
      env: a registry id, an environment with `params`, or the pair of both.
      params: the environment's params; the registry's own if None.
      render_mode: `rgb_array` or `ansi`, for environments that show their cells; None for none.

    Raises:
      ImportError: Gymnasium is not installed.
      ValueError: no params, or a render mode that the environment lacks.
    """
    _require_gymnasium()
    from gymnasium.envs.registration import EnvSpec

    inner, inner_params = _resolve(env, params)
    known = _render_modes(inner)
    if render_mode is not None and render_mode not in known:
        raise ValueError(f"render_mode: expected {' or '.join(known) or 'None'} for {inner.spec.name}, found {render_mode!r}")
    gymnasium_id = f"jaxagent/{re.sub('[^A-Za-z0-9_.:-]', '-', inner.spec.name)}"
    spec = EnvSpec(
        gymnasium_id,
        "jaxagent.interop.gymnasium:to_gymnasium",
        kwargs={"env": env, "params": params, "render_mode": render_mode},
    )
    return _env_class()(inner, inner_params, render_mode, spec)


def to_gymnasium_vector(
    env: Source, num_envs: int, params: PyTree | None = None, *, autoreset_mode: "str | AutoresetMode" = "SameStep"
) -> "gymnasium.vector.VectorEnv":
    """Copies of one of our environments, stepped at once, as a Gymnasium `VectorEnv`. Every reset generates a new level.

    `metadata["autoreset_mode"]` says which mode it is in. With `SameStep` the observation before a reset is in
    `info["final_obs"]`, and what the step said about it in `info["final_info"]`; with `NextStep` it is returned, and the step
    after it only resets. As usual in Gymnasium, `info["_x"]` tells in which rows `info["x"]` holds something.

    Args:
      env: as in `to_gymnasium`.
      num_envs: B.
      params: as in `to_gymnasium`.
      autoreset_mode: `SameStep` or `NextStep`, as text or as Gymnasium's `AutoresetMode`.

    Raises:
      ImportError: Gymnasium is not installed.
      ValueError: no params, another mode, or `num_envs` below 1.
    """
    _require_gymnasium()
    from gymnasium.vector import AutoresetMode

    inner, inner_params = _resolve(env, params)
    mode = getattr(autoreset_mode, "value", autoreset_mode)
    if mode not in _RESET_MODES:
        raise ValueError(f"autoreset_mode: expected {' or '.join(_RESET_MODES)}, found {mode!r}")
    vector = VectorEnv(inner, num_envs, reset_mode=_RESET_MODES[mode], levels="fresh")
    vector.validate()
    return _vector_class()(vector, inner_params, AutoresetMode(mode))


# Gymnasium's classes ----------------------------------------------------------------------------------------------------------


def _require_gymnasium() -> None:
    try:
        import gymnasium  # noqa: F401
    except ImportError as error:
        raise ImportError("Gymnasium is not installed: pip install jaxagent[farama]") from error


@functools.cache
def _env_class() -> type:
    """Made on demand, because its base class costs Gymnasium's import."""
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    class JaxagentEnv(gymnasium.Env):
        def __init__(self, env: Environment, params: PyTree, render_mode: str | None, spec: EnvSpec) -> None:
            self._env = env
            self._params = params
            self._key: jax.Array | None = None  # for the steps of this episode
            self._state: PyTree = None
            self._mission: dict[str, str] = {}  # constant within an episode
            self.spec = spec
            self.metadata = {"render_modes": list(_render_modes(env)), "render_fps": 10}
            self.render_mode = render_mode
            self.observation_space = _space(env.spec.observation)
            self.action_space = _space(env.spec.action)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            observation, self._state, self._key = _reset(self._env, _draw_key(self.np_random), self._params)
            if hasattr(self._env, "mission"):
                self._mission = {"mission": self._env.mission(self._state)}
            return _to_host(observation), dict(self._mission)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            if self._key is None:
                raise gymnasium.error.ResetNeeded("call reset before step")
            action = _checked_action(self.action_space, action)
            (observation, self._state, *outcome, info), self._key = _step(
                self._env, self._key, self._state, action, self._params
            )
            reward, terminated, truncated = jax.device_get(outcome)
            return _to_host(observation), float(reward), bool(terminated), bool(truncated), _to_host(info) | self._mission

        def render(self) -> np.ndarray | str | None:
            if self._key is None:
                raise gymnasium.error.ResetNeeded("call reset before render")
            return None if self.render_mode is None else _picture(self._env, self._state, self.render_mode)

    return JaxagentEnv


@functools.cache
def _vector_class() -> type:
    """Made on demand, because its base class costs Gymnasium's import."""
    import gymnasium
    from gymnasium.vector.utils import batch_space

    class JaxagentVectorEnv(gymnasium.vector.VectorEnv):
        def __init__(self, vector: VectorEnv, params: PyTree, mode: "AutoresetMode") -> None:
            self._vector = vector
            self._params = params
            self._state: VectorState | None = None
            self.num_envs = vector.num_envs
            self.metadata = {"render_modes": [], "autoreset_mode": mode}
            self.single_observation_space = _space(vector.env.spec.observation)
            self.single_action_space = _space(vector.env.spec.action)
            self.observation_space = batch_space(self.single_observation_space, self.num_envs)
            self.action_space = batch_space(self.single_action_space, self.num_envs)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self._state, observation = _vector_init(self._vector, _draw_key(self.np_random), self._params)
            return _to_host(observation), {}

        def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
            if self._state is None:
                raise gymnasium.error.ResetNeeded("call reset before step")
            actions = _checked_action(self.action_space, actions)
            self._state, observation, out = _vector_step(self._vector, self._state, actions, self._params)
            reward, terminated, truncated = _to_host((out.reward, out.terminated, out.truncated))
            same_step = self._vector.reset_mode == "same_step"
            info = (
                _same_step_info(out, terminated | truncated) if same_step else _batched(_to_host(out.info), _to_host(out.mask))
            )
            return _to_host(observation), reward, terminated, truncated, info

    return JaxagentVectorEnv


# compiled ---------------------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def _reset(env: Environment, key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree, jax.Array]:
    reset_key, next_key = jax.random.split(key)
    return *env.reset(reset_key, params), next_key


@functools.partial(jax.jit, static_argnums=0)
def _step(env: Environment, key: jax.Array, state: PyTree, action: PyTree, params: PyTree) -> tuple[StepOutput, jax.Array]:
    step_key, next_key = jax.random.split(key)
    return env.step(step_key, state, action, params), next_key


@functools.partial(jax.jit, static_argnums=0)
def _vector_init(vector: VectorEnv, key: jax.Array, params: PyTree) -> tuple[VectorState, PyTree]:
    state = vector.init(key, params)
    return state, vector.observe(state)


@functools.partial(jax.jit, static_argnums=0)
def _vector_step(
    vector: VectorEnv, state: VectorState, action: PyTree, params: PyTree
) -> tuple[VectorState, PyTree, VectorStep]:
    state, out = vector.step(state, action, params)
    return state, vector.observe(state), out


# conversions ------------------------------------------------------------------------------------------------------------------


def _resolve(env: Source, params: PyTree | None) -> tuple[Environment, PyTree]:
    if isinstance(env, str):
        env = make(env)
    if isinstance(env, tuple):
        env, own_params = env
        params = own_params if params is None else params
    if params is None:
        raise ValueError(f"params: expected those of {env.spec.name}, found None; give (env, params) or a registry id")
    return env, params


def _render_modes(env: Environment) -> tuple[str, ...]:
    return RENDER_MODES if hasattr(env, "cells") else ()


def _picture(env: Any, state: PyTree, mode: str) -> np.ndarray | str:
    """What `render_mode` promises, of an environment with `cells` and `agent`: uint8 `[height, width, 3]`, or text.

    A picture shades the cells that the agent sees, where the environment tells them (`seen`).
    """
    position, direction = env.agent(state)
    cells, agent_xy, agent_dir = np.asarray(env.cells(state)), np.asarray(position), int(direction)
    if mode == "ansi":
        return render.render_ascii(cells, agent_xy=agent_xy, agent_dir=agent_dir)
    highlight = np.asarray(env.seen(state)) if hasattr(env, "seen") else None
    return render.render_rgb(cells, agent_xy=agent_xy, agent_dir=agent_dir, highlight=highlight)


def _draw_key(generator: np.random.Generator) -> jax.Array:
    high, low = generator.integers(2**31, size=2)
    return jax.random.fold_in(jax.random.key(int(high)), int(low))


def _to_host(tree: PyTree) -> PyTree:
    """Arrays as numpy's, copied so that the caller may write to them; scalars as Python's."""
    return jax.tree.map(lambda leaf: np.array(leaf) if leaf.ndim else leaf.item(), jax.device_get(tree))


def _checked_action(space: Any, action: Any) -> np.ndarray:
    """Refuses wrong shapes and kinds, and integers out of range; values beyond a box are the environment's to clip."""
    array = np.asarray(action)
    fits = array.shape == space.shape and np.can_cast(array.dtype, space.dtype, casting="same_kind")
    if not fits or (np.issubdtype(space.dtype, np.integer) and not space.contains(array.astype(space.dtype))):
        raise ValueError(f"action: expected an element of {space}, found {action!r}")
    return array.astype(np.int32 if np.issubdtype(space.dtype, np.integer) else space.dtype)


def _same_step_info(out: VectorStep, done: np.ndarray) -> dict[str, Any]:
    """Splits the info by row: where an episode ended it belongs to the observation before the reset."""
    info = _to_host(out.info)
    if not done.any():
        return _batched(info, ~done)
    final = _to_host(out.observation)
    rows = np.full(done.shape, None, dtype=object)
    for row in np.flatnonzero(done):
        rows[row] = jax.tree.map(lambda leaf, row=row: leaf[row], final)
    return _batched(info, ~done) | {
        "final_obs": rows,
        "_final_obs": done,
        "final_info": _batched(info, done),
        "_final_info": done,
    }


def _batched(info: Info, mask: np.ndarray) -> dict[str, Any]:
    """Gymnasium's layout of a batched info: beside each entry a mask [B] of the rows that have it, zeros in the others."""
    batched: dict[str, Any] = {}
    for name, value in info.items():
        if isinstance(value, dict):
            batched[name] = _batched(value, mask)
        else:
            batched[name] = np.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, np.zeros_like(value))
        batched[f"_{name}"] = mask.copy()
    return batched


def _space(space: Space) -> "gymnasium.Space":
    from gymnasium import spaces

    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(list(space.nvec), np.dtype(space.dtype).type)
    if isinstance(space, Box):
        low, high = (np.broadcast_to(bound, space.size).reshape(space.shape) for bound in (space.low, space.high))
        return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), space.shape, np.dtype(space.dtype).type)
    # a sequence of pairs keeps the order, which a plain dict would not
    return spaces.Dict([(name, _space(part)) for name, part in space.items()])
