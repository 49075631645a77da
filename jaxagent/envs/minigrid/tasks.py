"""Levels whose success is a rule of their own: objects to find, fetch, match or put down, and doors to open in order."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxagent.envs import language, symbols
from jaxagent.envs.bitboard import below, ranks
from jaxagent.envs.layout import Layout, Rows, choose, choose_direction, columns, is_at, is_empty, point, rows, walled
from jaxagent.envs.minigrid.pieces import NUM_COLOURS, NUM_THINGS, box, colour_word, kind_word, place, thing

# bits of `Layout.members`
FIRST, SECOND = 1, 2


@dataclass(frozen=True)
class Fetch:
    """Keys and balls in a room; one that is like a drawn one must be picked up, and no other.

    Attributes:
      count: how many, three at most.
      solvable: whether to reject the levels where others wall in the agent, or all that it should pick up.
    """

    count: int
    solvable: bool = False

    def __call__(self, key: jax.Array, width: int, height: int) -> Layout:
        words = jax.random.bits(key, (4 + 2 * self.count,))
        (agent_cell, direction, target_word, verb), which, cells = jnp.split(words, [4, 4 + self.count])
        things = thing(below(which, 2 * NUM_COLOURS))
        grid = walled(width, height)
        grid, xy = place(cells, grid, things, is_empty(grid))
        agent = choose(agent_cell, is_empty(grid))
        target = things[below(target_word, self.count)]
        leaf = language.leaf(language.GET + below(verb, 5), colour_word(target), kind_word(target))
        wanted = things == target
        return Layout(
            grid,
            agent,
            choose_direction(direction),
            language.alone(leaf),
            Rows(things, xy),
            jnp.where(wanted, jnp.uint8(FIRST), jnp.uint8(0)),
            accepted=_reachable(grid, agent, xy, wanted) if self.solvable else True,
        )


def _reachable(grid: jax.Array, agent: jax.Array, xy: jax.Array, wanted: jax.Array) -> jax.Array:
    """Whether the agent can face something `wanted`, bool `[n]`, where at most three objects, at `xy`, are in a room.

    So few can wall in no more than the cell in a corner, or cells that all of them lie beside.
    """

    def has_way_out(xy: jax.Array) -> jax.Array:
        x, y = jnp.moveaxis(xy[..., None, :] + symbols.DIRECTION_XY, -1, 0)
        return jnp.any(grid[y, x] == symbols.EMPTY_CELL, axis=-1)

    beside = jnp.sum(jnp.abs(xy - agent), axis=1) == 1
    return jnp.any(wanted & (beside | has_way_out(agent) & has_way_out(xy)))


def go_to_door(key: jax.Array, width: int, height: int) -> Layout:
    """A room of random size in the corner of an otherwise empty world, with a door of another colour in each wall."""
    words = jax.random.bits(key, (15,))
    (agent_cell, direction, target_word), size, along, shuffle = jnp.split(words, [3, 5, 9])
    right, bottom = 4 + below(size, jnp.array([width, height]) - 4)
    walls = box(width, height, 0, 0, right, bottom)
    grid = jnp.where(walls, jnp.uint8(symbols.WALL_CELL), jnp.uint8(symbols.EMPTY_CELL))
    upper, lower, left_y, right_y = 2 + below(along, jnp.stack([right, right, bottom, bottom]) - 3)
    doors_x = jnp.stack([upper, lower, jnp.zeros_like(right), right])
    doors_y = jnp.stack([jnp.zeros_like(bottom), bottom, left_y, right_y])
    doors = symbols.symbol(jnp.uint8(symbols.DOOR_CLOSED), ranks(shuffle)[:4].astype(jnp.uint8))
    grid = grid.at[doors_y, doors_x].set(doors)
    agent = choose(agent_cell, is_empty(grid) & (columns(width, height) < right) & (rows(width, height) < bottom))
    target = below(target_word, 4)[None]
    row = Rows(doors[target], jnp.stack([doors_x, doors_y], axis=1)[target])
    leaf = language.leaf(language.STOP_NEXT_TO, colour_word(row.symbol[0]), language.DOOR)
    return Layout(grid, agent, choose_direction(direction), language.alone(leaf), row, jnp.array([FIRST], jnp.uint8))


@dataclass(frozen=True)
class GoToObject:
    """Different objects in a room, one of which is the target.

    Attributes:
      count: how many.
    """

    count: int

    def __call__(self, key: jax.Array, width: int, height: int) -> Layout:
        words = jax.random.bits(key, (3 + NUM_THINGS + self.count,))
        (agent_cell, direction, target_word), shuffle, cells = jnp.split(words, [3, 3 + NUM_THINGS])
        things = thing(ranks(shuffle)[: self.count])
        grid = walled(width, height)
        grid, xy = place(cells, grid, things, is_empty(grid))
        agent = choose(agent_cell, is_empty(grid))
        target = below(target_word, self.count)[None]
        row = Rows(things[target], xy[target])
        leaf = language.leaf(language.STOP_NEXT_TO, colour_word(row.symbol[0]), kind_word(row.symbol[0]))
        return Layout(grid, agent, choose_direction(direction), language.alone(leaf), row, jnp.array([FIRST], jnp.uint8))


@dataclass(frozen=True)
class PutNear:
    """Different objects in a room, none beside another; one must be put near another one.

    Attributes:
      count: how many.
    """

    count: int

    def __call__(self, key: jax.Array, width: int, height: int) -> Layout:
        words = jax.random.bits(key, (2 + NUM_THINGS + 2 * self.count,))
        (agent_cell, direction), shuffle, cells, roles = jnp.split(words, [2, 2 + NUM_THINGS, 2 + NUM_THINGS + self.count])
        things = thing(ranks(shuffle)[: self.count])
        grid = walled(width, height)
        grid, xy = place(cells, grid, things, is_empty(grid), apart=2)
        agent = choose(agent_cell, is_empty(grid))
        pair = ranks(roles)[:2]
        moved_and_target = Rows(things[pair], xy[pair])
        (colour, colour_2), (kind, kind_2) = colour_word(things[pair]), kind_word(things[pair])
        leaf = language.leaf(language.PUT_NEAR, colour, kind, colour_2=colour_2, kind_2=kind_2)
        members = jnp.array([FIRST, SECOND], jnp.uint8)
        return Layout(grid, agent, choose_direction(direction), language.alone(leaf), moved_and_target, members)


def red_blue_doors(key: jax.Array, width: int, height: int) -> Layout:
    """A square room in the middle with a red door on its left and a blue one on its right."""
    agent_cell, direction, *along = jax.random.bits(key, (4,))
    left, right = width // 4, width // 4 + height - 1
    x = columns(width, height)
    inner = box(width, height, left, 0, right, height - 1)
    grid = jnp.where(inner, jnp.uint8(symbols.WALL_CELL), walled(width, height))
    agent = choose(agent_cell, is_empty(grid) & (x > left) & (x < right))
    doors_x, doors_y = jnp.array([left, right]), 1 + below(jnp.stack(along), height - 2)
    doors = symbols.symbol(jnp.uint8(symbols.DOOR_CLOSED), jnp.array([symbols.RED, symbols.BLUE], jnp.uint8))
    grid = grid.at[doors_y, doors_x].set(doors)
    pair = Rows(doors, jnp.stack([doors_x, doors_y], axis=1))
    return Layout(grid, agent, choose_direction(direction), rows=pair, members=jnp.array([FIRST, SECOND], jnp.uint8))


@dataclass(frozen=True)
class Memory:
    """A room with a green key or ball, and a corridor whose end forks to a key and a ball: the branch of its like succeeds.

    Attributes:
      random_length: whether the corridor ends anywhere, instead of before the right wall.
    """

    random_length: bool = False

    def __call__(self, key: jax.Array, width: int, height: int) -> Layout:
        length, start, *which = jax.random.bits(key, (4,))
        end = 4 + below(length, width - 6) if self.random_length else jnp.int32(width - 3)
        middle = height // 2
        x, y = columns(width, height), rows(width, height)
        off = jnp.abs(y - middle)
        room = (x >= 1) & (x <= 4) & (off == 2)
        corridor = (x >= 4) & (x < end) & (off == 1)
        fork = (x == end) & (off > 0) | (x == end + 2)
        grid = jnp.where(room | corridor | fork, jnp.uint8(symbols.WALL_CELL), walled(width, height))
        shown, upper = below(jnp.stack(which), 2)  # 0 for a key, 1 for a ball
        green = thing(jnp.stack([shown, upper, 1 - upper]) * NUM_COLOURS + symbols.GREEN)
        grid = grid.at[middle + jnp.array([-1, -2, 2]), jnp.stack([jnp.int32(1), end + 1, end + 1])].set(green)
        # no objects, but the two cells where the episode ends: the one to reach, then the one to avoid
        ends = jnp.stack([point(end + 1, middle - 1), point(end + 1, middle + 1)])
        cells = Rows(jnp.full(2, symbols.EMPTY_CELL, jnp.uint8), jnp.where(shown == upper, ends, ends[::-1]))
        agent = point(1 + below(start, end), middle)
        return Layout(grid, agent, symbols.RIGHT, rows=cells, members=jnp.array([FIRST, SECOND], jnp.uint8))


def playground(key: jax.Array, width: int, height: int) -> Layout:
    """Nine rooms, all neighbours joined by a door, with twelve objects anywhere."""
    (agent_cell, direction), *words = jnp.split(jax.random.bits(key, (50,)), [2, 14, 26, 38])
    along, colours, which, cells = words
    pitch_x, pitch_y = width // 3, height // 3
    x, y = columns(width, height), rows(width, height)
    inner = (x == pitch_x) | (x == 2 * pitch_x) | (y == pitch_y) | (y == 2 * pitch_y)
    grid = jnp.where(inner, jnp.uint8(symbols.WALL_CELL), walled(width, height))
    # six doors in walls on the right of a room, and six below one
    line, room = jnp.divmod(jnp.arange(6), 3)
    right_y, lower_x = 1 + below(along[:6], pitch_y - 2), 1 + below(along[6:], pitch_x - 2)
    doors_x = jnp.concatenate([(line + 1) * pitch_x, room * pitch_x + lower_x])
    doors_y = jnp.concatenate([room * pitch_y + right_y, (line + 1) * pitch_y])
    doors = symbols.symbol(jnp.uint8(symbols.DOOR_CLOSED), below(colours, NUM_COLOURS).astype(jnp.uint8))
    grid = grid.at[doors_y, doors_x].set(doors)
    agent = choose(agent_cell, is_empty(grid))
    things = thing(below(which, NUM_THINGS))
    grid, _ = place(cells, grid, things, is_empty(grid) & ~is_at(grid, agent))
    return Layout(grid, agent, choose_direction(direction))
