"""What a level of rooms consists of.

A room is `(column, row)`; a side of it is one of `symbols`' directions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from jaxagent.envs.language import ALONE, GO_TO, OPEN, PICK_UP, PUT_NEXT
from jaxagent.envs.symbols import BALL, BOX, DIRECTION_XY, DOWN, KEY, LEFT, RIGHT, UP

Room = tuple[int, int]
Wall = tuple[Room, int]

KINDS = (KEY, BALL, BOX)
COLOURS = tuple(range(6))
SIDES = (RIGHT, DOWN, LEFT, UP)


@dataclass(frozen=True)
class Shared:
    """The n-th of the six colours in a random order: whatever has the same number has the same colour.

    The door of the locked room has the colour `Shared(0)`.
    """

    number: int


Colours = tuple[int, ...] | Shared  # one of several, drawn for each thing; or a shared one


@dataclass(frozen=True)
class Lock:
    """One room behind one locked door.

    Attributes:
      rooms: which it can be; None for any.
      sides: where its door can be.
      by_door: whether all possible doors are equally likely; if not, all rooms are, and then all doors of the room.
      chance: how often there is a locked room at all.
    """

    rooms: tuple[Room, ...] | None = None
    sides: tuple[int, ...] = SIDES
    by_door: bool = False
    chance: float = 1.0


@dataclass(frozen=True)
class Doors:
    """Doors in some of the walls given, drawn without replacement.

    Attributes:
      walls: where they can be; no other `Doors` can be there.
      count: how many.
      colours: of each; of shared ones, each door has the next.
      locked: None for locked or not with equal chances.
    """

    walls: tuple[Wall, ...]
    count: int = 1
    colours: Colours = COLOURS
    locked: bool | None = False


ANYWHERE, BEHIND_LOCK, OUTSIDE_LOCK = range(3)


@dataclass(frozen=True)
class Things:
    """Keys, balls and boxes.

    Attributes:
      kinds: what they can be, as `symbols`' kinds.
      colours: what colours they can have.
      but: pairs `(kind, colour)` that none has.
      count: how many.
      unique: whether each differs in kind or colour from all things placed before.
      rooms: where they can be; None for any room.
      lock: whether that is in the locked room, outside it, or either; a thing for which no room is left is not there.
      if_locked: whether they are there only where there is a locked room.
      key_inside: the colour of the key in each of them; the key is counted as the thing after its box.
      beside: the wall that the thing lies in front of, on the side of the room given, whatever was there before.
    """

    kinds: tuple[int, ...] = KINDS
    colours: Colours = COLOURS
    but: tuple[tuple[int, int], ...] = ()
    count: int = 1
    unique: bool = False
    rooms: tuple[Room, ...] | None = None
    lock: int = ANYWHERE
    if_locked: bool = False
    key_inside: Shared | None = None
    beside: Wall | None = None


FIRST, BEFORE_CONNECTING, LAST = range(3)


@dataclass(frozen=True)
class Agent:
    """The agent, which at first looks at nothing or at a wall.

    Attributes:
      rooms: where it can be; None for any room.
      outside_lock: whether it is never in the locked room.
      when: it comes before all else; after the things, but before the doors that connect the rooms; or after both.
    """

    rooms: tuple[Room, ...] | None = None
    outside_lock: bool = False
    when: int = LAST


@dataclass(frozen=True)
class Target:
    """What an instruction is about: one of some things or doors.

    Attributes:
      things: a range `(first, end)`, counting all things of the level in the order of placement.
      doors: where the doors are; None for anywhere.
      locked: whether only locked doors are meant.
    """

    things: tuple[int, int] = (0, 0)
    doors: tuple[Wall, ...] | None = ()
    locked: bool = False


BY_KIND, BY_COLOUR, BY_PLACE = 1, 2, 4  # what a description says

Held = Literal["never", "at_start", "at_first_action"]


@dataclass(frozen=True)
class Command:
    """One kind of instruction.

    Attributes:
      clauses: the targets of one or two verbs, all of them different objects. PUT_NEXT has two, the other verbs one.
      verbs: for each clause one of those that can be done to its target: doors are not picked up, and only they are opened.
      orders: how two clauses can follow each other; ALONE leaves the second out.
      by: how the targets can be described, each as a sum of `BY_KIND`, `BY_COLOUR` and `BY_PLACE`.
      swaps: whether, with equal chances, the two targets of PUT_NEXT change places.
      strict: as in `instructions.Task`.
      walls_match: whether what is described by its colour alone can be a wall.
      held: whether the agent holds the first target: from the start, or at its first action, until when it lies on the floor.
    """

    clauses: tuple[tuple[Target, ...], ...]
    verbs: tuple[int, ...]
    orders: tuple[int, ...] = (ALONE,)
    by: tuple[int, ...] = (BY_KIND | BY_COLOUR,)
    swaps: bool = False
    strict: int = 0
    walls_match: bool = False
    held: Held = "never"


ACTION, AND, SEQUENCE = range(3)


@dataclass(frozen=True)
class Grammar:
    """Any instruction of BabyAI's language that fits the level.

    Attributes:
      verbs: of the leaves.
      forms: one leaf; two joined by "and"; or two halves of one or two leaves each.
      places: whether descriptions can name a place.
      outside_lock: whether each description matches something outside the locked room.
      spares_keys: whether no description is of keys in the colour of the locked door.
    """

    verbs: tuple[int, ...] = (GO_TO, PICK_UP, OPEN, PUT_NEXT)
    forms: tuple[int, ...] = (ACTION, AND, SEQUENCE)
    places: bool = True
    outside_lock: bool = False
    spares_keys: bool = True


UNCHECKED, ALL_REACHABLE, SOME_BLOCKED = range(3)


@dataclass(frozen=True)
class RoomLevel:
    """A level.

    Attributes:
      instruction: what is asked for.
      things: what is placed first, in this order.
      late: what is placed after the agent and the check.
      agent: where it starts.
      lock: the locked room, if there is one.
      doors: doors that there are in any case.
      connect: whether doors are added at random until all rooms are connected; none to the locked room.
      spares_lock_colour: whether, with equal chances, none of these has the colour of the locked door.
      doors_open: whether all doors are open in the end.
      openings: walls that are not there.
      openings_last: whether they vanish only when all is in place.
      check: what is required of the ways from the agent to all objects, around the others and through doors of any state.
      room_size: cells along a side of a room, its two walls included.
      rows, columns: of rooms.
      max_steps: until truncation; None for `room_size^2` a room and a place that the instruction sends the agent to.
    """

    instruction: Command | Grammar
    things: tuple[Things, ...] = ()
    late: tuple[Things, ...] = ()
    agent: Agent = Agent()
    lock: Lock | None = None
    doors: tuple[Doors, ...] = ()
    connect: bool = False
    spares_lock_colour: bool = False
    doors_open: bool = False
    openings: tuple[Wall, ...] = ()
    openings_last: bool = False
    check: int = UNCHECKED
    room_size: int = 8
    rows: int = 3
    columns: int = 3
    max_steps: int | None = None

    @property
    def size(self) -> tuple[int, int]:
        """`(W, H)`."""
        return self.columns * (self.room_size - 1) + 1, self.rows * (self.room_size - 1) + 1

    @property
    def rooms(self) -> tuple[Room, ...]:
        """All rooms, in the order of their numbers."""
        return tuple((i, j) for j in range(self.rows) for i in range(self.columns))

    @property
    def walls(self) -> tuple[Wall, ...]:
        """The walls where doors can be, in the order of their numbers; each as the right or the lower side of a room."""
        inner = self.walls_of(self.rooms)
        if self.connect:
            return inner
        locks = () if self.lock is None else self.walls_of(self.lock.rooms or self.rooms, self.lock.sides)
        used = {*locks, *(canonical(wall) for doors in self.doors for wall in doors.walls)}
        return tuple(wall for wall in inner if wall in used)

    def walls_of(self, rooms: Iterable[Room], sides: tuple[int, ...] = SIDES) -> tuple[Wall, ...]:
        """The inner walls on some sides of some rooms, in the order of all rooms, then RIGHT before DOWN."""
        found = {canonical((room, side)) for room in rooms for side in sides if beyond((room, side)) in self.rooms}
        return tuple((room, side) for room in self.rooms for side in (RIGHT, DOWN) if (room, side) in found)

    @property
    def verbs(self) -> frozenset[int]:
        return frozenset(self.instruction.verbs)

    @property
    def clauses(self) -> int:
        """The most leaves that a mission has."""
        if isinstance(self.instruction, Command):
            return len(self.instruction.clauses)
        return {ACTION: 1, AND: 2, SEQUENCE: 4}[max(self.instruction.forms)]

    @property
    def names_doors(self) -> bool:
        """Whether an instruction can be about a door."""
        if isinstance(self.instruction, Command):
            return any(target.doors != () for clause in self.instruction.clauses for target in clause)
        return bool(self.walls) and self.verbs != {PICK_UP}

    @property
    def starts_holding(self) -> bool:
        """Whether the agent takes something up by its first action."""
        return isinstance(self.instruction, Command) and self.instruction.held == "at_first_action"

    @property
    def rejects(self) -> bool:
        """Whether a draw can be rejected as a whole."""
        if self.check != UNCHECKED or PUT_NEXT in self.verbs or isinstance(self.instruction, Grammar):
            return True
        crowd = sum(group.count for group in (*self.things, *self.late))
        room = (self.room_size - 2) ** 2 - 5  # as many cells as are never forbidden for being near the agent
        return crowd + 3 > room or (self.connect and self.lock is not None)

    @property
    def fixed_steps(self) -> int | None:
        """Steps until truncation where they are the same in every instance."""
        if self.max_steps is not None:
            return self.max_steps
        return self.most_steps if isinstance(self.instruction, Command) and len(self.instruction.orders) == 1 else None

    @property
    def steps_a_place(self) -> int:
        return self.room_size**2 * self.rows * self.columns

    @property
    def most_steps(self) -> int:
        """The most steps until truncation."""
        places = self.clauses * (2 if PUT_NEXT in self.verbs else 1)
        return places * self.steps_a_place if self.max_steps is None else self.max_steps


def beyond(wall: Wall) -> Room:
    """The room on the other side of a wall, whether there is one or not."""
    (column, row), side = wall
    return column + int(DIRECTION_XY[side, 0]), row + int(DIRECTION_XY[side, 1])


def canonical(wall: Wall) -> Wall:
    """The wall as the right or the lower side of a room."""
    return wall if wall[1] in (RIGHT, DOWN) else (beyond(wall), (wall[1] + 2) % 4)
