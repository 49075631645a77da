"""The table of MiniGrid's levels and their generators, against Farama's."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import generators  # noqa: E402

from jaxagent.envs import language, minigrid, symbols  # noqa: E402

RESETS = 200
LEVEL = 0.001  # chance of a false alarm an id
FARAMA_IDS = sorted(name for name in gymnasium.registry if name.startswith("MiniGrid-") and "WFC" not in name)
# one level of each generator and kind of size
COMPARED = [
    "MiniGrid-BlockedUnlockPickup-v0",
    "MiniGrid-DistShift2-v0",
    "MiniGrid-DoorKey-6x6-v0",
    "MiniGrid-Dynamic-Obstacles-8x8-v0",
    "MiniGrid-Dynamic-Obstacles-Random-5x5-v0",
    "MiniGrid-Empty-Random-5x5-v0",
    "MiniGrid-Fetch-8x8-N3-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-GoToDoor-8x8-v0",
    "MiniGrid-GoToObject-6x6-N2-v0",
    "MiniGrid-KeyCorridorS3R3-v0",
    "MiniGrid-LavaCrossingS9N2-v0",
    "MiniGrid-LavaGapS6-v0",
    "MiniGrid-LockedRoom-v0",
    "MiniGrid-MemoryS7-v0",
    "MiniGrid-MemoryS13Random-v0",
    "MiniGrid-MultiRoom-N2-S4-v0",
    "MiniGrid-MultiRoom-N6-v0",
    "MiniGrid-ObstructedMaze-1Dlh-v0",
    "MiniGrid-ObstructedMaze-2Dlhb-v0",
    "MiniGrid-ObstructedMaze-Full-v1",
    "MiniGrid-Playground-v0",
    "MiniGrid-PutNear-8x8-N3-v0",
    "MiniGrid-RedBlueDoors-6x6-v0",
    "MiniGrid-SimpleCrossingS11N5-v0",
    "MiniGrid-Unlock-v0",
    "MiniGrid-UnlockPickup-v0",
]


# the table --------------------------------------------------------------------------------------------------------------------


@pytest.mark.fast
def test_every_id_is_there():
    assert sorted(minigrid.ENVS) == FARAMA_IDS


@pytest.mark.parametrize("name", sorted(minigrid.ENVS))
def test_facts_are_those_of_farama(name):
    env, params = minigrid.make(name)
    source = gymnasium.make(gymnasium.registry[name]).unwrapped
    level = env.level
    assert level.size == (source.width, source.height)
    assert level.max_steps == source.max_steps == params.max_steps
    assert level.see_through_walls == source.see_through_walls
    assert env.spec.action.n == source.action_space.n
    source.reset(seed=0)
    if level.mission is not None:
        assert language.text(language.unflatten(level.mission)) == source.mission
        assert level.verbs == {level.mission[0]}
    else:
        assert language.parse(source.mission, level.verbs)


# distributions ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPARED)
def test_levels_have_the_same_distribution(name):
    levels = [sample(name, RESETS, 1) for sample in (generators.ours, generators.theirs)]
    tests = generators.compare(*levels, resolution=LEVEL / (2 * generators.TESTS_PER_ID))
    assert len(tests) <= generators.TESTS_PER_ID
    failed = generators.rejected(np.array([test.p for test in tests]), LEVEL)
    assert not failed.any(), [test for test, fails in zip(tests, failed, strict=True) if fails]


@pytest.mark.parametrize("what", ["direction", "place", "colour", "mission"])
def test_other_distributions_are_told_apart(what):
    """A direction never taken, a cell never used, a thing never there, a mission about something else."""
    levels, other = (generators.theirs("MiniGrid-GoToObject-6x6-N2-v0", 300, seed) for seed in (2, 3))
    tests = generators.compare(levels, other, resolution=1e-3)
    assert not generators.rejected(np.array([test.p for test in tests]), LEVEL).any()

    cells, direction, missions = levels.cells.copy(), levels.direction.copy(), list(levels.missions)
    if what == "direction":
        direction[direction == 1] = 2
    elif what == "place":
        cells[:, 1, 1] = symbols.EMPTY_CELL
    elif what == "colour":
        cells[cells == symbols.symbol(symbols.KEY, symbols.RED)] = symbols.symbol(symbols.KEY, symbols.BLUE)
    else:
        missions = missions[1:] + missions[:1]
    altered = levels._replace(cells=cells, direction=direction, missions=missions)
    tests = generators.compare(altered, other, resolution=LEVEL / (2 * generators.TESTS_PER_ID))
    assert generators.rejected(np.array([test.p for test in tests]), LEVEL).any()


@pytest.mark.fast
def test_holms_method():
    # sorted: 0.005 * 4, 0.011 * 3, 0.02 * 2, 0.04 * 1 against 0.05: all but those from the first that is above it
    np.testing.assert_array_equal(generators.rejected(np.array([0.04, 0.005, 0.02, 0.011]), 0.05), [True] * 4)
    np.testing.assert_array_equal(generators.rejected(np.array([0.04, 0.005, 0.03, 0.011]), 0.05), [False, True, False, True])


# what tasks are about -------------------------------------------------------------------------------------------------------


def drawn(name, count=64, **options):
    """Layouts of levels, as NumPy arrays."""
    level = minigrid.make(name, **options)[0].level
    keys = jax.random.split(jax.random.key(7), count)
    return jax.device_get(jax.jit(jax.vmap(lambda key: level.generate(key, *level.size)))(keys))


def texts(missions):
    return [language.text(language.Mission(leaves, order)) for leaves, order in zip(*missions, strict=True)]


def described(symbol):
    kind = symbols.kind_of(int(symbol))
    name = "door" if kind >= symbols.DOOR_CLOSED else symbols.KIND_NAMES[kind]
    return f"{symbols.COLOUR_NAMES[symbols.colour_of(int(symbol))]} {name}"


@pytest.mark.parametrize(
    "name",
    [
        "MiniGrid-Fetch-8x8-N3-v0",
        "MiniGrid-GoToDoor-8x8-v0",
        "MiniGrid-GoToObject-8x8-N2-v0",
        "MiniGrid-PutNear-8x8-N3-v0",
    ],
)
def test_members_are_what_the_mission_names(name):
    layouts = drawn(name)
    for i, mission in enumerate(texts(layouts.mission)):
        rows, members = layouts.rows, layouts.members[i]
        for bit, said in enumerate(mission.split(" near ")):
            for symbol, (x, y), member in zip(rows.symbol[i], rows.xy[i], members, strict=True):
                assert layouts.grid[i, y, x] == symbol
                assert (member >> bit & 1 == 1) == said.endswith(described(symbol))
            assert np.any(members >> bit & 1)


def test_memory_succeeds_at_the_like():
    layouts = drawn("MiniGrid-MemoryS13Random-v0")
    assert (layouts.members == [1, 2]).all()
    for world, ends in zip(layouts.grid, layouts.rows.xy, strict=True):
        shown = world[5, 1]
        for (x, y), like in zip(ends, (True, False), strict=True):
            assert world[y, x] == symbols.EMPTY_CELL
            assert (world[y + (1 if y > 6 else -1), x] == shown) == like


def test_locked_room_says_where_the_key_is():
    layouts = drawn("MiniGrid-LockedRoom-v0")
    for world, mission in zip(layouts.grid, texts(layouts.mission), strict=True):
        ((y, x),) = np.argwhere(world >> 3 == symbols.KEY)
        door = world[6 * (y // 6) + 3, 7 if x < 7 else 11]  # of the room with the key
        (locked,) = world[world >> 3 == symbols.DOOR_LOCKED]
        colours = [symbols.COLOUR_NAMES[symbol & 7] for symbol in (world[y, x], door, locked)]
        assert mission == "get the {} key from the {} room, unlock the {} door and go to the goal".format(*colours)
        ((y, x),) = np.argwhere(world == symbols.GOAL_CELL)
        assert world[6 * (y // 6) + 3, 7 if x < 7 else 11] == locked


# levels that are mended -----------------------------------------------------------------------------------------------------


def test_multi_room_of_four_rooms():
    for fixed, rooms in ((False, 6), (True, 4)):
        worlds = drawn("MiniGrid-MultiRoom-N4-S5-v0", fixed=fixed).grid
        assert (np.sum(worlds >> 3 == symbols.DOOR_CLOSED, axis=(1, 2)) == rooms - 1).all()
        assert minigrid.make("MiniGrid-MultiRoom-N4-S5-v0", fixed=fixed)[1].max_steps == 20 * rooms


def test_fetch_without_walled_in_agents_and_targets():
    """A few levels in ten thousand cannot be solved: nothing that the agent may pick up can be reached."""
    assert minigrid.make("MiniGrid-Fetch-8x8-N3-v0", fixed=True)[0].level.rejects
    layouts = drawn("MiniGrid-Fetch-8x8-N3-v0", 20_000, fixed=True)
    every = np.arange(len(layouts.grid))
    standing = np.zeros(layouts.grid.shape, bool)
    standing[every, layouts.agent[:, 1], layouts.agent[:, 0]] = True
    reached = generators.distances(standing, layouts.grid == symbols.EMPTY_CELL) < generators.FAR
    at_rows = reached[every[:, None], layouts.rows.xy[..., 1], layouts.rows.xy[..., 0]]
    solvable = np.any(at_rows & (layouts.members == 1), axis=1)
    np.testing.assert_array_equal(layouts.accepted, solvable)
    assert 0 < np.sum(~solvable) < 30


def test_obstructed_mazes_keep_their_keys():
    """Eight keys in boxes, two a quarter; in the original, balls that block doors bury some of them."""
    name = "MiniGrid-ObstructedMaze-Full-v0"
    boxes = {fixed: np.sum(drawn(name, 256, fixed=fixed).grid >> 3 == symbols.BOX, axis=(1, 2)) for fixed in (False, True)}
    assert (boxes[True] == 8).all() and (boxes[False] <= 8).all() and (boxes[False] < 8).any()


@pytest.mark.fast
def test_errors_name_the_field():
    for options, message in (({"mission": "words"}, "mission: expected one of"), ({"max_steps": 0}, "max_steps: expected")):
        with pytest.raises(ValueError, match=message):
            minigrid.make("MiniGrid-Empty-5x5-v0", **options)
    with pytest.raises(ValueError, match="nearest: MiniGrid-MultiRoom-N6-v0"):
        minigrid.make("MiniGrid-MultiRoom-N6")
