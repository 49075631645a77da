"""MiniGrid's levels (Chevalier-Boisvert et al., 2023), equal to Farama's `minigrid` 3.2.0 in rules and in distribution."""

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxagent.envs import symbols
from jaxagent.envs.grid import Generator, GridEnv, GridParams, Level
from jaxagent.envs.layout import Layout, choose, choose_direction, columns, is_at, is_empty, point, put, rows, walled

CORNER = (1, 1)


def _room_with_goal(width: int, height: int) -> jax.Array:
    return walled(width, height).at[height - 2, width - 2].set(symbols.GOAL_CELL)


def empty(key: jax.Array, width: int, height: int) -> Layout:
    """A room with the goal in the corner opposite to the agent."""
    del key
    return Layout(_room_with_goal(width, height), point(*CORNER), symbols.RIGHT)


def empty_random(key: jax.Array, width: int, height: int) -> Layout:
    """As `empty`, with the agent anywhere."""
    agent_key, direction_key = jax.random.split(key)
    grid = _room_with_goal(width, height)
    return Layout(grid, choose(agent_key, is_empty(grid)), choose_direction(direction_key))


def four_rooms(key: jax.Array, width: int, height: int) -> Layout:
    """Four rooms joined by a gap in each of the four inner walls; agent and goal anywhere."""
    gaps_key, agent_key, direction_key, goal_key = jax.random.split(key, 4)
    middle_x, middle_y = width // 2, height // 2
    upper, lower, left, right = jax.random.randint(gaps_key, (4,), 1, jnp.array([middle_y, middle_y, middle_x, middle_x]))
    x, y = columns(width, height), rows(width, height)
    inner = (x == middle_x) | (y == middle_y)
    gap_y = (x == middle_x) & ((y == upper) | (y == middle_y + lower))
    gap_x = (y == middle_y) & ((x == left) | (x == middle_x + right))
    grid = jnp.where(inner & ~gap_y & ~gap_x, jnp.uint8(symbols.WALL_CELL), walled(width, height))
    agent = choose(agent_key, is_empty(grid))
    goal = choose(goal_key, is_empty(grid) & ~is_at(grid, agent))
    return Layout(put(grid, goal, symbols.GOAL_CELL), agent, choose_direction(direction_key))


def door_key(key: jax.Array, width: int, height: int) -> Layout:
    """Two rooms with a locked door between them: agent and key to the left, goal to the right."""
    wall_key, agent_key, direction_key, gap_key, key_key = jax.random.split(key, 5)
    wall_x = jax.random.randint(wall_key, (), 2, width - 2)
    x = columns(width, height)
    grid = jnp.where(x == wall_x, jnp.uint8(symbols.WALL_CELL), _room_with_goal(width, height))
    agent = choose(agent_key, is_empty(grid) & (x < wall_x))
    door_y = jax.random.randint(gap_key, (), 1, height - 2)
    grid = put(grid, point(wall_x, door_y), symbols.symbol(symbols.DOOR_LOCKED, symbols.YELLOW))
    place = choose(key_key, is_empty(grid) & (x < wall_x) & ~is_at(grid, agent))
    grid = put(grid, place, symbols.symbol(symbols.KEY, symbols.YELLOW))
    return Layout(grid, agent, choose_direction(direction_key))


def lava_gap(key: jax.Array, width: int, height: int) -> Layout:
    """A wall of lava with one gap between the agent and the goal."""
    x_key, y_key = jax.random.split(key)
    gap_x = jax.random.randint(x_key, (), 2, width - 2)
    gap_y = jax.random.randint(y_key, (), 1, height - 1)
    grid = _room_with_goal(width, height)
    lava = (columns(width, height) == gap_x) & (grid != symbols.WALL_CELL) & (rows(width, height) != gap_y)
    return Layout(jnp.where(lava, jnp.uint8(symbols.LAVA_CELL), grid), point(*CORNER), symbols.RIGHT)


def _edges(lines: jax.Array, chosen: jax.Array, last: int) -> jax.Array:
    """Sorted walls and rivers along one axis, int32 `[lines + 2]`; the outer wall takes the places of lines not chosen."""
    return jnp.concatenate([jnp.array([0]), jnp.sort(jnp.where(chosen, lines, last)), jnp.array([last])])


@dataclass(frozen=True)
class Crossing:
    """Rivers of an obstacle across the whole room, each with one opening along a path from the agent to the goal.

    Attributes:
      rivers: how many, horizontal and vertical together.
      obstacle: their symbol.
    """

    rivers: int
    obstacle: int

    def __call__(self, key: jax.Array, width: int, height: int) -> Layout:
        rivers_key, path_key, openings_key = jax.random.split(key, 3)
        lines_x, lines_y = jnp.arange(2, width - 2, 2), jnp.arange(2, height - 2, 2)
        total = lines_x.size + lines_y.size
        chosen = jax.random.permutation(rivers_key, total) < self.rivers
        chosen_x, chosen_y = chosen[: lines_x.size], chosen[lines_x.size :]
        edges_x, edges_y = _edges(lines_x, chosen_x, width - 1), _edges(lines_y, chosen_y, height - 1)
        x, y = columns(width, height), rows(width, height)
        grid = _room_with_goal(width, height)
        flooded = jnp.isin(x, edges_x[1:]) | jnp.isin(y, edges_y[1:])
        grid = jnp.where(flooded & (grid != symbols.WALL_CELL), jnp.uint8(self.obstacle), grid)

        # a path crosses the rivers in random order, the vertical ones eastward; before each it has reached room (i, j)
        east = jax.random.permutation(path_key, self.rivers) < jnp.sum(chosen_x)
        i, j = jnp.cumsum(east) - east, jnp.cumsum(~east) - ~east
        low, high = jnp.where(east, edges_y[j], edges_x[i]), jnp.where(east, edges_y[j + 1], edges_x[i + 1])
        along = jax.random.randint(openings_key, (self.rivers,), low + 1, high)
        opening_x, opening_y = jnp.where(east, edges_x[i + 1], along), jnp.where(east, along, edges_y[j + 1])
        grid = grid.at[opening_y, opening_x].set(symbols.EMPTY_CELL)
        return Layout(grid, point(*CORNER), symbols.RIGHT)


_GREEN_SQUARE = ("get to the green goal square",)
_GOAL = ("reach the goal",)
_KEY = ("use the key to open the door and then get to the goal",)
_LAVA = ("avoid the lava and get to the green goal square",)
_OPENING = ("find the opening and get to the green goal square",)


def _empty(generate: Generator, side: int) -> Level:
    return Level(generate, (side, side), 4 * side**2, _GREEN_SQUARE, see_through_walls=True)


def _door_key(side: int) -> Level:
    return Level(door_key, (side, side), 10 * side**2, _KEY)


def _lava_gap(side: int) -> Level:
    return Level(lava_gap, (side, side), 4 * side**2, _LAVA)


def _lava_crossing(side: int, rivers: int) -> Level:
    return Level(Crossing(rivers, symbols.LAVA_CELL), (side, side), 4 * side**2, _LAVA)


def _simple_crossing(side: int, rivers: int) -> Level:
    return Level(Crossing(rivers, symbols.WALL_CELL), (side, side), 4 * side**2, _OPENING)


ENVS: dict[str, Level] = {
    "MiniGrid-DoorKey-5x5-v0": _door_key(5),
    "MiniGrid-DoorKey-6x6-v0": _door_key(6),
    "MiniGrid-DoorKey-8x8-v0": _door_key(8),
    "MiniGrid-DoorKey-16x16-v0": _door_key(16),
    "MiniGrid-Empty-5x5-v0": _empty(empty, 5),
    "MiniGrid-Empty-6x6-v0": _empty(empty, 6),
    "MiniGrid-Empty-8x8-v0": _empty(empty, 8),
    "MiniGrid-Empty-16x16-v0": _empty(empty, 16),
    "MiniGrid-Empty-Random-5x5-v0": _empty(empty_random, 5),
    "MiniGrid-Empty-Random-6x6-v0": _empty(empty_random, 6),
    "MiniGrid-FourRooms-v0": Level(four_rooms, (19, 19), 100, _GOAL),
    "MiniGrid-LavaCrossingS9N1-v0": _lava_crossing(9, 1),
    "MiniGrid-LavaCrossingS9N2-v0": _lava_crossing(9, 2),
    "MiniGrid-LavaCrossingS9N3-v0": _lava_crossing(9, 3),
    "MiniGrid-LavaCrossingS11N5-v0": _lava_crossing(11, 5),
    "MiniGrid-LavaGapS5-v0": _lava_gap(5),
    "MiniGrid-LavaGapS6-v0": _lava_gap(6),
    "MiniGrid-LavaGapS7-v0": _lava_gap(7),
    "MiniGrid-SimpleCrossingS9N1-v0": _simple_crossing(9, 1),
    "MiniGrid-SimpleCrossingS9N2-v0": _simple_crossing(9, 2),
    "MiniGrid-SimpleCrossingS9N3-v0": _simple_crossing(9, 3),
    "MiniGrid-SimpleCrossingS11N5-v0": _simple_crossing(11, 5),
}


def _nearest(name: str, known: Iterable[str]) -> str:
    return ", ".join(difflib.get_close_matches(name, known, cutoff=0.0))


def make(name: str, *, obs: str = "packed", max_steps: int | None = None) -> tuple[GridEnv, GridParams]:
    """Builds a registered level.

    Args:
      name: a key of `ENVS`.
      obs: how `image` is encoded: see `GridEnv`.
      max_steps: steps until truncation, instead of the level's own.

    Raises:
      ValueError: an unknown name or encoding, or `max_steps` below 1.
    """
    if name not in ENVS:
        raise ValueError(f"name: expected a MiniGrid level, got {name!r}; nearest: {_nearest(name, ENVS)}")
    env = GridEnv(name, ENVS[name], obs)
    if max_steps is not None:
        env = dataclasses.replace(env, level=dataclasses.replace(env.level, max_steps=max_steps))
    env.validate()
    return env, env.default_params
