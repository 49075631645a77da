"""Types that every module shares.

Letters: `T` time, `B` parallel environments (or batch rows), `A` actions.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
Agent = PyTree  # what acting reads of a learner's state
Carry = PyTree  # a policy's memory, leaves [B, ...]
Metrics = dict[str, jax.Array]  # scalars, or [...] under an outer vmap


@dataclass(frozen=True)
class Discrete:
    """Integers `0 .. n - 1`, as an int32 scalar."""

    n: int
    shape: tuple[int, ...] = ()
    dtype: str = "int32"


@dataclass(frozen=True)
class MultiDiscrete:
    """A vector of integers, the i-th in `0 .. nvec[i] - 1`, as int32."""

    nvec: tuple[int, ...]
    dtype: str = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)


@dataclass(frozen=True)
class Box:
    """An array with bounds. `low` and `high` hold for all elements, or are flat tuples with one value an element."""

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class DictSpace(Mapping[str, "Space"]):
    """Named spaces, in order. Hashable, so that a spec can be static under `jax.jit`."""

    fields: tuple[tuple[str, "Space"], ...]

    def __getitem__(self, name: str) -> "Space":
        return dict(self.fields)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.fields)

    def __len__(self) -> int:
        return len(self.fields)


Space = Discrete | MultiDiscrete | Box | DictSpace
ActionSpace = Discrete | MultiDiscrete | Box


def check_action(space: ActionSpace, action: PyTree, *, batch_shape: tuple[int, ...] = ()) -> None:
    """Raises ValueError unless an action has the shape and the type of its space; works on tracers."""
    shape, dtype = jnp.shape(action), jnp.result_type(action)
    fits = jnp.issubdtype(dtype, jnp.floating if isinstance(space, Box) else jnp.integer)
    if shape != (*batch_shape, *space.shape) or not fits:
        expected = (*batch_shape, *space.shape)
        raise ValueError(f"action: expected {space.dtype} of shape {expected}, got {dtype} of shape {shape}")


@dataclass(frozen=True)
class EnvSpec:
    """What is static about an environment: everything that shapes depend on.

    Attributes:
      name: registry id.
      observation: structure of one observation (a `DictSpace`, or one space).
      action: structure of one action.
      max_steps: an upper bound on the steps of an episode, whatever the params.
      components: names of the reward components in `info["components"]`, if any.
      max_tokens: an upper bound on the tokens that the observations of an episode add up to, where they are a stream of tokens.
    """

    name: str
    observation: Space
    action: ActionSpace
    max_steps: int
    components: tuple[str, ...] = ()
    max_tokens: int | None = None


class Transition(NamedTuple):
    """A batch of steps. All leaves are `[T, B, ...]`.

    `terminated` ends an episode for good (value 0 beyond it); `truncated` cuts it (bootstrap beyond it).
    """

    observation: PyTree  # what the policy saw
    action: PyTree
    reward: jax.Array  # float32, of this action
    terminated: jax.Array  # bool, this step ended the episode
    truncated: jax.Array  # bool, this step hit a time limit (may be true beside `terminated`)
    is_first: jax.Array  # bool, `observation` is the first of an episode
    mask: jax.Array  # bool, False where the row is padding and must not count
    extras: dict[str, PyTree]  # policy outputs: log_prob, value, next_value ...


class Batch(NamedTuple):
    """What a learner's `update` takes: transitions, and the policy's memory before the first of them."""

    transition: Transition  # [T, B, ...]
    carry: Carry  # [B, ...]


class PolicyInput(NamedTuple):
    """All that a policy may look at. Leaves are `[B, ...]`."""

    observation: PyTree
    last_action: PyTree  # zeros where `is_first`
    last_reward: jax.Array  # zero where `is_first`
    is_first: jax.Array  # bool
    env_state: PyTree = None  # only for privileged policies


ValueFunction = Callable[[Agent, Carry, PolicyInput], jax.Array]


class Policy(NamedTuple):
    """How to act, for every kind of agent.

    A policy clears its own carry rows where `inputs.is_first`.

    Attributes:
      init: `init(B) -> carry`.
      act: `act(agent, carry, inputs, key) -> (carry, action, extras)`; leaves of action and extras are `[B, ...]`.
      value: `value(agent, carry, inputs) -> [B]`, the estimated value of the situation that `act` would see; None if the
        policy has no critic.
      privileged: whether `act` reads `inputs.env_state`.
    """

    init: Callable[[int], Carry]
    act: Callable[[Agent, Carry, PolicyInput, jax.Array], tuple[Carry, PyTree, dict[str, PyTree]]]
    value: ValueFunction | None = None
    privileged: bool = False


def is_count(value: Any, least: int = 1) -> bool:
    """Whether it is an integer, Python's or NumPy's, and no less than that. Truth values are no integers."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least
