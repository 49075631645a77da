"""MiniGrid's levels (Chevalier-Boisvert et al., 2023), equal to Farama's `minigrid` 3.2.0 in rules and in distribution."""

import dataclasses
import difflib

from jaxagent.envs import language, room_levels, rooms, symbols
from jaxagent.envs.grid import Generator, GridEnv, GridParams, Level
from jaxagent.envs.minigrid.multiroom import MultiRoom
from jaxagent.envs.minigrid.tasks import Fetch, GoToObject, Memory, PutNear, go_to_door, playground, red_blue_doors
from jaxagent.envs.minigrid.worlds import (
    Crossing,
    DistShift,
    DynamicObstacles,
    door_key,
    empty,
    empty_random,
    four_rooms,
    lava_gap,
    locked_room,
)


def _always(
    verb: int, generate: Generator, width: int, height: int, max_steps: int, *, see_through_walls: bool = False
) -> Level:
    """A level whose mission is the same in every instance, and has no more words than its verb."""
    mission = (verb, *[0] * (len(language.LEAVES_SPACE.nvec) - 1))
    return Level(generate, (width, height), max_steps, mission, frozenset({verb}), see_through_walls=see_through_walls)


def _empty(generate: Generator, side: int) -> Level:
    return _always(language.REACH_GREEN_GOAL, generate, side, side, 4 * side**2, see_through_walls=True)


def _door_key(side: int) -> Level:
    return _always(language.USE_KEY, door_key, side, side, 10 * side**2)


def _lava_gap(side: int) -> Level:
    return _always(language.AVOID_LAVA, lava_gap, side, side, 4 * side**2)


def _lava_crossing(side: int, rivers: int) -> Level:
    return _always(language.AVOID_LAVA, Crossing(rivers, symbols.LAVA_CELL), side, side, 4 * side**2)


def _simple_crossing(side: int, rivers: int) -> Level:
    return _always(language.FIND_OPENING, Crossing(rivers, symbols.WALL_CELL), side, side, 4 * side**2)


def _dist_shift(lower: int) -> Level:
    return _always(language.REACH_GREEN_GOAL, DistShift(lower), 9, 7, 4 * 9 * 7, see_through_walls=True)


def _dynamic_obstacles(side: int, count: int, *, anywhere: bool = False) -> Level:
    level = _empty(DynamicObstacles(count, anywhere), side)
    return dataclasses.replace(level, num_actions=3, obstacles=count)


def _multi_room(count: int, largest: int) -> Level:
    return _always(language.TRAVERSE_ROOMS, MultiRoom(count, largest), 25, 25, 20 * count)


def _red_blue_doors(side: int) -> Level:
    return _always(language.OPEN_RED_THEN_BLUE, red_blue_doors, 2 * side, side, 20 * side**2)


def _memory(side: int, *, random_length: bool = False) -> Level:
    level = _always(language.FIND_MATCH, Memory(random_length), side, side, 5 * side**2)
    return dataclasses.replace(level, pickup_toggles=True)


def _fetch(side: int, count: int, *, solvable: bool = False) -> Level:
    return Level(
        Fetch(count, solvable),
        (side, side),
        5 * side**2,
        verbs=frozenset(range(language.GET, language.MUST_FETCH + 1)),
        see_through_walls=True,
        rejects=solvable,
    )


def _go_to(generate: Generator, side: int, max_steps: int) -> Level:
    return Level(generate, (side, side), max_steps, verbs=frozenset({language.STOP_NEXT_TO}), see_through_walls=True)


def _put_near(side: int, count: int) -> Level:
    return Level(PutNear(count), (side, side), 5 * side, verbs=frozenset({language.PUT_NEAR}), see_through_walls=True)


ENVS: dict[str, Level] = {
    "MiniGrid-DistShift1-v0": _dist_shift(2),
    "MiniGrid-DistShift2-v0": _dist_shift(5),
    "MiniGrid-DoorKey-5x5-v0": _door_key(5),
    "MiniGrid-DoorKey-6x6-v0": _door_key(6),
    "MiniGrid-DoorKey-8x8-v0": _door_key(8),
    "MiniGrid-DoorKey-16x16-v0": _door_key(16),
    "MiniGrid-Dynamic-Obstacles-5x5-v0": _dynamic_obstacles(5, 2),
    "MiniGrid-Dynamic-Obstacles-6x6-v0": _dynamic_obstacles(6, 3),
    "MiniGrid-Dynamic-Obstacles-8x8-v0": _dynamic_obstacles(8, 4),
    "MiniGrid-Dynamic-Obstacles-16x16-v0": _dynamic_obstacles(16, 8),
    "MiniGrid-Dynamic-Obstacles-Random-5x5-v0": _dynamic_obstacles(5, 2, anywhere=True),
    "MiniGrid-Dynamic-Obstacles-Random-6x6-v0": _dynamic_obstacles(6, 3, anywhere=True),
    "MiniGrid-Empty-5x5-v0": _empty(empty, 5),
    "MiniGrid-Empty-6x6-v0": _empty(empty, 6),
    "MiniGrid-Empty-8x8-v0": _empty(empty, 8),
    "MiniGrid-Empty-16x16-v0": _empty(empty, 16),
    "MiniGrid-Empty-Random-5x5-v0": _empty(empty_random, 5),
    "MiniGrid-Empty-Random-6x6-v0": _empty(empty_random, 6),
    "MiniGrid-Fetch-5x5-N2-v0": _fetch(5, 2),
    "MiniGrid-Fetch-6x6-N2-v0": _fetch(6, 2),
    "MiniGrid-Fetch-8x8-N3-v0": _fetch(8, 3),
    "MiniGrid-FourRooms-v0": _always(language.REACH_GOAL, four_rooms, 19, 19, 100),
    "MiniGrid-GoToDoor-5x5-v0": _go_to(go_to_door, 5, 4 * 5**2),
    "MiniGrid-GoToDoor-6x6-v0": _go_to(go_to_door, 6, 4 * 6**2),
    "MiniGrid-GoToDoor-8x8-v0": _go_to(go_to_door, 8, 4 * 8**2),
    "MiniGrid-GoToObject-6x6-N2-v0": _go_to(GoToObject(2), 6, 5 * 6**2),
    "MiniGrid-GoToObject-8x8-N2-v0": _go_to(GoToObject(2), 8, 5 * 8**2),
    "MiniGrid-LavaCrossingS9N1-v0": _lava_crossing(9, 1),
    "MiniGrid-LavaCrossingS9N2-v0": _lava_crossing(9, 2),
    "MiniGrid-LavaCrossingS9N3-v0": _lava_crossing(9, 3),
    "MiniGrid-LavaCrossingS11N5-v0": _lava_crossing(11, 5),
    "MiniGrid-LavaGapS5-v0": _lava_gap(5),
    "MiniGrid-LavaGapS6-v0": _lava_gap(6),
    "MiniGrid-LavaGapS7-v0": _lava_gap(7),
    "MiniGrid-LockedRoom-v0": Level(locked_room, (19, 19), 190, verbs=frozenset({language.UNLOCK_ROOM})),
    "MiniGrid-MemoryS7-v0": _memory(7),
    "MiniGrid-MemoryS9-v0": _memory(9),
    "MiniGrid-MemoryS11-v0": _memory(11),
    "MiniGrid-MemoryS13-v0": _memory(13),
    "MiniGrid-MemoryS13Random-v0": _memory(13, random_length=True),
    "MiniGrid-MemoryS17Random-v0": _memory(17, random_length=True),
    "MiniGrid-MultiRoom-N2-S4-v0": _multi_room(2, 4),
    "MiniGrid-MultiRoom-N4-S5-v0": _multi_room(6, 5),
    "MiniGrid-MultiRoom-N4-S5-v1": _multi_room(4, 5),
    "MiniGrid-MultiRoom-N6-v0": _multi_room(6, 10),
    "MiniGrid-Playground-v0": _always(language.PLAY, playground, 19, 19, 100),
    "MiniGrid-PutNear-6x6-N2-v0": _put_near(6, 2),
    "MiniGrid-PutNear-8x8-N3-v0": _put_near(8, 3),
    "MiniGrid-RedBlueDoors-6x6-v0": _red_blue_doors(6),
    "MiniGrid-RedBlueDoors-8x8-v0": _red_blue_doors(8),
    "MiniGrid-SimpleCrossingS9N1-v0": _simple_crossing(9, 1),
    "MiniGrid-SimpleCrossingS9N2-v0": _simple_crossing(9, 2),
    "MiniGrid-SimpleCrossingS9N3-v0": _simple_crossing(9, 3),
    "MiniGrid-SimpleCrossingS11N5-v0": _simple_crossing(11, 5),
    **{name: rooms.level(level) for name, level in room_levels.minigrid().items()},
}

# what becomes of defective levels when they are mended
FIXED: dict[str, Level] = {
    "MiniGrid-Fetch-8x8-N3-v0": _fetch(8, 3, solvable=True),
    "MiniGrid-MultiRoom-N4-S5-v0": ENVS["MiniGrid-MultiRoom-N4-S5-v1"],
    **{
        f"MiniGrid-ObstructedMaze-{size}-v0": ENVS[f"MiniGrid-ObstructedMaze-{size}-v1"]
        for size in ("2Dlhb", "1Q", "2Q", "Full")
    },
}


def make(
    name: str, *, obs: str = "packed", mission: str = "leaves", fixed: bool = False, max_steps: int | None = None
) -> tuple[GridEnv, GridParams]:
    """Builds a registered level.

    Levels are as the original has them. That includes what is odd about it, of which `fixed` mends the starred:

    - * Fetch-8x8-N3: in some levels of ten thousand the agent, or all that it may pick up, is walled in by the other objects.
    - * MultiRoom-N4-S5-v0 has six rooms, not four.
    - * ObstructedMaze 2Dlhb, 1Q, 2Q and Full, v0: a ball in front of one door may take the place of the key of another one.
    - Dynamic-Obstacles: whoever walks to where an obstacle was until then collides with it.
    - PutNear ends after five times as many steps as its room is wide, not as it has cells.

    Args:
      name: the level's id.
      obs: how the image is encoded: packed, symbolic, onehot, full or rgb.
      mission: how the mission is encoded: leaves or tokens.
      fixed: whether the original's defects are mended.
      max_steps: steps until truncation, instead of the level's own.

    Raises:
      ValueError: an unknown name or encoding, or `max_steps` below 1.
    """
    if name not in ENVS:
        nearest = ", ".join(difflib.get_close_matches(name, ENVS, cutoff=0.0))
        raise ValueError(f"name: expected a MiniGrid level, got {name!r}; nearest: {nearest}")
    level = FIXED.get(name, ENVS[name]) if fixed else ENVS[name]
    if max_steps is not None:
        level = dataclasses.replace(level, max_steps=max_steps)
    env = GridEnv(name, level, obs, mission)
    env.validate()
    return env, env.default_params
