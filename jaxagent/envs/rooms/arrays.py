"""Levels of rooms as arrays, all levels of one generator in one shape.

Sets of rooms, walls, colours and things are bit masks, uint32; so is what a thing can be, by `look`.

Letters: `H` height of the world, `L` levels, `R` rooms, `M` walls where doors can be, `D` given doors, `N` things, `T` targets.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxagent.envs import symbols
from jaxagent.envs.rooms.levels import (
    KINDS,
    Colours,
    Command,
    Grammar,
    Lock,
    Room,
    RoomLevel,
    Shared,
    Target,
    Things,
    Wall,
    beyond,
    canonical,
)
from jaxagent.envs.symbols import DIRECTION_XY

NOTHING_INSIDE = -1


class Place(NamedTuple):
    """Rooms and the walls between them."""

    room_size: Any  # int32
    columns: Any  # int32
    rooms: Any  # uint32, all of them
    start: Any  # int32 [2], the middle of the middle room, where the agent is before it is placed
    floor: Any  # uint32 [H], cells without a wall
    walls: Any  # uint32 [H], cells with one
    openings: Any  # uint32 [H], cells whose wall vanishes in the end
    wall_xy: Any  # int32 [M, 2], the cell before the first where a door can be
    wall_step: Any  # int32 [M, 2], from there to the next
    wall_rooms: Any  # uint32 [M], the two rooms; 0 for no wall
    wall_open: Any  # bool [M], the wall is not there


class Locking(NamedTuple):
    rooms: Any  # uint32
    walls: Any  # uint32 [R], where the door of each room can be
    by_door: Any  # bool
    chance: Any  # float32


class Doorways(NamedTuple):
    """Given doors, and those that connect rooms."""

    walls: Any  # uint32 [D], where it can be
    order: Any  # int32 [D], it is in the n-th of these walls, in random order
    colours: Any  # uint32 [D]
    shared: Any  # int32 [D], number of a shared colour from 1 on, or 0
    may_be_closed: Any  # bool [D], as opposed to locked
    may_be_locked: Any  # bool [D]
    connect: Any  # bool
    spares_lock_colour: Any  # bool
    open: Any  # bool


class Placing(NamedTuple):
    """Things; leaves `[N, ...]`. What a level does not have has nothing that it could look like."""

    looks: Any  # uint32, what it can be; if it has a shared colour: in colour 0
    if_locked: Any  # bool
    shared: Any  # int32, number of a shared colour from 1 on, or 0
    unique: Any  # bool
    inside: Any  # bool, in the box before
    contents: Any  # int8, the thing inside, or NOTHING_INSIDE
    rooms: Any  # uint32
    lock: Any  # int32, ANYWHERE, BEHIND_LOCK or OUTSIDE_LOCK
    beside: Any  # bool
    wall: Any  # int32, the wall that it is in front of
    offset: Any  # int32 [2], from the door in that wall


class Start(NamedTuple):
    """The agent, and the check."""

    rooms: Any  # uint32
    outside_lock: Any  # bool
    when: Any  # int32
    check: Any  # int32


class Commanding(NamedTuple):
    things: Any  # uint32 [T]
    doors: Any  # uint32 [T]
    locked: Any  # bool [T], whether only locked doors are meant
    verbs: Any  # uint32
    orders: Any  # uint32
    by: Any  # int32 [3], ways to describe a target
    num_by: Any  # int32, how many of these there are
    swaps: Any  # bool
    strict: Any  # uint8
    walls_match: Any  # bool
    at_start: Any  # bool, whether the agent holds the first target from the start
    at_first_action: Any  # bool, or from its first action


class Generating(NamedTuple):
    """The grammar."""

    used: Any  # bool; if not, a command is
    verbs: Any  # uint32
    forms: Any  # uint32
    places: Any  # bool
    outside_lock: Any  # bool
    spares_keys: Any  # bool


class Limits(NamedTuple):
    fixed: Any  # int32, steps until truncation, or 0
    per_place: Any  # int32, steps for each place that the agent is sent to


class Arrays(NamedTuple):
    place: Place
    locking: Locking
    doorways: Doorways
    things: Placing  # the early ones, then the late ones
    start: Start
    command: Commanding
    grammar: Generating
    limits: Limits


@dataclass(frozen=True)
class Shape:
    """Sizes that several levels share."""

    height: int  # H
    rooms: int  # R
    walls: int  # M
    doors: int  # D
    early: int  # things before the check
    late: int  # and after it
    targets: tuple[int, ...]  # [T], descriptions that commands fill, as numbered in a mission: two for each of four leaves

    @property
    def things(self) -> int:
        """N."""
        return self.early + self.late

    @property
    def parts(self) -> tuple[slice, slice]:
        """The early and the late things."""
        return slice(0, self.early), slice(self.early, self.things)

    @classmethod
    def of(cls, levels: tuple[RoomLevel, ...], height: int) -> "Shape":
        return cls(
            height=height,
            rooms=max(len(level.rooms) for level in levels),
            walls=max(len(level.walls) for level in levels),
            doors=max(sum(doors.count for doors in level.doors) for level in levels),
            early=max(_num_rows(level.things) for level in levels),
            late=max(_num_rows(level.late) for level in levels),
            targets=tuple(sorted({slot for level in levels for slot in _targets(level)})),
        )


def stacked(levels: tuple[RoomLevel, ...], shape: Shape) -> Arrays:
    """NumPy leaves `[L, ...]`."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(_arrays(level, shape) for level in levels))


def _arrays(level: RoomLevel, shape: Shape) -> Arrays:
    return Arrays(
        place=_place(level, shape),
        locking=_locking(level, shape),
        doorways=_doorways(level, shape),
        things=_placing(level, shape),
        start=Start(
            rooms=_rooms(level, level.agent.rooms),
            outside_lock=np.bool_(level.agent.outside_lock),
            when=np.int32(level.agent.when),
            check=np.int32(level.check),
        ),
        command=_commanding(level, shape),
        grammar=_generating(level),
        limits=Limits(np.int32(level.fixed_steps or 0), np.int32(level.steps_a_place)),
    )


def _bits(members: Iterable[int]) -> np.uint32:
    return np.uint32(sum(1 << member for member in set(members)))


def _padded(values: Iterable[Any], length: int, dtype: Any) -> np.ndarray:
    """One-dimensional, with zeros at the end."""
    values = list(values)
    return np.array(values + [0] * (length - len(values)), dtype)


def _rooms(level: RoomLevel, rooms: Iterable[Room] | None) -> np.uint32:
    """Numbers of some rooms, or of all."""
    return _bits(map(level.rooms.index, level.rooms if rooms is None else rooms))


def _walls(level: RoomLevel, walls: Iterable[Wall] | None) -> np.uint32:
    """Numbers of some walls, or of all."""
    return _bits(map(level.walls.index, level.walls if walls is None else map(canonical, walls)))


# rooms, walls, doors ----------------------------------------------------------------------------------------------------------


def _place(level: RoomLevel, shape: Shape) -> Place:
    pitch = level.room_size - 1
    width, height = level.size
    floor = (np.arange(height) % pitch != 0)[:, None] & (np.arange(width) % pitch != 0)
    openings = np.zeros_like(floor)
    for wall in level.openings:
        first, step = _door_cells(level, canonical(wall))
        for offset in range(1, pitch):
            x, y = first + offset * step
            openings[y, x] = True
    floor |= openings & (not level.openings_last)
    lines = np.array([_door_cells(level, wall) for wall in level.walls], np.int32).reshape(-1, 2, 2)
    lines = np.pad(lines, ((0, shape.walls - len(lines)), (0, 0), (0, 0)))
    middle = np.array([level.columns // 2, level.rows // 2])
    opened = set(map(canonical, level.openings))
    return Place(
        room_size=np.int32(level.room_size),
        columns=np.int32(level.columns),
        rooms=_rooms(level, None),
        start=(middle * pitch + level.room_size // 2).astype(np.int32),
        floor=_board(floor, shape.height),
        walls=_board(~floor, shape.height),
        openings=_board(openings, shape.height),
        wall_xy=lines[:, 0],
        wall_step=lines[:, 1],
        wall_rooms=_padded((_rooms(level, (wall[0], beyond(wall))) for wall in level.walls), shape.walls, np.uint32),
        wall_open=_padded((wall in opened for wall in level.walls), shape.walls, bool),
    )


def _door_cells(level: RoomLevel, wall: Wall) -> tuple[np.ndarray, np.ndarray]:
    """The cell before the first in which a wall's door can be, and the step to the next, as `(x, y)`."""
    room, side = wall
    step = DIRECTION_XY[side]
    return (np.array(room) + step) * (level.room_size - 1), step[::-1]


def _board(mask: np.ndarray, height: int) -> np.ndarray:
    """bool `[h, w]` as a board of `height` rows."""
    words = (mask.astype(np.uint32) << np.arange(mask.shape[1], dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    return _padded(words, height, np.uint32)


def _locking(level: RoomLevel, shape: Shape) -> Locking:
    lock = level.lock or Lock(chance=0.0)
    rooms = (level.rooms if lock.rooms is None else lock.rooms) if level.lock else ()
    walls = [_walls(level, level.walls_of([room], lock.sides)) if room in rooms else 0 for room in level.rooms]
    return Locking(
        rooms=_rooms(level, rooms),
        walls=_padded(walls, shape.rooms, np.uint32),
        by_door=np.bool_(lock.by_door),
        chance=np.float32(lock.chance),
    )


def _doorways(level: RoomLevel, shape: Shape) -> Doorways:
    doors = [(group, n) for group in level.doors for n in range(group.count)]
    colours = [_colours(group.colours, n) for group, n in doors]
    return Doorways(
        walls=_padded((_walls(level, group.walls) for group, _ in doors), shape.doors, np.uint32),
        order=_padded((n for _, n in doors), shape.doors, np.int32),
        colours=_padded((own for own, _ in colours), shape.doors, np.uint32),
        shared=_padded((shared for _, shared in colours), shape.doors, np.int32),
        may_be_closed=_padded((group.locked is not True for group, _ in doors), shape.doors, bool),
        may_be_locked=_padded((group.locked is not False for group, _ in doors), shape.doors, bool),
        connect=np.bool_(level.connect),
        spares_lock_colour=np.bool_(level.spares_lock_colour),
        open=np.bool_(level.doors_open),
    )


def _colours(colours: Colours, number: int) -> tuple[np.uint32, int]:
    """The colours to draw from, and the number of the shared colour instead, of the `number`-th of several doors."""
    return (np.uint32(0), 1 + colours.number + number) if isinstance(colours, Shared) else (_bits(colours), 0)


# things -----------------------------------------------------------------------------------------------------------------------


def _placing(level: RoomLevel, shape: Shape) -> Placing:
    early, late = _rows(level, level.things, 0), _rows(level, level.late, shape.early)
    none = _row(level, Things(kinds=()))
    rows = [*_filled(early, none, shape.early), *_filled(late, none, shape.late)]
    columns = zip(*rows, none, strict=True)  # one row at least, for the types
    return Placing(*(np.array(column)[:-1] for column in columns))


def _filled(rows: Iterable[Placing], filler: Placing, length: int) -> Iterator[Placing]:
    return itertools.islice(itertools.chain(rows, itertools.repeat(filler)), length)


def _num_rows(groups: Iterable[Things]) -> int:
    return sum(group.count * (1 if group.key_inside is None else 2) for group in groups)


def _rows(level: RoomLevel, groups: Iterable[Things], first: int) -> Iterator[Placing]:
    """The things of some groups one by one; the number of the first is given."""
    number = itertools.count(first)
    for group in groups:
        for _ in range(group.count):
            row = next(number)
            if group.key_inside is None:
                yield _row(level, group)
            else:
                yield _row(level, group)._replace(contents=np.int8(row + 1))
                key = Things((symbols.KEY,), group.key_inside, if_locked=group.if_locked)
                yield _row(level, key)._replace(inside=np.bool_(True))
                next(number)


def _row(level: RoomLevel, group: Things) -> Placing:
    colours = (0,) if isinstance(group.colours, Shared) else group.colours
    looks = {look(kind, colour) for kind, colour in itertools.product(group.kinds, colours)}
    wall, offset = 0, np.zeros(2, np.int32)
    if group.beside is not None:
        wall, offset = level.walls.index(canonical(group.beside)), -DIRECTION_XY[group.beside[1]]
    return Placing(
        looks=_bits(looks - {look(*pair) for pair in group.but}),
        if_locked=np.bool_(group.if_locked),
        shared=np.int32(1 + group.colours.number if isinstance(group.colours, Shared) else 0),
        unique=np.bool_(group.unique),
        inside=np.bool_(False),
        contents=np.int8(NOTHING_INSIDE),
        rooms=_rooms(level, group.rooms),
        lock=np.int32(group.lock),
        beside=np.bool_(group.beside is not None),
        wall=np.int32(wall),
        offset=offset,
    )


def look(kind: int, colour: int) -> int:
    """A thing's symbol, less than that of the first."""
    return symbols.symbol(kind - KINDS[0], colour)


# instructions -----------------------------------------------------------------------------------------------------------------


def _targets(level: RoomLevel) -> dict[int, Target]:
    """A command's targets by the descriptions in a mission that they fill: the first leaf of each half."""
    if not isinstance(level.instruction, Command):
        return {}
    return {4 * half + i: target for half, clause in enumerate(level.instruction.clauses) for i, target in enumerate(clause)}


def _commanding(level: RoomLevel, shape: Shape) -> Commanding:
    command = level.instruction if isinstance(level.instruction, Command) else Command((), (), orders=(), by=())
    targets = [_targets(level).get(slot, Target()) for slot in shape.targets]
    early = _num_rows(level.things)
    rows = [*range(early), *range(shape.early, shape.early + _num_rows(level.late))]
    return Commanding(
        things=np.array([_bits(rows[slice(*target.things)]) for target in targets], np.uint32),
        doors=np.array([_walls(level, target.doors) for target in targets], np.uint32),
        locked=np.array([target.locked for target in targets], bool),
        verbs=_bits(command.verbs),
        orders=_bits(command.orders),
        by=_padded(command.by, 3, np.int32),
        num_by=np.int32(len(command.by)),
        swaps=np.bool_(command.swaps),
        strict=np.uint8(command.strict),
        walls_match=np.bool_(command.walls_match),
        at_start=np.bool_(command.held == "at_start"),
        at_first_action=np.bool_(command.held == "at_first_action"),
    )


def _generating(level: RoomLevel) -> Generating:
    used = isinstance(level.instruction, Grammar)
    grammar = level.instruction if isinstance(level.instruction, Grammar) else Grammar((), (), places=False, spares_keys=False)
    return Generating(
        used=np.bool_(used),
        verbs=_bits(grammar.verbs),
        forms=_bits(grammar.forms),
        places=np.bool_(grammar.places),
        outside_lock=np.bool_(grammar.outside_lock),
        spares_keys=np.bool_(grammar.spares_keys),
    )
