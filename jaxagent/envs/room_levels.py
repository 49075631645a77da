"""Levels of locked rooms that BabyAI and MiniGrid share, and MiniGrid's other levels of rooms."""

from jaxagent.envs.language import OPEN, PICK_UP
from jaxagent.envs.rooms.levels import (
    BEFORE_CONNECTING,
    BEHIND_LOCK,
    BY_COLOUR,
    BY_KIND,
    SIDES,
    Agent,
    Command,
    Doors,
    Lock,
    Room,
    RoomLevel,
    Shared,
    Target,
    Things,
    Wall,
)
from jaxagent.envs.symbols import BALL, BLUE, BOX, GREEN, GREY, KEY, LEFT, RIGHT, UP

CENTRE = (1, 1)
LEFT_ROOM, RIGHT_ROOM = (0, 0), (1, 0)
BETWEEN = (LEFT_ROOM, RIGHT)


_DESCRIBED = BY_KIND | BY_COLOUR


def command(
    *verbs: int,
    things: tuple[int, int] = (0, 0),
    doors: tuple[Wall, ...] | None = (),
    by: tuple[int, ...] = (_DESCRIBED,),
) -> Command:
    """To do something to one of some things or doors."""
    return Command(((Target(things, doors),),), verbs, by=by)


def key(*rooms: Room) -> Things:
    """The key of the locked room."""
    return Things((KEY,), Shared(0), rooms=rooms or None)


def unlock_pickup(*between: Things, by: int, max_steps: int | None, distractors: int = 0) -> RoomLevel:
    """A box behind a locked door, with things `between` box and key in the order of placement."""
    return RoomLevel(
        command(PICK_UP, things=(0, 1), by=(by,)),
        things=(
            Things((BOX,), rooms=(RIGHT_ROOM,)),
            *between,
            key(LEFT_ROOM),
            Things(count=distractors, unique=True),
        ),
        agent=Agent((LEFT_ROOM,)),
        lock=Lock((LEFT_ROOM,), (RIGHT,)),
        room_size=6,
        rows=1,
        columns=2,
        max_steps=max_steps,
    )


def blocked_unlock_pickup(*, by: int) -> RoomLevel:
    """As `unlock_pickup`, with a ball in front of the door."""
    return unlock_pickup(Things((BALL,), beside=BETWEEN), by=by, max_steps=16 * 6**2)


def key_corridor(room_size: int = 6, rows: int = 3, *, by: int) -> RoomLevel:
    """A ball in a locked room on the right of a corridor, the key in a room on the left."""
    return RoomLevel(
        command(PICK_UP, things=(0, 1), by=(by,)),
        things=(Things((BALL,), lock=BEHIND_LOCK), key(*((0, j) for j in range(rows)))),
        agent=Agent(((1, rows // 2),), when=BEFORE_CONNECTING),
        lock=Lock(tuple((2, j) for j in range(rows)), (LEFT,)),
        connect=True,
        openings=tuple(((1, j), UP) for j in range(1, rows)),
        room_size=room_size,
        rows=rows,
        max_steps=30 * room_size**2,
    )


def _unlock() -> RoomLevel:
    return RoomLevel(
        command(OPEN, doors=None, by=(BY_KIND,)),
        things=(key(LEFT_ROOM),),
        agent=Agent((LEFT_ROOM,)),
        lock=Lock((LEFT_ROOM,), (RIGHT,)),
        room_size=6,
        rows=1,
        columns=2,
        max_steps=8 * 6**2,
    )


# obstructed mazes -------------------------------------------------------------------------------------------------------------

_SIDE_ROOMS = ((2, 1), (1, 2), (0, 1), (1, 0))  # beyond each side of the middle room
_CORNERS = ((2, 0), (2, 2), (0, 2), (0, 0))


def _obstructed(
    doors: tuple[Doors, ...], things: tuple[Things, ...], balls: tuple[Room, ...], start: Room, *, visited: int, side: int
) -> RoomLevel:
    """To pick up a blue ball. `things` come before it."""
    target = sum(1 if group.key_inside is None else 2 for group in things)
    return RoomLevel(
        command(PICK_UP, things=(target, target + 1)),
        things=(*things, Things((BALL,), (BLUE,), rooms=balls)),
        agent=Agent((start,)),
        doors=doors,
        room_size=6,
        rows=side if side > 2 else 1,
        columns=side,
        max_steps=4 * visited * 6**2,
    )


def _obstacle(wall: Wall) -> tuple[Things, ...]:
    return (Things((BALL,), (GREEN,), beside=wall),)


def _hidden_key(room: Room, colour: Shared, *, in_box: bool) -> Things:
    if in_box:
        return Things((BOX,), (GREY,), rooms=(room,), key_inside=colour)
    return Things((KEY,), colour, rooms=(room,))


def _one_door(*, in_box: bool, blocked: bool) -> RoomLevel:
    things = (*_obstacle(BETWEEN)[: int(blocked)], _hidden_key(LEFT_ROOM, Shared(0), in_box=in_box))
    doors = (Doors((BETWEEN,), colours=Shared(0), locked=True),)
    return _obstructed(doors, things, (RIGHT_ROOM,), LEFT_ROOM, visited=2, side=2)


def _quarters(
    count: int, start: Room = CENTRE, *, visited: int, in_box: bool = True, blocked: bool = True, keys_last: bool = False
) -> RoomLevel:
    """A corner behind two locked doors in each of `count` quarters of the maze, one of them with the ball.

    Where keys do not come last, the second obstacle of a side room may bury the first key.
    """
    doors: list[Doors] = []
    things: list[Things] = []
    for side, room in zip(SIDES[:count], _SIDE_ROOMS, strict=False):
        doors.append(Doors(((CENTRE, side),), colours=Shared(side)))
        obstacles, keys = [], []
        for turn in (-1, 1):
            wall, colour = (room, (side + turn) % 4), Shared((side + turn) % 6)
            doors.append(Doors((wall,), colours=colour, locked=True))
            obstacles.append(_obstacle(wall)[: int(blocked)])
            keys.append(_hidden_key(room, colour, in_box=in_box))
        first, second = obstacles
        things += [*first, *second, *keys] if keys_last else [*first, keys[0], *second, keys[1]]
    return _obstructed(tuple(doors), tuple(things), _CORNERS[:count], start, visited=visited, side=3)


def minigrid() -> dict[str, RoomLevel]:
    """MiniGrid's levels by id."""
    return {
        "MiniGrid-BlockedUnlockPickup-v0": blocked_unlock_pickup(by=_DESCRIBED),
        "MiniGrid-KeyCorridorS3R1-v0": key_corridor(3, 1, by=_DESCRIBED),
        "MiniGrid-KeyCorridorS3R2-v0": key_corridor(3, 2, by=_DESCRIBED),
        "MiniGrid-KeyCorridorS3R3-v0": key_corridor(3, 3, by=_DESCRIBED),
        "MiniGrid-KeyCorridorS4R3-v0": key_corridor(4, 3, by=_DESCRIBED),
        "MiniGrid-KeyCorridorS5R3-v0": key_corridor(5, 3, by=_DESCRIBED),
        "MiniGrid-KeyCorridorS6R3-v0": key_corridor(6, 3, by=_DESCRIBED),
        "MiniGrid-ObstructedMaze-1Dl-v0": _one_door(in_box=False, blocked=False),
        "MiniGrid-ObstructedMaze-1Dlh-v0": _one_door(in_box=True, blocked=False),
        "MiniGrid-ObstructedMaze-1Dlhb-v0": _one_door(in_box=True, blocked=True),
        "MiniGrid-ObstructedMaze-2Dl-v0": _quarters(1, (2, 1), visited=4, in_box=False, blocked=False),
        "MiniGrid-ObstructedMaze-2Dlh-v0": _quarters(1, (2, 1), visited=4, blocked=False),
        "MiniGrid-ObstructedMaze-2Dlhb-v0": _quarters(1, (2, 1), visited=4),
        "MiniGrid-ObstructedMaze-2Dlhb-v1": _quarters(1, (2, 1), visited=4, keys_last=True),
        "MiniGrid-ObstructedMaze-1Q-v0": _quarters(1, visited=5),
        "MiniGrid-ObstructedMaze-1Q-v1": _quarters(1, visited=5, keys_last=True),
        "MiniGrid-ObstructedMaze-2Q-v0": _quarters(2, (2, 1), visited=11),
        "MiniGrid-ObstructedMaze-2Q-v1": _quarters(2, (2, 1), visited=11, keys_last=True),
        "MiniGrid-ObstructedMaze-Full-v0": _quarters(4, visited=25),
        "MiniGrid-ObstructedMaze-Full-v1": _quarters(4, visited=25, keys_last=True),
        "MiniGrid-Unlock-v0": _unlock(),
        "MiniGrid-UnlockPickup-v0": unlock_pickup(by=_DESCRIBED, max_steps=8 * 6**2),
    }
