"""Drawing a level: the locked room, doors, things, the agent.

Letters: `H` height of the world, `R` rooms, `M` walls where doors can be, `D` given doors, `N` things.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagent.envs import bitboard
from jaxagent.envs.rooms.arrays import Arrays, Place, Placing
from jaxagent.envs.rooms.levels import ALL_REACHABLE, BEHIND_LOCK, COLOURS, OUTSIDE_LOCK, SOME_BLOCKED


class Plan(NamedTuple):
    """What a level is drawn from.

    Attributes:
      level: its arrays.
      some: of each array, whether any level of the generator has something other than 0 there. What none has is not traced.
      words: uniform uint32 words, by what is drawn by them; each has one use.
      shared: the shared colours, int32 `[6]`.
    """

    level: Arrays
    some: Arrays
    words: dict[str, jax.Array]
    shared: jax.Array

    def colour(self, number: jax.Array, otherwise: jax.Array) -> jax.Array:
        """The shared colours with these numbers; where that is 0, another colour."""
        return jnp.where(number == 0, otherwise, self.shared[number - 1])


class LockedRoom(NamedTuple):
    exists: jax.Array  # bool
    room: jax.Array  # int32
    wall: jax.Array  # bool [M], where its door is

    @property
    def bit(self) -> jax.Array:
        """The set of it, uint32."""
        return jnp.where(self.exists, jnp.uint32(1) << self.room.astype(jnp.uint32), jnp.uint32(0))


def lock(plan: Plan) -> LockedRoom:
    locking, num_walls = plan.level.locking, plan.level.place.wall_rooms.size
    if not plan.some.locking.chance:
        return LockedRoom(jnp.bool_(False), jnp.int32(0), jnp.zeros(num_walls, bool))
    chance_word, room_word, door_word = plan.words["lock"]
    exists = bitboard.happens(chance_word, locking.chance)
    room = bitboard.draw(room_word, locking.rooms)
    allowed = locking.by_door | (jnp.arange(locking.walls.size) == room)
    wall, room, _ = bitboard.choose(door_word, jnp.where(allowed, locking.walls, jnp.uint32(0)))
    return LockedRoom(exists, room, exists & (jnp.arange(num_walls) == wall))


# doors ------------------------------------------------------------------------------------------------------------------------


class Doors(NamedTuple):
    """Doors, or what could have been one."""

    xy: jax.Array  # int32 [M, 2]
    given: jax.Array  # bool [M], there is a given door or that of the locked room
    added: jax.Array  # bool [M], there is one that connects rooms
    locked: jax.Array  # bool [M]
    colour: jax.Array  # int32 [M]
    connected: jax.Array  # bool, whether rooms that must be connected are

    @property
    def there(self) -> jax.Array:
        return self.given | self.added


def doors(plan: Plan, locked: LockedRoom) -> Doors:
    place, doorways = plan.level.place, plan.level.doorways
    offset = 1 + bitboard.below(plan.words["slots"], place.room_size - 2)
    xy = place.wall_xy + place.wall_step * offset[:, None]
    given, is_locked, colour = locked.wall, locked.wall, jnp.where(locked.wall, plan.shared[0], 0)
    if plan.some.doorways.walls:
        chosen, closed, colours = _given(plan)
        given = given | jnp.any(chosen, axis=0)
        is_locked = is_locked | jnp.any(chosen & ~closed[:, None], axis=0)
        colour = colour + jnp.sum(jnp.where(chosen, colours[:, None], 0), axis=0)
    added, connected = jnp.zeros_like(given), jnp.bool_(True)
    if plan.some.doorways.connect:
        added, connected = _connecting(plan, given | place.wall_open, locked)
        added, connected = added & doorways.connect, connected | ~doorways.connect
        colour = jnp.where(added, _connecting_colours(plan), colour)
    return Doors(xy, given, added, is_locked, colour, connected)


def _given(plan: Plan) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where the given doors are, bool `[D, M]`; which are closed, not locked, bool `[D]`; their colours, int32 `[D]`."""
    doorways, words = plan.level.doorways, plan.words
    rank = bitboard.ranks(words["given_walls"])
    candidate = (doorways.walls[:, None] >> jnp.arange(rank.size, dtype=jnp.uint32)) & 1 != 0
    sooner = jnp.sum(candidate[:, None, :] & (rank < rank[:, None]), axis=-1)
    chosen = candidate & (sooner == doorways.order[:, None])
    closed = jnp.where(bitboard.happens(words["given_states"], 0.5), doorways.may_be_closed, ~doorways.may_be_locked)
    colour = plan.colour(doorways.shared, bitboard.draw(words["given_colours"], doorways.colours))
    return chosen, closed, colour


def _connecting(plan: Plan, ways: jax.Array, locked: LockedRoom) -> tuple[jax.Array, jax.Array]:
    """Adds doors in random order until all rooms are connected, but none to the locked room.

    Args:
      plan: the plan.
      ways: bool `[M]`, where rooms are connected already.
      locked: the locked room.

    Returns:
      Where the new doors are, bool `[M]`, and whether all rooms are connected in the end.
    """
    place, rooms = plan.level.place, jnp.arange(plan.level.locking.walls.size, dtype=jnp.uint32)
    allowed = (place.wall_rooms != 0) & ~ways & (place.wall_rooms & locked.bit == 0)
    order = bitboard.ranks(jnp.where(ways, 0, plan.words["connect"] | 1))  # ways come first
    turn = order == jnp.arange(order.size)[:, None]  # [turn, M]

    def join(reach: jax.Array, wall: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """One wall; `reach` is the set of rooms that each room is connected to, uint32 `[R]`."""
        ends, is_way, allowed = wall
        adds = allowed & (reach[0] != place.rooms)
        touched = reach & ends != 0
        together = jax.lax.reduce_or(jnp.where(touched, reach, jnp.uint32(0)), axes=(0,))
        return jnp.where(touched & (adds | is_way), together, reach), adds

    walls = (
        jnp.sum(jnp.where(turn, place.wall_rooms, 0), axis=1, dtype=jnp.uint32),
        jnp.any(turn & ways, axis=1),
        jnp.any(turn & allowed, axis=1),
    )
    reach, adds = jax.lax.scan(join, jnp.uint32(1) << rooms, walls)
    return jnp.any(turn & adds[:, None], axis=0), reach[0] == place.rooms


def _connecting_colours(plan: Plan) -> jax.Array:
    """int32 `[M]`."""
    words, doorways = plan.words, plan.level.doorways
    if not plan.some.doorways.spares_lock_colour:
        return bitboard.below(words["connect_colours"], len(COLOURS))
    spares = doorways.spares_lock_colour & bitboard.happens(words["spares"][0], 0.5)
    colour = bitboard.below(words["connect_colours"], len(COLOURS) - spares.astype(jnp.int32))
    return colour + (spares & (colour >= plan.shared[0]))


def cells(there: jax.Array, xy: jax.Array, height: int) -> jax.Array:
    """The board of some cells of a list, `there` bool `[n]`, `xy` int32 `[n, 2]`."""
    boards = jax.vmap(bitboard.cell, in_axes=(0, 0, None))(xy[:, 0], xy[:, 1], height)
    return jax.lax.reduce_or(jnp.where(there[:, None], boards, jnp.uint32(0)), axes=(0,))


# things -----------------------------------------------------------------------------------------------------------------------


def room_board(place: Place, room: jax.Array) -> jax.Array:
    """The cells of a room with its walls."""
    row, column = jnp.divmod(room, place.columns)
    pitch = place.room_size - 1
    return bitboard.window(column * pitch, row * pitch, place.room_size, place.room_size, place.floor.size)


def rooms(plan: Plan, locked: LockedRoom) -> tuple[jax.Array, jax.Array]:
    """Draws the rooms of things, int32 `[N]`. Returns them, and which things there are, bool `[N]`."""
    things = plan.level.things
    options = things.rooms
    if plan.some.things.lock:
        options = options & jnp.where(things.lock == BEHIND_LOCK, locked.bit, options)
        options = options & ~jnp.where(things.lock == OUTSIDE_LOCK, locked.bit, jnp.uint32(0))
    exists = (things.looks != 0) & (options != 0) & (locked.exists | ~things.if_locked)
    words = plan.words["thing_rooms"]
    return bitboard.draw(words, options) if words.size else jnp.zeros(options.shape, jnp.int32), exists


def looks(plan: Plan, exists: jax.Array) -> jax.Array:
    """What things look like, int32 `[N]`, as `arrays.look`."""
    things, words = plan.level.things, plan.words["looks"]
    options = things.looks << plan.colour(things.shared, jnp.int32(0)).astype(jnp.uint32)
    if not plan.some.things.unique:
        return bitboard.draw(words, options)

    def draw(seen: jax.Array, thing: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        word, options, unique, counts = thing
        look = bitboard.draw(word, options & ~jnp.where(unique, seen, jnp.uint32(0)))
        return seen | jnp.where(counts, jnp.uint32(1) << look.astype(jnp.uint32), jnp.uint32(0)), look

    counts = exists & ~things.inside & ~things.beside
    return jax.lax.scan(draw, jnp.uint32(0), (words, options, things.unique, counts))[1]


class Spot(NamedTuple):
    """Where a thing may be; leaves `[N, ...]`."""

    word: jax.Array  # uint32
    room: jax.Array  # int32
    free: jax.Array  # bool, whether it is placed anywhere in the room
    beside: jax.Array  # bool, or is in a cell that is given
    cell: jax.Array  # int32 [2]


def spots(plan: Plan, rooms: jax.Array, exists: jax.Array, at: Doors) -> Spot:
    things = plan.level.things
    cell = jnp.zeros(things.offset.shape, jnp.int32)
    if plan.some.things.beside:
        cell = at.xy[things.wall] + things.offset
    beside = exists & things.beside
    return Spot(plan.words["spots"], rooms, exists & ~things.inside & ~beside, beside, cell)


def put(plan: Plan, spots: Spot, empty: jax.Array, agent: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Places things one after the other, none on or beside the agent's cell (int32 `[2]`).

    Returns:
      The cells that are empty then; where the things are, int32 `[n, 2]`; whether there was a cell for each.
    """
    place, height = plan.level.place, empty.size
    far = ~bitboard.grow(bitboard.cell(agent[0], agent[1], height))

    def step(empty: jax.Array, spot: Spot) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        options = jnp.where(spot.free, empty & far & room_board(place, spot.room), jnp.uint32(0))
        x, y, found = bitboard.choose(spot.word, options)
        xy = jnp.stack([x, y])
        if plan.some.things.beside:
            xy = jnp.where(spot.beside, spot.cell, xy)
        return empty & ~bitboard.cell(xy[0], xy[1], height), (xy, found | ~spot.free)

    empty, (xy, found) = jax.lax.scan(step, empty, spots)
    return empty, xy, jnp.all(found)


def buried(things: Placing, xy: jax.Array) -> jax.Array:
    """Which things lie where another was put later, bool `[N]`."""
    index = jnp.arange(xy.shape[0])
    same = jnp.all(xy == xy[:, None], axis=-1)
    return jnp.any(same & things.beside & (index > index[:, None]), axis=1)


# the agent --------------------------------------------------------------------------------------------------------------------


class Pose(NamedTuple):
    xy: jax.Array  # int32 [2]
    direction: jax.Array  # int32
    room: jax.Array  # int32
    found: jax.Array  # bool, whether there was a place


def agent(plan: Plan, locked: LockedRoom, empty: jax.Array, walls: jax.Array) -> Pose:
    """Draws a pose on an empty cell that looks at an empty cell or a wall, uniformly over those of a room."""
    start, room = plan.level.start, jnp.int32(0)
    if plan.words["agent_room"].size:
        rooms = start.rooms & ~jnp.where(start.outside_lock, locked.bit, jnp.uint32(0))
        room = bitboard.draw(plan.words["agent_room"][0], rooms)
    options, clear = empty & room_board(plan.level.place, room), empty | walls
    poses = [options & bitboard.shift(clear, (direction + 2) % 4) for direction in range(4)]
    x, row, found = bitboard.choose(plan.words["pose"][0], jnp.concatenate(poses))
    direction, y = jnp.divmod(row, empty.size)
    return Pose(jnp.stack([x, y]), direction, room, found)


def passes(plan: Plan, agent: Pose, empty: jax.Array, doors: jax.Array) -> jax.Array:
    """Whether the ways to all objects are as the level's check wants; `doors` are the cells of all doors."""
    if not plan.some.start.check:
        return jnp.bool_(True)
    reached = bitboard.flood(bitboard.cell(agent.xy[0], agent.xy[1], empty.size), empty | doors)
    objects = plan.level.place.floor & ~empty | doors
    reachable = jnp.all(objects & ~bitboard.grow(reached) == 0)
    check = plan.level.start.check
    return jnp.where(check == ALL_REACHABLE, reachable, (check != SOME_BLOCKED) | ~reachable)
