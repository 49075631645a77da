"""BabyAI's levels (Chevalier-Boisvert et al., 2019), equal to Farama's `minigrid` 3.2.0 in rules and in distribution."""

import dataclasses
import difflib
from collections.abc import Collection, Sequence
from typing import Any

import flax.struct
import numpy as np
from jax.typing import ArrayLike

from jaxagent import schema
from jaxagent.envs import rooms
from jaxagent.envs.base import Environment
from jaxagent.envs.grid import GridEnv, GridParams
from jaxagent.envs.language import AFTER, ALONE, GO_TO, OPEN, PICK_UP, PUT_NEXT, THEN
from jaxagent.envs.room_levels import (
    BETWEEN,
    CENTRE,
    LEFT_ROOM,
    RIGHT_ROOM,
    blocked_unlock_pickup,
    command,
    key,
    key_corridor,
    unlock_pickup,
)
from jaxagent.envs.rooms.levels import (
    ACTION,
    ALL_REACHABLE,
    ANYWHERE,
    BEFORE_CONNECTING,
    BEHIND_LOCK,
    BY_COLOUR,
    BY_KIND,
    BY_PLACE,
    FIRST,
    LAST,
    OUTSIDE_LOCK,
    SIDES,
    SOME_BLOCKED,
    UNCHECKED,
    Agent,
    Colours,
    Command,
    Doors,
    Grammar,
    Held,
    Lock,
    RoomLevel,
    Shared,
    Target,
    Things,
)
from jaxagent.envs.symbols import BALL, BLUE, BOX, GREY, KEY, LEFT, RED, RIGHT, UP
from jaxagent.types import PyTree

_AROUND_CENTRE = tuple((CENTRE, side) for side in SIDES)
_IN_CENTRE = Agent((CENTRE,))


# one room ---------------------------------------------------------------------------------------------------------------------


def _one_room(
    instruction: Command, *things: Things, check: int = UNCHECKED, room_size: int = 8, when: int = FIRST
) -> RoomLevel:
    return RoomLevel(instruction, things, agent=Agent(when=when), check=check, room_size=room_size, rows=1, columns=1)


def _go_to_red_ball(*distractors: Things) -> RoomLevel:
    check = ALL_REACHABLE if distractors else UNCHECKED
    return _one_room(command(GO_TO, things=(0, 1)), Things((BALL,), (RED,)), *distractors, check=check)


def _go_to_object(room_size: int = 8) -> RoomLevel:
    return _one_room(command(GO_TO, things=(0, 1)), Things(), room_size=room_size)


def _go_to_local(room_size: int = 8, count: int = 8) -> RoomLevel:
    return _one_room(command(GO_TO, things=(0, count)), Things(count=count), check=ALL_REACHABLE, room_size=room_size)


def _go_to_red_blue_ball() -> RoomLevel:
    others = Things(but=((BALL, RED), (BALL, BLUE)), count=7)
    return _one_room(command(GO_TO, things=(7, 8)), others, Things((BALL,), (RED, BLUE)), check=ALL_REACHABLE)


def _pickup_dist(*, strict: bool = False, fixed: bool) -> RoomLevel:
    wanted = command(PICK_UP, things=(0, 5), by=(BY_KIND, BY_COLOUR, BY_KIND | BY_COLOUR))
    wanted = dataclasses.replace(wanted, strict=int(strict), walls_match=not fixed)
    return _one_room(wanted, Things(count=5, unique=True), room_size=7, when=LAST)


def _put_next_local(room_size: int = 8, count: int = 8) -> RoomLevel:
    wanted = Command(((Target((0, count)), Target((0, count))),), (PUT_NEXT,))
    return _one_room(wanted, Things(count=count, unique=True), check=ALL_REACHABLE, room_size=room_size)


def _one_room_ball(room_size: int = 8) -> RoomLevel:
    return _one_room(command(PICK_UP, things=(0, 1), by=(BY_KIND,)), Things((BALL,)), room_size=room_size, when=LAST)


# a maze -----------------------------------------------------------------------------------------------------------------------


def _maze(
    instruction: Command,
    count: int = 18,
    *,
    check: int = ALL_REACHABLE,
    doors_open: bool = False,
    room_size: int = 8,
    rooms: int = 3,
) -> RoomLevel:
    return RoomLevel(
        instruction,
        things=(Things(count=count),),
        agent=Agent(when=FIRST),
        connect=True,
        doors_open=doors_open,
        check=check,
        room_size=room_size,
        rows=rooms,
        columns=rooms,
    )


def _go_to(count: int = 18, **options: Any) -> RoomLevel:
    return _maze(command(GO_TO, things=(0, count)), count, **options)


def _open() -> RoomLevel:
    return _maze(command(OPEN, doors=None))


def _pickup() -> RoomLevel:
    return _maze(command(PICK_UP, things=(0, 18)))


def _unblock_pickup() -> RoomLevel:
    return _maze(command(PICK_UP, things=(0, 20)), 20, check=SOME_BLOCKED)


def _find_object(room_size: int) -> RoomLevel:
    return RoomLevel(
        command(PICK_UP, things=(0, 1), by=(BY_KIND,)),
        things=(Things(),),
        agent=Agent((CENTRE,), when=BEFORE_CONNECTING),
        connect=True,
        room_size=room_size,
        max_steps=20 * room_size**2,
    )


def _pickup_above() -> RoomLevel:
    return RoomLevel(
        command(PICK_UP, things=(0, 1)),
        things=(Things(rooms=((1, 0),)),),
        agent=Agent((CENTRE,), when=BEFORE_CONNECTING),
        doors=(Doors(((CENTRE, UP),)),),
        connect=True,
        room_size=6,
        max_steps=8 * 6**2,
    )


# doors of the middle room -----------------------------------------------------------------------------------------------------


def _go_to_door() -> RoomLevel:
    doors = Doors(_AROUND_CENTRE, 4, locked=None)
    return RoomLevel(command(GO_TO, doors=None), agent=_IN_CENTRE, doors=(doors,), room_size=7)


def _go_to_object_or_door() -> RoomLevel:
    return RoomLevel(
        command(GO_TO, things=(0, 8), doors=None),
        things=(Things(count=8, rooms=(CENTRE,)),),
        agent=Agent((CENTRE,), when=FIRST),
        doors=(Doors(_AROUND_CENTRE, 4, locked=None),),
        check=ALL_REACHABLE,
    )


def _act_on_object_or_door() -> RoomLevel:
    return RoomLevel(
        command(GO_TO, OPEN, PICK_UP, things=(0, 5), doors=None),
        things=(Things(count=5, unique=True, rooms=(CENTRE,)),),
        agent=_IN_CENTRE,
        doors=(Doors(_AROUND_CENTRE, 4),),
        room_size=7,
    )


def _open_red_door() -> RoomLevel:
    doors = Doors((BETWEEN,), colours=(RED,))
    return RoomLevel(command(OPEN, doors=None), agent=Agent((LEFT_ROOM,)), doors=(doors,), room_size=5, rows=1, columns=2)


def _open_door(*by: int, strict: bool = False) -> RoomLevel:
    wanted = dataclasses.replace(command(OPEN, doors=((CENTRE, RIGHT),), by=by), strict=int(strict))
    return RoomLevel(wanted, agent=_IN_CENTRE, doors=(Doors(_AROUND_CENTRE, 4, Shared(0)),))


def _open_two_doors(first: Colours, second: Colours, *, strict: bool = False) -> RoomLevel:
    walls = ((CENTRE, LEFT),), ((CENTRE, RIGHT),)
    return RoomLevel(
        Command(tuple((Target(doors=wall),) for wall in walls), (OPEN,), (THEN,), strict=int(strict)),
        agent=_IN_CENTRE,
        doors=(Doors(walls[0], colours=first), Doors(walls[1], colours=second)),
        room_size=6,
        max_steps=20 * 6**2,
    )


def _open_doors_in_order(count: int, *, strict: bool = False) -> RoomLevel:
    door = Target(doors=None)
    return RoomLevel(
        Command(((door,), (door,)), (OPEN,), (ALONE, THEN, AFTER), strict=0b0101 if strict else 0),
        agent=_IN_CENTRE,
        doors=(Doors(_AROUND_CENTRE, count, Shared(0)),),
        room_size=6,
        max_steps=20 * 6**2,
    )


# two rooms without a wall between them ----------------------------------------------------------------------------------------


def _two_halves(instruction: Command, room_size: int, count: int, steps: int) -> RoomLevel:
    return RoomLevel(
        instruction,
        things=tuple(Things(count=count, unique=True, rooms=(room,)) for room in (LEFT_ROOM, RIGHT_ROOM)),
        agent=Agent((LEFT_ROOM,), when=FIRST),
        openings=(BETWEEN,),
        openings_last=True,
        room_size=room_size,
        rows=1,
        columns=2,
        max_steps=steps * room_size**2,
    )


def _put_next(room_size: int, count: int, held: Held = "never") -> RoomLevel:
    left, right = Target((0, count)), Target((count, 2 * count))
    return _two_halves(Command(((left, right),), (PUT_NEXT,), swaps=True, held=held), room_size, count, 8)


def _move_two_across(room_size: int, count: int) -> RoomLevel:
    left, right = Target((0, count)), Target((count, 2 * count))
    return _two_halves(Command(((left, right), (right, left)), (PUT_NEXT,), (THEN,)), room_size, count, 16)


# locked rooms -----------------------------------------------------------------------------------------------------------------


def _behind_lock(instruction: Command, count: int, *late: Things, spares_lock_colour: bool = False, fixed: bool) -> RoomLevel:
    """A maze with a locked room and `count` things a room; faithfully, the key and they can be in the locked room as well."""
    lock = OUTSIDE_LOCK if fixed else ANYWHERE
    rooms = tuple((i, j) for i in range(3) for j in range(3))
    return RoomLevel(
        instruction,
        things=(Things((KEY,), Shared(0), lock=lock), *(Things(count=count, rooms=(room,), lock=lock) for room in rooms)),
        late=late,
        agent=Agent(outside_lock=True),
        lock=Lock(),
        connect=True,
        spares_lock_colour=spares_lock_colour,
        check=ALL_REACHABLE,
    )


def _go_to_implicit_unlock(*, fixed: bool) -> RoomLevel:
    return _behind_lock(command(GO_TO, things=(19, 20)), 2, Things(lock=BEHIND_LOCK), fixed=fixed)


def _unlock(*, fixed: bool) -> RoomLevel:
    locked_door = Command(((Target(doors=None, locked=True),),), (OPEN,))
    return _behind_lock(locked_door, 3, spares_lock_colour=True, fixed=fixed)


def _unlock_local(*things: Things) -> RoomLevel:
    return RoomLevel(command(OPEN, doors=None, by=(BY_KIND,)), things=things, agent=_IN_CENTRE, lock=Lock((CENTRE,)))


def _unlock_to_unlock() -> RoomLevel:
    rooms = ((0, 0), (1, 0), (2, 0))
    return RoomLevel(
        command(PICK_UP, things=(2, 3), by=(BY_KIND,)),
        things=(
            Things((KEY,), Shared(0), rooms=(rooms[2],)),
            Things((KEY,), Shared(1), rooms=(rooms[1],)),
            Things((BALL,), rooms=(rooms[0],)),
        ),
        agent=Agent((rooms[1],)),
        doors=tuple(Doors(((room, RIGHT),), colours=Shared(n), locked=True) for n, room in enumerate(rooms[:2])),
        room_size=6,
        rows=1,
        columns=3,
        max_steps=30 * 6**2,
    )


# any instruction --------------------------------------------------------------------------------------------------------------


def _any(
    grammar: Grammar,
    count: int = 18,
    *,
    lock_chance: float = 0.5,
    check: int = UNCHECKED,
    room_size: int = 8,
    rows: int = 3,
    columns: int = 3,
) -> RoomLevel:
    """A maze, perhaps with a locked room."""
    locked_key = Things((KEY,), Shared(0), lock=OUTSIDE_LOCK, if_locked=True)
    return RoomLevel(
        grammar,
        things=(*([locked_key] if lock_chance else []), Things(count=count)),
        agent=Agent(outside_lock=True),
        lock=Lock(by_door=True, chance=lock_chance) if lock_chance else None,
        connect=rows * columns > 1,
        check=check,
        room_size=room_size,
        rows=rows,
        columns=columns,
    )


def _go_to_sequence(count: int = 18, **options: int) -> RoomLevel:
    return _any(Grammar((GO_TO,), places=False), count, lock_chance=0.0, check=ALL_REACHABLE, **options)


def _pickup_by_place() -> RoomLevel:
    return _any(Grammar((PICK_UP,), (ACTION,)), 8, lock_chance=0.0, check=ALL_REACHABLE, rows=1, columns=1)


def _levels(*, fixed: bool) -> dict[str, RoomLevel]:
    """All levels by the middle of their ids."""
    everything = Grammar()
    no_unlocking, unplaced = Grammar(outside_lock=True), Grammar(forms=(ACTION,), places=False, outside_lock=True)
    held: Held = "at_start" if fixed else "at_first_action"
    return {
        "GoToRedBallGrey-v0": _go_to_red_ball(Things(colours=(GREY,), count=7)),
        "GoToRedBall-v0": _go_to_red_ball(Things(count=7)),
        "GoToRedBallNoDists-v0": _go_to_red_ball(),
        "GoToObj-v0": _go_to_object(),
        "GoToObjS4-v0": _go_to_object(4),
        "GoToObjS6-v1": _go_to_object(6),
        "GoToLocal-v0": _go_to_local(),
        "GoToLocalS5N2-v0": _go_to_local(5, 2),
        "GoToLocalS6N2-v0": _go_to_local(6, 2),
        "GoToLocalS6N3-v0": _go_to_local(6, 3),
        "GoToLocalS6N4-v0": _go_to_local(6, 4),
        "GoToLocalS7N4-v0": _go_to_local(7, 4),
        "GoToLocalS7N5-v0": _go_to_local(7, 5),
        "GoToLocalS8N2-v0": _go_to_local(8, 2),
        "GoToLocalS8N3-v0": _go_to_local(8, 3),
        "GoToLocalS8N4-v0": _go_to_local(8, 4),
        "GoToLocalS8N5-v0": _go_to_local(8, 5),
        "GoToLocalS8N6-v0": _go_to_local(8, 6),
        "GoToLocalS8N7-v0": _go_to_local(8, 7),
        "GoTo-v0": _go_to(),
        "GoToOpen-v0": _go_to(doors_open=True),
        "GoToObjMaze-v0": _go_to(1),
        "GoToObjMazeOpen-v0": _go_to(1, doors_open=True),
        "GoToObjMazeS4R2-v0": _go_to(1, room_size=4, rooms=2),
        "GoToObjMazeS4-v0": _go_to(1, room_size=4),
        "GoToObjMazeS5-v0": _go_to(1, room_size=5),
        "GoToObjMazeS6-v0": _go_to(1, room_size=6),
        "GoToObjMazeS7-v0": _go_to(1, room_size=7),
        "GoToImpUnlock-v0": _go_to_implicit_unlock(fixed=fixed),
        "GoToSeq-v0": _go_to_sequence(),
        "GoToSeqS5R2-v0": _go_to_sequence(4, room_size=5, rows=2, columns=2),
        "GoToRedBlueBall-v0": _go_to_red_blue_ball(),
        "GoToDoor-v0": _go_to_door(),
        "GoToObjDoor-v0": _go_to_object_or_door(),
        "Open-v0": _open(),
        "OpenRedDoor-v0": _open_red_door(),
        "OpenDoor-v0": _open_door(BY_KIND | BY_COLOUR, BY_KIND | BY_PLACE),
        "OpenDoorDebug-v0": _open_door(BY_KIND | BY_COLOUR, BY_KIND | BY_PLACE, strict=True),
        "OpenDoorColor-v0": _open_door(BY_KIND | BY_COLOUR),
        "OpenDoorLoc-v0": _open_door(BY_KIND | BY_PLACE),
        "OpenTwoDoors-v0": _open_two_doors(Shared(0), Shared(1)),
        "OpenRedBlueDoors-v0": _open_two_doors((RED,), (BLUE,)),
        "OpenRedBlueDoorsDebug-v0": _open_two_doors((RED,), (BLUE,), strict=True),
        "OpenDoorsOrderN2-v0": _open_doors_in_order(2),
        "OpenDoorsOrderN4-v0": _open_doors_in_order(4),
        "OpenDoorsOrderN2Debug-v0": _open_doors_in_order(2, strict=True),
        "OpenDoorsOrderN4Debug-v0": _open_doors_in_order(4, strict=True),
        "Pickup-v0": _pickup(),
        "UnblockPickup-v0": _unblock_pickup(),
        "PickupLoc-v0": _pickup_by_place(),
        "PickupDist-v0": _pickup_dist(fixed=fixed),
        "PickupDistDebug-v0": _pickup_dist(strict=True, fixed=fixed),
        "PickupAbove-v0": _pickup_above(),
        "PutNextLocal-v0": _put_next_local(),
        "PutNextLocalS5N3-v0": _put_next_local(5, 3),
        "PutNextLocalS6N4-v0": _put_next_local(6, 4),
        "PutNextS4N1-v0": _put_next(4, 1),
        "PutNextS5N2-v0": _put_next(5, 2),
        "PutNextS5N1-v0": _put_next(5, 1),
        "PutNextS6N3-v0": _put_next(6, 3),
        "PutNextS7N4-v0": _put_next(7, 4),
        "PutNextS5N2Carrying-v0": _put_next(5, 2, held),
        "PutNextS6N3Carrying-v0": _put_next(6, 3, held),
        "PutNextS7N4Carrying-v0": _put_next(7, 4, held),
        "Unlock-v0": _unlock(fixed=fixed),
        "UnlockLocal-v0": _unlock_local(key(CENTRE)),
        "UnlockLocalDist-v0": _unlock_local(key(CENTRE), Things(count=3, unique=True, rooms=(CENTRE,))),
        "KeyInBox-v0": _unlock_local(Things((BOX,), rooms=(CENTRE,), key_inside=Shared(0))),
        "UnlockPickup-v0": unlock_pickup(by=BY_KIND | BY_COLOUR, max_steps=8 * 6**2 if fixed else None),
        "UnlockPickupDist-v0": unlock_pickup(by=BY_KIND | BY_COLOUR, max_steps=8 * 6**2 if fixed else None, distractors=4),
        "BlockedUnlockPickup-v0": blocked_unlock_pickup(by=BY_KIND),
        "UnlockToUnlock-v0": _unlock_to_unlock(),
        "ActionObjDoor-v0": _act_on_object_or_door(),
        "FindObjS5-v0": _find_object(5),
        "FindObjS6-v0": _find_object(6),
        "FindObjS7-v0": _find_object(7),
        "KeyCorridor-v0": key_corridor(by=BY_KIND),
        "KeyCorridorS3R1-v0": key_corridor(3, 1, by=BY_KIND),
        "KeyCorridorS3R2-v0": key_corridor(3, 2, by=BY_KIND),
        "KeyCorridorS3R3-v0": key_corridor(3, 3, by=BY_KIND),
        "KeyCorridorS4R3-v0": key_corridor(4, 3, by=BY_KIND),
        "KeyCorridorS5R3-v0": key_corridor(5, 3, by=BY_KIND),
        "KeyCorridorS6R3-v0": key_corridor(6, 3, by=BY_KIND),
        "OneRoomS8-v0": _one_room_ball(),
        "OneRoomS12-v0": _one_room_ball(12),
        "OneRoomS16-v0": _one_room_ball(16),
        "OneRoomS20-v0": _one_room_ball(20),
        "MoveTwoAcrossS5N2-v0": _move_two_across(5, 2),
        "MoveTwoAcrossS8N9-v0": _move_two_across(8, 9),
        "Synth-v0": _any(unplaced),
        "SynthS5R2-v0": _any(unplaced, room_size=5, rows=2, columns=2 if fixed else 3),
        "SynthLoc-v0": _any(dataclasses.replace(unplaced, places=True)),
        "SynthSeq-v0": _any(no_unlocking),
        "MiniBossLevel-v0": _any(everything, 7, lock_chance=0.25, room_size=5, rows=2, columns=2),
        "BossLevel-v0": _any(everything),
        "BossLevelNoUnlock-v0": _any(no_unlocking, lock_chance=0.0),
    }


ENVS: dict[str, RoomLevel] = {f"BabyAI-{name}": level for name, level in _levels(fixed=False).items()}
FIXED: dict[str, RoomLevel] = {f"BabyAI-{name}": level for name, level in _levels(fixed=True).items()}
MIX = "BabyAI-Mix"
_LEAST, _MOST = 1e-30, 1e30  # weights, the largest of them and each, that float32 can add up


@flax.struct.dataclass
class MixParams:
    """Attributes:
    max_steps: steps until truncation, int32; each level's own bound holds beside it.
    weights: how often each level comes, float32 `[L]`, in proportion.
    """

    max_steps: ArrayLike
    weights: ArrayLike


def make(
    name: str,
    *,
    obs: str = "packed",
    mission: str = "leaves",
    fixed: bool = False,
    done_action: bool = False,
    max_steps: int | None = None,
) -> tuple[GridEnv, GridParams]:
    """Builds a registered level.

    Levels are as the original has them. That includes what is odd about it, of which `fixed` mends the starred:

    - * Unlock, GoToImpUnlock: the key may be in the locked room itself, so that 3 to 5% of the levels have no solution; other
      things may be there as well.
    - * UnlockPickup, UnlockPickupDist end after 72 steps, not after the 288 that were meant.
    - * SynthS5R2 has two rows of three rooms, not of two.
    - * PickupDist: walls count as grey objects, so that it is always "a grey object".
    - * PutNext..Carrying: what the agent holds still lies on the floor in the first observation, until its first action.
    - A box that is opened is gone: what asks for that box, or for anything next to it, cannot succeed any more, and goes on.
    - An object that was picked up still counts as being where it was, until the next drop.
    - With `done_action`, two leaves joined by "and" never fail.

    One oddity is not kept: about once in 750 resets of SynthS5R2 the original looks forever for a place where the agent faces
    nothing. Such a level is drawn again.

    Args:
      name: the level's id.
      obs: how the image is encoded: packed, symbolic, onehot, full or rgb.
      mission: how the mission is encoded: leaves or tokens.
      fixed: whether the original's defects are mended.
      done_action: whether success must be claimed by the action DONE.
      max_steps: steps until truncation, instead of the level's own.

    Raises:
      ValueError: an unknown name or encoding, or `max_steps` below 1.
    """
    env = _env(name, (name,), obs=obs, mission=mission, fixed=fixed, done_action=done_action, max_steps=max_steps)
    return env, env.default_params


def make_mix(
    name: str = MIX,
    *,
    levels: Sequence[str] = tuple(ENVS),
    weights: Sequence[float] | None = None,
    obs: str = "packed",
    mission: str = "leaves",
    fixed: bool = False,
    done_action: bool = False,
    max_steps: int | None = None,
) -> tuple[GridEnv, MixParams]:
    """Builds a mixture of levels, as one program: each episode is in one of them, drawn by `params.weights`.

    Worlds are as large as the largest; smaller levels lie in the upper left corner.

    Args:
      name: the id.
      levels: ids of BabyAI levels.
      weights: how often each level comes, in proportion; all alike by default.
      obs: how the image is encoded: packed, symbolic, onehot, full or rgb.
      mission: how the mission is encoded: leaves or tokens.
      fixed: whether the original's defects are mended.
      done_action: whether success must be claimed by the action DONE.
      max_steps: steps until truncation, instead of each level's own.

    Raises:
      ValueError: no level, an unknown one, weights that are none, or what `make` refuses.
    """
    if not levels:
        raise ValueError("levels: expected a list of at least one BabyAI level, got []")
    for level in levels:
        if level not in ENVS:
            raise ValueError(f"levels: expected BabyAI levels, got {level!r}; nearest: {_nearest(str(level))}")
    if weights is not None:
        check_weights("weights", weights, len(levels))
    env = _env(name, tuple(levels), obs=obs, mission=mission, fixed=fixed, done_action=done_action, max_steps=max_steps)
    env = dataclasses.replace(env, level=dataclasses.replace(env.level, names=tuple(levels)))
    return env, MixParams(
        max_steps=env.default_params.max_steps,
        weights=np.asarray([1] * len(levels) if weights is None else weights, np.float32),
    )


def check_weights(field: str, weights: ArrayLike | Sequence[float], count: int) -> None:
    """Raises ValueError where a mixture of `count` levels cannot be drawn by such weights."""
    shares = np.asarray(weights)
    if shares.shape != (count,) or not np.all((shares >= 0) & (shares <= _MOST)) or not np.any(shares >= _LEAST):
        expected = f"a list of {count}, each from 0 to {_MOST:g}, one of them {_LEAST:g} or more"
        raise ValueError(f"{field}: expected {expected}, got {schema.shown(weights)}")


def member(env: Environment, level: str | None) -> Environment:
    """One level of a mixture by itself, with the mixture's options. What is no mixture is its own and only level.

    Args:
      env: a mixture, or not.
      level: the level's id; None will do where `env` is no mixture.

    Raises:
      ValueError: a level that is not in it, or None for a mixture.
    """
    names = env.level.names if isinstance(env, GridEnv) else ()
    if isinstance(env, GridEnv) and level in names:
        generate: Any = env.level.generate
        alone = rooms.level(generate.levels[names.index(level)])
        return dataclasses.replace(env, name=level, level=dataclasses.replace(alone, done_action=env.level.done_action))
    name = env.spec.name
    if names:
        found = "none" if level is None else f"{level!r}; nearest: {_nearest(level, names)}"
        known = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
        raise ValueError(f"level: expected one of those that {name} mixes ({known}), got {found}")
    if level not in (None, name):
        raise ValueError(f"level: expected none, because {name} is no mixture, got {level!r}")
    return env


def only(env: Environment, params: PyTree, level: str | None) -> PyTree:
    """Params with which a mixture consists of one level. Raises as `member`."""
    member(env, level)
    if not isinstance(env, GridEnv) or not env.level.names:
        return params
    return dataclasses.replace(params, weights=np.array([name == level for name in env.level.names], np.float32))


def _nearest(name: str, known: Collection[str] = ENVS) -> str:
    return ", ".join(difflib.get_close_matches(name, known, cutoff=0.0))


def _env(
    name: str, levels: tuple[str, ...], *, obs: str, mission: str, fixed: bool, done_action: bool, max_steps: int | None
) -> GridEnv:
    table = FIXED if fixed else ENVS
    for known in levels:
        if known not in table:
            raise ValueError(f"name: expected a BabyAI level, got {known!r}; nearest: {_nearest(known)}")
    chosen = [table[level] for level in levels]
    if max_steps is not None:
        chosen = [dataclasses.replace(level, max_steps=max_steps) for level in chosen]
    env = GridEnv(name, dataclasses.replace(rooms.level(*chosen), done_action=done_action), obs, mission)
    env.validate()
    return env
