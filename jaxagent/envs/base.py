"""The environment protocol.

An environment is a frozen dataclass: hashable, static under `jax.jit`, free of state. It describes one instance, without
auto-reset; `jaxagent.envs.vector.VectorEnv` runs many and owns resetting.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.types import EnvSpec, PyTree

Info = dict[str, Any]
StepOutput = tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array, Info]


class Environment(Protocol):
    """Pure functions of a key, a state and traced params: gymnax 1.x's step tuple without its auto-reset.

    `info["success"]` (bool) is there where the environment defines success, `info["performance"]` (float32) where the true
    objective differs from the reward, and `info["totals"]`, a dict of numbers, where there is more to count. All describe the
    episode so far and are read when it ends.
    """

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        """Draws a level. Returns `(observation, state)`."""
        ...

    def step(self, key: jax.Array, state: PyTree, action: PyTree, params: PyTree) -> StepOutput:
        """Returns `(observation, state, reward, terminated, truncated, info)`; the observation is of the state reached."""
        ...


@runtime_checkable
class Observable(Protocol):
    """An environment whose observations follow from its state alone."""

    def observe(self, state: PyTree) -> PyTree:
        """The observation that `step` and `reset` gave with this state."""
        ...


@runtime_checkable
class Situated(Protocol):
    """An environment that can say when two states are the same but for what is only counted, such as steps."""

    def situation(self, state: PyTree) -> PyTree:
        """Arrays that are equal where the situation is."""
        ...


@runtime_checkable
class Rejecting(Protocol):
    """An environment that may draw a level and reject it, and whose observations follow from its state."""

    @property
    def rejects(self) -> bool:
        """Whether that can happen."""
        ...

    def propose(self, key: jax.Array, attempt: jax.Array, params: PyTree) -> tuple[PyTree, jax.Array]:
        """Draws a level, another one at each attempt (uint32). Returns its state, and whether it is accepted, bool."""
        ...


def redraw(env: Rejecting, key: jax.Array, params: PyTree) -> PyTree:
    """The state of the first level that is accepted."""

    def draw(drawn: tuple[jax.Array, PyTree, jax.Array]) -> tuple[jax.Array, PyTree, jax.Array]:
        return drawn[0] + 1, *env.propose(key, drawn[0], params)

    # from nothing, rather than from a first draw, so that there is only one place for the compiler to draw in
    nothing = zeros_like(env.propose, key, jnp.uint32(0), params)
    return jax.lax.while_loop(lambda drawn: ~drawn[2], draw, (jnp.uint32(0), *nothing))[1]


def zeros_like(function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Zeros in the place of what `function` would return."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, *arguments))


def check_state(state: Any, kind: type[Any], cells: tuple[int, ...]) -> None:
    """Raises ValueError where `state` is not one state of class `kind`, with so many `cells`."""
    if not isinstance(state, kind):
        raise ValueError(f"state: expected a {kind.__name__}, got {type(state).__name__}")
    shape = np.shape(state.cells)
    if shape != cells:
        several = shape[len(shape) - len(cells) :] == cells
        hint = "; of several states take one: jax.tree.map(lambda leaf: leaf[0], state)" if several else ""
        raise ValueError(f"state: expected one, with cells {list(cells)}, got cells {list(shape)}{hint}")


class Drawable(Environment, Protocol):
    """An environment that shows itself as a grid of cells. Methods take one state."""

    def cells(self, state: PyTree) -> jax.Array:
        """Symbols (`jaxagent.envs.symbols`) of the whole grid without the agent, uint8 `[W, H]`."""
        ...

    def agent(self, state: PyTree) -> tuple[jax.Array, jax.Array]:
        """Where the agent is, int32 `[2]` as (x, y), and its direction, int32."""
        ...

    def seen(self, state: PyTree) -> jax.Array:
        """Which cells the agent sees, bool `[W, H]`."""
        ...

    def mission(self, state: PyTree) -> str:
        """The task as text."""
        ...


_KINDS = {"b": "true or false", "i": "an integer", "u": "an integer from 0", "f": "a finite number"}  # by numpy's letters
_FITTING = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}


def cast_param(name: str, value: Any, default: Any) -> np.ndarray:
    """`value` in the dtype and shape of `default`.

    Raises:
      ValueError: it is of another kind or shape, or does not fit.
    """
    dtype, shape = np.dtype(default.dtype if hasattr(default, "dtype") else type(default)), np.shape(default)
    try:
        given = np.asarray(value)
    except ValueError:  # lists of unequal lengths
        given = np.asarray(None)
    if given.dtype.kind not in _FITTING[dtype.kind] or given.shape != shape or not np.all(np.isfinite(given)):
        size = f" of shape {shape}" if shape else ""
        raise ValueError(f"params.{name}: expected {_KINDS[dtype.kind]}{size}, got {value!r}")
    with np.errstate(over="ignore"):
        cast = given.astype(dtype)
    if not np.all(np.isfinite(cast)):
        raise ValueError(f"params.{name}: expected a number that {dtype} holds, got {value!r}")
    if dtype.kind in "iu" and not np.array_equal(cast, given):
        raise ValueError(f"params.{name}: expected a number that fits {dtype}, got {value!r}")
    return cast
