"""Resource collecting on a small, fully observed grid: `Collector-v0` (one fixed map) and `CollectorRandom-v0`.

The agent walks in four directions, picks up a resource by entering its cell and ends the episode by entering a goal. The map
of `Collector-v0` and its limit of 20 steps come from a published comparison of agents, as do three rows of results. That text
gives no reward for the goal or for a step; `resources + 5.5 * goal_rate - 0.16 * steps` reproduces the mean reward of all
three rows to within 0.1, so these are the default rewards. Two of its statements cannot be right:

- "the optimal path takes about 12 steps": collecting both resources and reaching a goal takes 11, and pays 5.74;
- "2.4 (and 2.1) resources on average": the map holds 2.

The shortest way to a goal has 7 steps. It may pass the resource at row 2, column 4 and pays 5.38 then, otherwise 4.38.

Letters: `W` columns, `H` rows. Cells are indexed `[x, y]`, x being the column.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxagent.envs import symbols
from jaxagent.envs.base import StepOutput, check_state
from jaxagent.render import atlas
from jaxagent.types import Box, DictSpace, Discrete, EnvSpec, check_action

RESOURCE_CELL = symbols.symbol(symbols.BALL, symbols.YELLOW)
AGENT_CELL = symbols.symbol(symbols.AGENT, symbols.RED)

COLLECTOR_MAP = (
    "..R....G",
    ".WW.....",
    "S...R...",
    "..W...G.",
)
LETTERS = {
    ".": symbols.EMPTY_CELL,
    "S": symbols.EMPTY_CELL,
    "R": RESOURCE_CELL,
    "G": symbols.GOAL_CELL,
    "W": symbols.WALL_CELL,
}
MISSION = "collect the yellow balls, then go to a green goal"
_HIGHEST = {"packed": AGENT_CELL, "symbolic": symbols.AGENT, "rgb": 255}  # values of an image, by `obs`


# levels -----------------------------------------------------------------------------------------------------------------------


class Level(NamedTuple):
    """Where everything is at the start of an episode."""

    cells: jax.Array  # [W, H] uint8 symbols, without the agent
    start: jax.Array  # [2] int32, the agent's (x, y)


class LevelGenerator(Protocol):
    """A hashable function from a key to a level; size and number of resources are static."""

    @property
    def size(self) -> tuple[int, int]:
        """(W, H)."""
        ...

    @property
    def resources(self) -> int: ...

    def __call__(self, key: jax.Array) -> Level: ...


@dataclass(frozen=True)
class MapLevel:
    """Always the level that `rows` show: `S` start, `R` resource, `G` goal, `W` wall, `.` empty."""

    rows: tuple[str, ...]

    @property
    def size(self) -> tuple[int, int]:
        return len(self.rows[0]), len(self.rows)

    @property
    def resources(self) -> int:
        return "".join(self.rows).count("R")

    def __call__(self, key: jax.Array) -> Level:
        del key
        letters = np.array([list(row) for row in self.rows]).T  # [W, H]
        cells = np.vectorize(LETTERS.__getitem__, otypes=[np.uint8])(letters)
        return Level(jnp.asarray(cells), jnp.asarray(np.argwhere(letters == "S")[0], jnp.int32))


class _Placement(NamedTuple):
    """Distinct cells, numbered `x * edge + y`, int32."""

    start: jax.Array  # []
    goal: jax.Array  # []
    resources: jax.Array  # [resources]
    walls: jax.Array  # [walls]


class _Attempt(NamedTuple):
    key: jax.Array
    number: jax.Array  # int32, placements drawn so far
    placement: _Placement
    solvable: jax.Array  # bool


@dataclass(frozen=True)
class RandomLevel:
    """Puts a start, a goal, resources and walls on distinct cells, uniformly among the solvable placements.

    Solvable means that all resources and then the goal can be reached. A placement is drawn again until it is; after `tries`
    failures the last one loses its walls, which always makes it solvable.
    """

    edge: int = 8  # cells, 3 to 32 (a column is one bit set)
    resources: int = 4
    walls: int = 12
    tries: int = 32

    @property
    def size(self) -> tuple[int, int]:
        return self.edge, self.edge

    def validate(self) -> None:
        """Raises ValueError where the objects do not fit the grid."""
        if not 3 <= self.edge <= 32:
            raise ValueError(f"size: expected 3 to 32, found {self.edge}")
        for name, count in (("resources", self.resources), ("walls", self.walls)):
            if count < 0:
                raise ValueError(f"{name}: expected at least 0, found {count}")
        room = self.edge**2 - 2
        if self.resources + self.walls > room:
            raise ValueError(
                f"resources + walls: expected at most {room} (size {self.edge}), found {self.resources + self.walls}"
            )

    def __call__(self, key: jax.Array) -> Level:
        def redraw(attempt: _Attempt) -> _Attempt:
            next_key, order_key = jax.random.split(attempt.key)
            placement = self._placement(_shuffled(order_key, self.edge**2))
            return _Attempt(next_key, attempt.number + 1, placement, self._is_solvable(placement))

        def is_unsolved(attempt: _Attempt) -> jax.Array:
            return ~attempt.solvable & (attempt.number < self.tries)

        unset = self._placement(jnp.zeros(self.edge**2, jnp.int32))
        attempt = jax.lax.while_loop(is_unsolved, redraw, _Attempt(key, jnp.int32(0), unset, jnp.bool(False)))
        start, goal, resources, walls = attempt.placement
        wall = jnp.where(attempt.solvable, jnp.uint8(symbols.WALL_CELL), jnp.uint8(symbols.EMPTY_CELL))
        cells = jnp.full(self.edge**2, symbols.EMPTY_CELL, jnp.uint8)
        cells = cells.at[walls].set(wall).at[resources].set(RESOURCE_CELL).at[goal].set(symbols.GOAL_CELL)
        return Level(cells.reshape(self.size), jnp.stack(jnp.divmod(start, self.edge)))

    def _placement(self, order: jax.Array) -> _Placement:
        """Deals cells out in the given order, `[edge ** 2]`."""
        first_wall = 2 + self.resources
        return _Placement(order[0], order[1], order[2:first_wall], order[first_wall : first_wall + self.walls])

    def _is_solvable(self, placement: _Placement) -> jax.Array:
        start, goal, resources, walls = placement
        nothing = jnp.zeros(self.edge**2, bool)
        # the goal ends the episode, so no way to a resource leads across it
        passable = self._bits(~nothing.at[walls].set(True).at[goal].set(True))
        reached = _flood(self._bits(nothing.at[start].set(True)), passable)
        wanted = self._bits(nothing.at[resources].set(True).at[goal].set(True))
        return jnp.all(wanted & ~_grown(reached) == 0)

    def _bits(self, cells: jax.Array) -> jax.Array:
        """Packs bool `[W * H]` into uint32 `[W]`, bit `y` for row `y`."""
        return jnp.sum(
            cells.reshape(self.size).astype(jnp.uint32) << jnp.arange(self.edge, dtype=jnp.uint32), axis=1, dtype=jnp.uint32
        )


def _shuffled(key: jax.Array, count: int) -> jax.Array:
    """A random order of `0 .. count - 1`, int32: the numbers ride in the low bits of random words, which sort alone."""
    low_bits = jnp.uint32((1 << (count - 1).bit_length()) - 1)
    words = jax.random.bits(key, (count,)) & ~low_bits | jnp.arange(count, dtype=jnp.uint32)
    return (jnp.sort(words) & low_bits).astype(jnp.int32)


def _grown(bits: jax.Array) -> jax.Array:
    """A set of cells, uint32 `[W]`, and all cells beside one of them."""
    west, east = jnp.pad(bits[1:], (0, 1)), jnp.pad(bits[:-1], (1, 0))
    return bits | bits << 1 | bits >> 1 | west | east


def _flood(seeds: jax.Array, passable: jax.Array) -> jax.Array:
    """All cells that can be reached from `seeds` through `passable` ones, as uint32 `[W]`."""

    def grow(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reached, _ = carry
        return _grown(reached) & passable, reached

    return jax.lax.while_loop(lambda carry: jnp.any(carry[0] != carry[1]), grow, (seeds, jnp.zeros_like(seeds)))[0]


# the environment --------------------------------------------------------------------------------------------------------------


@flax.struct.dataclass
class CollectorParams:
    """Traced settings.

    Attributes:
      resource_reward: paid for each resource.
      goal_reward: paid for reaching a goal, whatever was collected.
      step_cost: taken for every step, the last and blocked ones included.
      max_steps: truncates the episode, int32; the environment's own `max_steps` holds beside it.
    """

    resource_reward: ArrayLike
    goal_reward: ArrayLike
    step_cost: ArrayLike
    max_steps: ArrayLike


class CollectorState(NamedTuple):
    cells: jax.Array  # [W, H] uint8 symbols, without the agent
    xy: jax.Array  # [2] int32, where the agent is
    direction: jax.Array  # int32, of the last move, whether it was blocked or not; 0 before the first
    resources: jax.Array  # int32, collected so far
    step_count: jax.Array  # int32


@dataclass(frozen=True)
class CollectorEnv:
    """Collect resources, then go to a goal.

    Actions: 0 right, 1 down, 2 left, 3 up; any other number does nothing, for a step. A move into a wall or across the border
    leaves the agent where it is. Observations are a dict: `image` as `obs` says, `direction` (int32, of the last move) and
    `mission` (int32, 0). `info` holds `success` (bool: at a goal with all resources) and `resources` (int32: collected so far).

    Attributes:
      name: registry id.
      level: draws a level.
      max_steps: steps until truncation, by default and at most.
      obs: how `image` shows the whole grid: `packed` (uint8 `[W, H]` symbols), `symbolic` (uint8 `[W, H, 3]`, MiniGrid's kind,
        colour and state) or `rgb` (uint8 `[H * t, W * t, 3]`).
      tile_size: `t`, pixels, for `rgb`.
    """

    name: str
    level: LevelGenerator
    max_steps: int
    obs: str = "packed"
    tile_size: int = 8

    def validate(self) -> None:
        """Raises ValueError naming the field that is wrong."""
        if self.obs not in _HIGHEST:
            raise ValueError(f"obs: expected one of {', '.join(_HIGHEST)}, found {self.obs!r}")
        for name, value in (("max_steps", self.max_steps), ("tile_size", self.tile_size)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, found {value}")

    @property
    def default_params(self) -> CollectorParams:
        return CollectorParams(
            resource_reward=np.float32(1.0),
            goal_reward=np.float32(5.5),
            step_cost=np.float32(0.16),
            max_steps=np.int32(self.max_steps),
        )

    @property
    def spec(self) -> EnvSpec:
        width, height = self.level.size
        shapes = {
            "packed": (width, height),
            "symbolic": (width, height, 3),
            "rgb": (height * self.tile_size, width * self.tile_size, 3),
        }
        image = Box(0, _HIGHEST[self.obs], shapes[self.obs], "uint8")
        observation = DictSpace((("image", image), ("direction", Discrete(4)), ("mission", Discrete(1))))
        return EnvSpec(self.name, observation, Discrete(4), self.max_steps)

    def reset(self, key: jax.Array, params: CollectorParams) -> tuple[dict[str, jax.Array], CollectorState]:
        del params
        cells, start = self.level(key)
        zero = jnp.int32(0)
        state = CollectorState(cells, start, direction=zero, resources=zero, step_count=zero)
        return self.observe(state), state

    def step(self, key: jax.Array, state: CollectorState, action: jax.Array, params: CollectorParams) -> StepOutput:
        del key
        check_action(self.spec.action, action)
        action = jnp.asarray(action, jnp.int32)
        moves = (action >= 0) & (action < 4)
        direction = jnp.where(moves, action, state.direction)
        furthest = np.array(self.level.size, np.int32) - 1
        target = jnp.clip(state.xy + moves * jnp.asarray(symbols.DIRECTION_XY)[direction], 0, furthest)
        cell = _read(state.cells, target)
        kind = symbols.kind_of(cell)
        collects, arrives = kind == symbols.BALL, kind == symbols.GOAL
        state = CollectorState(
            cells=_write(state.cells, target, jnp.where(collects, jnp.uint8(symbols.EMPTY_CELL), cell)),
            xy=jnp.where(kind == symbols.WALL, state.xy, target),
            direction=direction,
            resources=state.resources + collects,
            step_count=state.step_count + 1,
        )
        reward = params.resource_reward * collects + params.goal_reward * arrives - params.step_cost
        truncated = state.step_count >= jnp.minimum(params.max_steps, self.max_steps)
        info = {"success": arrives & (state.resources == self.level.resources), "resources": state.resources}
        return self.observe(state), state, jnp.asarray(reward, jnp.float32), arrives, truncated, info

    def observe(self, state: CollectorState) -> dict[str, jax.Array]:
        encode = {"packed": _packed, "symbolic": _symbolic, "rgb": self._rgb}[self.obs]
        return {"image": encode(state), "direction": state.direction, "mission": jnp.int32(0)}

    def situation(self, state: CollectorState) -> CollectorState:
        """The state but for its count of steps."""
        return state._replace(step_count=jnp.int32(0))

    def mission(self, state: CollectorState) -> str:
        """The task in English; the same for every state."""
        del state
        return MISSION

    def cells(self, state: CollectorState) -> jax.Array:
        """Symbols of the whole grid without the agent, uint8 `[W, H]`, for rendering."""
        check_state(state, CollectorState, self.level.size)
        return state.cells

    def agent(self, state: CollectorState) -> tuple[jax.Array, jax.Array]:
        """Where the agent is, int32 `[2]` as (x, y), and its direction, int32, for rendering."""
        check_state(state, CollectorState, self.level.size)
        return state.xy, state.direction

    def seen(self, state: CollectorState) -> jax.Array:
        """Everything, bool `[W, H]`, for rendering."""
        check_state(state, CollectorState, self.level.size)
        return jnp.ones(state.cells.shape, bool)

    def _rgb(self, state: CollectorState) -> jax.Array:
        x, y = state.xy
        t, (width, height) = self.tile_size, self.level.size
        agents = jnp.asarray(np.stack([atlas(t, agent_dir=direction) for direction in range(4)]))
        tiles = jnp.asarray(atlas(t))[state.cells]  # [W, H, t, t, 3]
        tiles = tiles.at[x, y].set(agents[state.direction, state.cells[x, y]])
        return tiles.transpose(1, 2, 0, 3, 4).reshape(height * t, width * t, 3)


def _read(cells: jax.Array, xy: jax.Array) -> jax.Array:
    return cells.at[xy[0], xy[1]].get(mode="promise_in_bounds")


def _write(cells: jax.Array, xy: jax.Array, cell: ArrayLike) -> jax.Array:
    return cells.at[xy[0], xy[1]].set(cell, mode="promise_in_bounds", unique_indices=True, indices_are_sorted=True)


def _packed(state: CollectorState) -> jax.Array:
    return _write(state.cells, state.xy, AGENT_CELL)


def _symbolic(state: CollectorState) -> jax.Array:
    packed = _packed(state)
    # the agent is the only thing with a state: these levels have no doors
    facing = _write(jnp.zeros_like(packed), state.xy, state.direction.astype(jnp.uint8))
    return jnp.moveaxis(jnp.stack([symbols.kind_of(packed), symbols.colour_of(packed), facing]), 0, -1)


# registration -----------------------------------------------------------------------------------------------------------------


def collector(*, obs: str = "packed", tile_size: int = 8, max_steps: int = 20) -> CollectorEnv:
    """4 rows, 8 columns, 2 resources, 2 goals.

    Args:
      obs: how the image is encoded: packed, symbolic or rgb.
      tile_size: pixels a cell, for rgb.
      max_steps: steps until truncation.
    """
    return _validated(CollectorEnv("Collector-v0", MapLevel(COLLECTOR_MAP), max_steps, obs, tile_size))


def collector_random(
    *, obs: str = "packed", tile_size: int = 8, max_steps: int = 64, size: int = 8, resources: int = 4, walls: int = 12
) -> CollectorEnv:
    """`size` rows and columns, one goal, everything in random places.

    By default the shortest tour takes 21.5 steps on average; the longest of 3000 levels took 47.

    Args:
      obs: how the image is encoded: packed, symbolic or rgb.
      tile_size: pixels a cell, for rgb.
      max_steps: steps until truncation.
      size: rows and columns.
      resources: to collect.
      walls: cells that are walls.
    """
    level = RandomLevel(size, resources, walls)
    level.validate()
    return _validated(CollectorEnv("CollectorRandom-v0", level, max_steps, obs, tile_size))


def _validated(env: CollectorEnv) -> CollectorEnv:
    env.validate()
    return env


ENVS: dict[str, Callable[..., CollectorEnv]] = {
    "Collector-v0": collector,
    "CollectorRandom-v0": collector_random,
}


def make(name: str, **options: object) -> tuple[CollectorEnv, CollectorParams]:
    """Builds an environment and its default params.

    Raises:
      ValueError: an unknown name or option, or a value that does not fit.
    """
    _check_known("environment", name, ENVS)
    known = inspect.signature(ENVS[name]).parameters
    for option in options:
        _check_known(f"{name} option", option, known)
    env = ENVS[name](**options)
    return env, env.default_params


def _check_known(what: str, name: str, known: Mapping[str, object]) -> None:
    if name in known:
        return
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{what} {name!r} is unknown: expected one of {', '.join(known)}{hint}")
