"""The grid engine: one step function for every world of cells, with MiniGrid's rules.

A world is a flat array of one-byte symbols (`symbols.py`), padded with walls so that the agent's view is a gather that needs
no bounds check. Rows share their side padding: the cells right of one row are the cells left of the next. A step reads and
writes one cell, the one in front of the agent.

Letters: `W`, `H` width and height of a world, `P` its cells with the padding, `K` objects with an identity.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxagent.envs import symbols, view
from jaxagent.envs.base import StepOutput
from jaxagent.envs.layout import Layout
from jaxagent.types import Box, DictSpace, Discrete, EnvSpec, PyTree, check_action

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
NUM_ACTIONS = 7

Index = TypeVar("Index", int, jax.Array)

# positions and contents that are not a cell or a row
CARRIED, GONE = -1, -2  # in the agent's hands; opened, or still inside a box
NOTHING = -1


@flax.struct.dataclass
class GridParams:
    """Attributes:
    max_steps: steps until truncation, int32; the level's own bound holds beside it.
    """

    max_steps: ArrayLike


@flax.struct.dataclass
class Objects:
    """Boxes and what they hold, one row each: a box keeps its contents wherever it is carried."""

    symbol: jax.Array  # uint8 [K]
    position: jax.Array  # int32 [K], flat index of a cell, CARRIED or GONE
    contents: jax.Array  # int32 [K], the row of the object inside, or NOTHING


@flax.struct.dataclass
class GridState:
    cells: jax.Array  # uint8 [P]
    position: jax.Array  # int32, flat index of the agent's cell
    direction: jax.Array  # int32, 0 - 3
    carrying: jax.Array  # uint8 symbol, 0 for nothing
    step_count: jax.Array  # int32
    mission: jax.Array  # int32, index into the level's mission texts
    objects: Objects | None = None  # None where no box of the level holds anything


class Generator(Protocol):
    """Draws a level. Must be hashable by value (a function, or a frozen dataclass), because it is static under `jax.jit`."""

    def __call__(self, key: jax.Array, width: int, height: int) -> Layout: ...


@dataclass(frozen=True)
class Level:
    """What sets one registered level apart from another.

    Attributes:
      generate: draws the level.
      size: `(W, H)`, the outer walls included.
      max_steps: steps until truncation, by default and at most.
      missions: all mission texts that the level can give.
      see_through_walls: whether the view has no occlusion.
    """

    generate: Generator
    size: tuple[int, int]
    max_steps: int
    missions: tuple[str, ...]
    see_through_walls: bool = False


@dataclass(frozen=True)
class Frame:
    """Where the cells of a `W x H` world lie in the flat padded array."""

    width: int
    height: int

    @property
    def stride(self) -> int:
        return self.width + view.PAD

    @property
    def steps(self) -> np.ndarray:
        """Flat distance to the next cell in each direction, int32 `[4]`."""
        return (symbols.DIRECTION_XY @ np.array([1, self.stride])).astype(np.int32)

    def index(self, x: Index, y: Index) -> Index:
        return (y + view.PAD) * self.stride + view.PAD + x

    def xy(self, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, x = jnp.divmod(index - view.PAD, self.stride)
        return x, y - view.PAD

    def flatten(self, grid: jax.Array) -> jax.Array:
        """uint8 `[H, W]` to `[P]`."""
        padded = jnp.pad(grid, ((view.PAD, view.PAD), (0, view.PAD)), constant_values=symbols.WALL_CELL)
        return jnp.pad(padded.ravel(), (view.PAD, 0), constant_values=symbols.WALL_CELL)

    def unflatten(self, cells: jax.Array) -> jax.Array:
        """uint8 `[P]` to `[H, W]`."""
        padded = cells[view.PAD :].reshape(self.height + 2 * view.PAD, self.stride)
        return padded[view.PAD : view.PAD + self.height, : self.width]

    def state(self, layout: Layout) -> GridState:
        """The state at the start of an episode in `layout`."""
        return GridState(
            cells=self.flatten(layout.grid),
            position=jnp.asarray(self.index(layout.agent[0], layout.agent[1]), jnp.int32),
            direction=jnp.asarray(layout.direction, jnp.int32),
            carrying=jnp.uint8(0),
            step_count=jnp.int32(0),
            mission=jnp.asarray(layout.mission, jnp.int32),
        )


def _kinds(*kinds: int) -> Callable[[jax.Array], jax.Array]:
    """A test whether a symbol's kind is one of `kinds`."""
    members = sum(1 << kind for kind in kinds)
    return lambda symbol: (members >> symbols.kind_of(symbol).astype(jnp.int32)) & 1 != 0


_is_walkable = _kinds(symbols.EMPTY, symbols.FLOOR, symbols.DOOR_OPEN, symbols.GOAL, symbols.LAVA)
_is_portable = _kinds(symbols.KEY, symbols.BALL, symbols.BOX)


def _toggled(cell: jax.Array, carrying: jax.Array, contents: jax.Array) -> jax.Array:
    """What the `toggle` action makes of a cell, given the carried symbol and what a box there holds."""
    kind, colour = symbols.kind_of(cell), symbols.colour_of(cell)
    has_key = carrying == symbols.symbol(jnp.uint8(symbols.KEY), colour)
    opens = (kind == symbols.DOOR_CLOSED) | (kind == symbols.DOOR_LOCKED) & has_key
    door = symbols.symbol(
        jnp.where(opens, symbols.DOOR_OPEN, jnp.where(kind == symbols.DOOR_OPEN, symbols.DOOR_CLOSED, kind)), colour
    )
    return jnp.where(kind == symbols.BOX, contents, door).astype(jnp.uint8)


def _contents(objects: Objects | None, front: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The row and the symbol inside the box at `front`."""
    if objects is None:
        return jnp.int32(NOTHING), jnp.uint8(symbols.EMPTY_CELL)
    row = jnp.max(jnp.where(objects.position == front, objects.contents, NOTHING))
    return row, jnp.where(row == NOTHING, jnp.uint8(symbols.EMPTY_CELL), objects.symbol[row])


def _moved(
    objects: Objects, front: jax.Array, inside: jax.Array, taken: jax.Array, dropped: jax.Array, opened: jax.Array
) -> Objects:
    """Objects after the agent took, dropped or opened one at `front`; `inside` is the row of what the opened box held."""
    here, held = objects.position == front, objects.position == CARRIED
    position = jnp.where(here & taken, CARRIED, objects.position)
    position = jnp.where(held & dropped, front, position)
    position = jnp.where(here & opened, GONE, position)
    position = jnp.where((jnp.arange(position.size) == inside) & opened, front, position)
    return dataclasses.replace(objects, position=position)


def act(frame: Frame, state: GridState, action: jax.Array) -> tuple[GridState, jax.Array]:
    """Applies one of the seven actions; any other number does nothing, as `DONE` does.

    Returns:
      The next state, and the kind of the cell that the agent walked onto (`UNSEEN` if it did not walk).
    """
    front = state.position + view.take(jnp.asarray(frame.steps), state.direction)
    cell = view.take(state.cells, front)
    carrying = state.carrying
    empty_handed = carrying == 0
    walks = (action == FORWARD) & _is_walkable(cell)
    takes = (action == PICKUP) & empty_handed & _is_portable(cell)
    drops = (action == DROP) & ~empty_handed & (cell == symbols.EMPTY_CELL)
    toggles = action == TOGGLE

    inside, contents = _contents(state.objects, front)
    written = jnp.where(toggles, _toggled(cell, carrying, contents), cell)
    written = jnp.where(takes, jnp.uint8(symbols.EMPTY_CELL), jnp.where(drops, carrying, written))
    objects = state.objects
    if objects is not None:
        opens = toggles & (symbols.kind_of(cell) == symbols.BOX)
        objects = _moved(objects, front, inside, taken=takes, dropped=drops, opened=opens)
    turn = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    state = dataclasses.replace(
        state,
        cells=state.cells.at[front].set(written, mode="promise_in_bounds", unique_indices=True, indices_are_sorted=True),
        position=jnp.where(walks, front, state.position),
        direction=(state.direction + turn) & 3,
        carrying=jnp.where(takes, cell, jnp.where(drops, jnp.uint8(0), carrying)),
        step_count=state.step_count + 1,
        objects=objects,
    )
    return state, jnp.where(walks, symbols.kind_of(cell), jnp.uint8(symbols.UNSEEN))


@dataclass(frozen=True)
class GridEnv:
    """A level of the engine. Reaching a goal pays `1 - 0.9 * steps / max_steps` and ends the episode; so does lava, for 0.

    Observations are a dict: `image` as `obs` says, `direction` (int32, 0 right, 1 down, 2 left, 3 up) and `mission` (int32,
    an index into `level.missions`). Actions: turn left, turn right, forward, pick up, drop, toggle, done.

    Attributes:
      name: registry id.
      level: what to generate.
      obs: how `image` is encoded: `packed` (uint8 `[7, 7]` symbols as `[x, y]`), `symbolic` (uint8 `[7, 7, 3]`, MiniGrid's
        kind, colour and state), `onehot` (uint8 `[7, 7, 20]`), `full` (uint8 `[W, H, 3]`, the whole world) or `rgb` (uint8
        `[56, 56, 3]`, the view in tiles of 8 pixels).
    """

    name: str
    level: Level
    obs: str = "packed"

    def validate(self) -> None:
        """Raises `ValueError` where a field has no meaning."""
        known = (*view.ENCODINGS, "full")
        if self.obs not in known:
            raise ValueError(f"obs: expected one of {', '.join(known)}, got {self.obs!r}")
        if self.level.max_steps < 1:
            raise ValueError(f"max_steps: expected at least 1, got {self.level.max_steps}")

    @property
    def frame(self) -> Frame:
        return Frame(*self.level.size)

    @property
    def default_params(self) -> GridParams:
        return GridParams(max_steps=np.int32(self.level.max_steps))

    @property
    def spec(self) -> EnvSpec:
        fields = (("image", self._image_space()), ("direction", Discrete(4)), ("mission", Discrete(len(self.level.missions))))
        return EnvSpec(self.name, DictSpace(fields), Discrete(NUM_ACTIONS), self.level.max_steps)

    def _image_space(self) -> Box:
        if self.obs == "full":
            return Box(0, symbols.AGENT, (*self.level.size, 3), "uint8")
        encoding = view.ENCODINGS[self.obs]
        return Box(0, encoding.high, encoding.shape, "uint8")

    def reset(self, key: jax.Array, params: GridParams) -> tuple[PyTree, GridState]:
        state = self.frame.state(self.level.generate(key, *self.level.size))
        return self.observe(state), state

    def step(self, key: jax.Array, state: GridState, action: jax.Array, params: GridParams) -> StepOutput:
        check_action(self.spec.action, action)
        state, entered = act(self.frame, state, action)
        limit = jnp.minimum(params.max_steps, self.level.max_steps)
        success = entered == symbols.GOAL
        reward = jnp.where(success, 1.0 - 0.9 * state.step_count.astype(jnp.float32) / limit, 0.0)
        terminated = success | (entered == symbols.LAVA)
        return self.observe(state), state, reward, terminated, state.step_count >= limit, {"success": success}

    def observe(self, state: GridState) -> dict[str, jax.Array]:
        return {"image": self._image(state), "direction": state.direction, "mission": state.mission}

    def _image(self, state: GridState) -> jax.Array:
        if self.obs == "full":
            return view.world(self.cells(state), *self.frame.xy(state.position), state.direction)
        return view.ENCODINGS[self.obs].encode(self._look(state))

    def _look(self, state: GridState) -> jax.Array:
        indices = view.window(state.position, state.direction, self.frame.stride)
        hands = jnp.where(state.carrying == 0, jnp.uint8(symbols.EMPTY_CELL), state.carrying)
        return view.look(state.cells, indices, hands, see_through_walls=self.level.see_through_walls)

    # for rendering

    def cells(self, state: GridState) -> jax.Array:
        """The symbols of the world without the agent, uint8 `[W, H]`."""
        return self.frame.unflatten(state.cells).T

    def agent(self, state: GridState) -> tuple[jax.Array, jax.Array]:
        """Where the agent is, int32 `[2]` as `(x, y)`, and its direction, int32."""
        return jnp.stack(self.frame.xy(state.position)), state.direction

    def seen(self, state: GridState) -> jax.Array:
        """Which cells of the world the agent sees, bool `[W, H]`."""
        indices = view.window(state.position, state.direction, self.frame.stride)
        mask = jnp.zeros(state.cells.shape, bool).at[indices].set(self._look(state) != 0)
        return self.frame.unflatten(mask).T

    def mission(self, state: GridState) -> str:
        """The mission as text; on the host, for one state."""
        return self.level.missions[int(state.mission)]
