"""Levels with a goal to reach, and at most one locked door in the way."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxagent.envs import language, symbols
from jaxagent.envs.bitboard import below, ranks
from jaxagent.envs.layout import Layout, Rows, choose, choose_direction, columns, is_at, is_empty, point, put, rows, walled
from jaxagent.envs.minigrid.pieces import place

CORNER = (1, 1)


def _room_with_goal(width: int, height: int) -> jax.Array:
    return walled(width, height).at[height - 2, width - 2].set(symbols.GOAL_CELL)


def empty(key: jax.Array, width: int, height: int) -> Layout:
    """A room with the goal in the corner opposite to the agent."""
    del key
    return Layout(_room_with_goal(width, height), point(*CORNER), symbols.RIGHT)


def empty_random(key: jax.Array, width: int, height: int) -> Layout:
    """As `empty`, with the agent anywhere."""
    cell, direction = jax.random.bits(key, (2,))
    grid = _room_with_goal(width, height)
    return Layout(grid, choose(cell, is_empty(grid)), choose_direction(direction))


def four_rooms(key: jax.Array, width: int, height: int) -> Layout:
    """Four rooms joined by a gap in each of the four inner walls; agent and goal anywhere."""
    *gaps, agent_cell, direction, goal_cell = jax.random.bits(key, (7,))
    middle_x, middle_y = width // 2, height // 2
    sizes = jnp.array([middle_y, middle_y, middle_x, middle_x])
    upper, lower, left, right = 1 + below(jnp.stack(gaps), sizes - 1)
    x, y = columns(width, height), rows(width, height)
    inner = (x == middle_x) | (y == middle_y)
    gap_y = (x == middle_x) & ((y == upper) | (y == middle_y + lower))
    gap_x = (y == middle_y) & ((x == left) | (x == middle_x + right))
    grid = jnp.where(inner & ~gap_y & ~gap_x, jnp.uint8(symbols.WALL_CELL), walled(width, height))
    agent = choose(agent_cell, is_empty(grid))
    goal = choose(goal_cell, is_empty(grid) & ~is_at(grid, agent))
    return Layout(put(grid, goal, symbols.GOAL_CELL), agent, choose_direction(direction))


def door_key(key: jax.Array, width: int, height: int) -> Layout:
    """Two rooms with a locked door between them: agent and key to the left, goal to the right."""
    wall, agent_cell, direction, gap, key_cell = jax.random.bits(key, (5,))
    wall_x = 2 + below(wall, width - 4)
    x = columns(width, height)
    grid = jnp.where(x == wall_x, jnp.uint8(symbols.WALL_CELL), _room_with_goal(width, height))
    agent = choose(agent_cell, is_empty(grid) & (x < wall_x))
    door = point(wall_x, 1 + below(gap, height - 3))
    grid = put(grid, door, symbols.symbol(symbols.DOOR_LOCKED, symbols.YELLOW))
    place = choose(key_cell, is_empty(grid) & (x < wall_x) & ~is_at(grid, agent))
    grid = put(grid, place, symbols.symbol(symbols.KEY, symbols.YELLOW))
    return Layout(grid, agent, choose_direction(direction))


def lava_gap(key: jax.Array, width: int, height: int) -> Layout:
    """A wall of lava with one gap between the agent and the goal."""
    gap_x, gap_y = below(jax.random.bits(key, (2,)), jnp.array([width - 4, height - 2])) + jnp.array([2, 1])
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
        lines_x, lines_y = jnp.arange(2, width - 2, 2), jnp.arange(2, height - 2, 2)
        total = lines_x.size + lines_y.size
        which, order, openings = jnp.split(jax.random.bits(key, (total + 2 * self.rivers,)), [total, total + self.rivers])
        chosen = ranks(which) < self.rivers
        chosen_x, chosen_y = chosen[: lines_x.size], chosen[lines_x.size :]
        edges_x, edges_y = _edges(lines_x, chosen_x, width - 1), _edges(lines_y, chosen_y, height - 1)
        x, y = columns(width, height), rows(width, height)
        grid = _room_with_goal(width, height)
        flooded = jnp.isin(x, edges_x[1:]) | jnp.isin(y, edges_y[1:])
        grid = jnp.where(flooded & (grid != symbols.WALL_CELL), jnp.uint8(self.obstacle), grid)

        # a path crosses the rivers in random order, the vertical ones eastward; before each it has reached room (i, j)
        east = ranks(order) < jnp.sum(chosen_x)
        i, j = jnp.cumsum(east) - east, jnp.cumsum(~east) - ~east
        low, high = jnp.where(east, edges_y[j], edges_x[i]), jnp.where(east, edges_y[j + 1], edges_x[i + 1])
        along = low + 1 + below(openings, high - low - 1)
        opening_x, opening_y = jnp.where(east, edges_x[i + 1], along), jnp.where(east, along, edges_y[j + 1])
        grid = grid.at[opening_y, opening_x].set(symbols.EMPTY_CELL)
        return Layout(grid, point(*CORNER), symbols.RIGHT)


@dataclass(frozen=True)
class DistShift:
    """Two strips of lava between the agent and the goal, one along the upper wall and one in another row.

    Attributes:
      lower: the row of the second strip.
    """

    lower: int

    def __call__(self, key: jax.Array, width: int, height: int) -> Layout:
        del key
        x, y = columns(width, height), rows(width, height)
        strips = (x >= 3) & (x < width - 3) & ((y == 1) | (y == self.lower))
        grid = jnp.where(strips, jnp.uint8(symbols.LAVA_CELL), walled(width, height))
        return Layout(put(grid, point(width - 2, 1), symbols.GOAL_CELL), point(*CORNER), symbols.RIGHT)


@dataclass(frozen=True)
class DynamicObstacles:
    """A room with the goal in a corner and blue balls anywhere, which will move.

    Attributes:
      count: how many balls.
      anywhere: whether the agent starts anywhere too, instead of in the corner opposite to the goal.
    """

    count: int
    anywhere: bool = False

    def __call__(self, key: jax.Array, width: int, height: int) -> Layout:
        start_key, balls_key = jax.random.split(key)
        start = (empty_random if self.anywhere else empty)(start_key, width, height)
        balls = jnp.full(self.count, symbols.symbol(symbols.BALL, symbols.BLUE), jnp.uint8)
        allowed = is_empty(start.grid) & ~is_at(start.grid, start.agent)
        grid, xy = place(jax.random.bits(balls_key, (self.count,)), start.grid, balls, allowed)
        return start._replace(grid=grid, rows=Rows(balls, xy))


def locked_room(key: jax.Array, width: int, height: int) -> Layout:
    """Three rooms on each side of a corridor; the goal is in one that is locked, and its key in another one."""
    words = jax.random.bits(key, (14,))
    (locked_word, other_word, agent_cell, direction), shuffle, goal_cell, key_cell = jnp.split(words, [4, 10, 12])
    left, right, pitch = width // 2 - 2, width // 2 + 2, height // 3
    x, y = columns(width, height), rows(width, height)
    across = ((x < left) | (x > right)) & (y % pitch == 0)
    grid = jnp.where((x == left) | (x == right) | across, jnp.uint8(symbols.WALL_CELL), walled(width, height))

    # rooms by number, from the top, the left one before the right one
    room = jnp.arange(6)
    on_right, top = room % 2 == 1, room // 2 * pitch

    def inside(words: jax.Array, room: jax.Array) -> jax.Array:
        corner = point(jnp.where(on_right[room], right, 0), top[room])
        return corner + 1 + below(words, jnp.array([left, pitch]) - 1)

    locked = below(locked_word, 6)
    other = below(other_word, 5)
    other += other >= locked
    colours = ranks(shuffle).astype(jnp.uint8)
    kinds = jnp.where(room == locked, jnp.uint8(symbols.DOOR_LOCKED), jnp.uint8(symbols.DOOR_CLOSED))
    grid = grid.at[top + 3, jnp.where(on_right, right, left)].set(symbols.symbol(kinds, colours))
    grid = put(grid, inside(goal_cell, locked), symbols.GOAL_CELL)
    grid = put(grid, inside(key_cell, other), symbols.symbol(jnp.uint8(symbols.KEY), colours[locked]))
    agent = choose(agent_cell, is_empty(grid) & (x > left) & (x < right))
    leaf = language.leaf(language.UNLOCK_ROOM, 1 + colours[locked], language.KEY, colour_2=1 + colours[other])
    return Layout(grid, agent, choose_direction(direction), language.alone(leaf))
