"""The generator of rooms: its distributions against arithmetic and plain simulation, on levels made for the purpose."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats

from jaxagent.envs import language, symbols
from jaxagent.envs.language import ALONE, GO_TO, OPEN, PICK_UP, PUT_NEXT, THEN
from jaxagent.envs.rooms import Rooms, level
from jaxagent.envs.rooms.levels import (
    ALL_REACHABLE,
    BEFORE_CONNECTING,
    BEHIND_LOCK,
    BY_COLOUR,
    BY_KIND,
    BY_PLACE,
    FIRST,
    OUTSIDE_LOCK,
    SIDES,
    SOME_BLOCKED,
    UNCHECKED,
    Agent,
    Command,
    Doors,
    Grammar,
    Lock,
    RoomLevel,
    Shared,
    Target,
    Things,
    beyond,
    canonical,
)
from jaxagent.envs.symbols import BALL, BLUE, BOX, DOOR_CLOSED, DOOR_LOCKED, DOWN, EMPTY_CELL, GREEN, KEY, LEFT, RED, RIGHT, UP

SIGNIFICANCE = 1e-4  # of each test of a distribution; keys are fixed, so that what passes once passes always
DRAWS = 4096
CENTRE = (1, 1)
GO = Command(((Target((0, 1)),),), (GO_TO,))


def draw(*levels, count=DRAWS, variant=None, seed=0):
    """Accepted layouts of NumPy arrays `[count, ...]`, and the share of those accepted."""
    rooms, size = Rooms(levels), level(*levels).size
    keys = jax.random.split(jax.random.key(seed), count)
    layouts = jax.jit(jax.vmap(lambda key: rooms(key, *size, *([] if variant is None else [variant]))))(keys)
    layouts = jax.tree.map(np.asarray, layouts._replace(strict=np.uint8(0)))
    accepted = layouts.accepted
    return jax.tree.map(lambda leaf: leaf[accepted] if leaf.ndim else leaf, layouts), accepted.mean()


def assert_frequencies(counts, expected):
    """Chi-square; `expected` are probabilities in the shape of `counts`."""
    counts, expected = np.ravel(counts), np.ravel(expected)
    possible = expected > 0
    assert not counts[~possible].any()
    if possible.sum() == 1:
        return
    total = counts.sum()
    assert stats.chisquare(counts[possible], expected[possible] / expected.sum() * total).pvalue > SIGNIFICANCE


def grids(layouts, kind):
    return symbols.kind_of(layouts.grid) == kind


def one_room(*things, room_size=8, when=FIRST, instruction=GO, **options):
    return RoomLevel(instruction, things=things, agent=Agent(when=when), room_size=room_size, rows=1, columns=1, **options)


# walls ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.fast
def test_walls_are_numbered_once():
    maze = RoomLevel(GO, connect=True)
    assert len(maze.walls) == 12  # 3 rows of 2, and 3 columns of 2
    assert maze.walls[:2] == (((0, 0), RIGHT), ((0, 0), DOWN))
    for room, side in itertools.product(maze.rooms, SIDES):
        other = (beyond((room, side)), (side + 2) % 4)
        assert canonical((room, side)) == canonical(other)


@pytest.mark.fast
def test_only_walls_where_doors_can_be_have_a_number():
    assert RoomLevel(GO).walls == ()
    assert RoomLevel(GO, doors=(Doors(((CENTRE, UP), (CENTRE, LEFT))),)).walls == (((1, 0), DOWN), ((0, 1), RIGHT))
    assert len(RoomLevel(GO, lock=Lock((CENTRE,))).walls) == 4


# things and the agent ---------------------------------------------------------------------------------------------------------


def test_things_are_anywhere_but_near_the_agent():
    layouts, accepted = draw(one_room(Things((BALL,)), room_size=5))
    assert accepted == 1
    agent, ball = layouts.agent - 1, layouts.rows.xy[:, 0] - 1  # of 3 x 3 cells
    counts = np.zeros((3, 3, 3, 3), int)
    np.add.at(counts, (*agent.T, *ball.T), 1)
    expected = np.zeros(counts.shape)
    for cells in itertools.product(range(3), repeat=4):
        expected[cells] = abs(cells[0] - cells[2]) + abs(cells[1] - cells[3]) >= 2
    assert_frequencies(counts, expected / expected.sum(axis=(2, 3), keepdims=True))
    assert_frequencies(np.bincount(layouts.direction, minlength=4), np.ones(4))


def test_an_agent_that_comes_last_looks_at_nothing():
    layouts, _ = draw(one_room(Things((BALL,)), room_size=4, when=3 - 1))
    # the agent is thought of as at (2, 2) at first: the ball can be at (1, 1) only, which leaves three cells
    assert (layouts.rows.xy[:, 0] == 1).all()
    counts = np.zeros((2, 2, 4), int)
    np.add.at(counts, (*(layouts.agent.T - 1), layouts.direction), 1)
    expected = np.ones((2, 2, 4))
    expected[0, 0] = 0
    expected[1, 0, LEFT] = expected[0, 1, UP] = 0
    assert_frequencies(counts, expected)


def test_looks():
    others = Things(but=((BALL, RED), (BALL, BLUE)), count=2)
    layouts, _ = draw(one_room(others, Things((BALL,), (RED, BLUE)), Things((KEY, BOX), (GREEN,))))
    looks = symbols.kind_of(layouts.rows.symbol) - KEY, symbols.colour_of(layouts.rows.symbol)
    counts = np.zeros((4, 3, 6), int)
    np.add.at(counts, (np.broadcast_to(np.arange(4), looks[0].shape), *looks), 1)
    expected = np.ones((4, 3, 6))
    expected[:2, BALL - KEY, [RED, BLUE]] = 0
    expected[2:] = 0
    expected[2, BALL - KEY, [RED, BLUE]] = 1
    expected[3, [0, BOX - KEY], GREEN] = 1
    assert_frequencies(counts, expected / expected.sum(axis=(1, 2), keepdims=True))


def test_unlike_things():
    layouts, _ = draw(one_room(Things((KEY,), (RED,)), Things(count=17, unique=True)), count=256)
    assert all(len(set(row)) == 18 for row in layouts.rows.symbol.tolist())
    second = np.bincount(layouts.rows.symbol[:, 1] - symbols.symbol(KEY, RED), minlength=24)
    assert_frequencies(second.reshape(3, 8)[:, :6].ravel()[1:], np.ones(17))


@pytest.mark.parametrize("when", [FIRST, FIRST + 2])
def test_a_full_room_is_rejected(when):
    # 9 cells, of which the agent's surroundings, or at first the middle, take 3 to 5; three things always fit beside the middle
    _, accepted = draw(one_room(Things(count=3), room_size=5, when=when), count=256)
    assert accepted == 1
    _, accepted = draw(one_room(Things(count=7), room_size=5, when=when), count=256)
    assert accepted == 0


def test_what_lies_beside_a_door_buries_what_was_there():
    wall = ((0, 0), RIGHT)
    levels = RoomLevel(
        Command(((Target((1, 2)),),), (GO_TO,)),
        things=(Things((KEY,), rooms=((0, 0),)), Things((BALL,), beside=wall)),
        agent=Agent(((1, 0),)),
        doors=(Doors((wall,)),),
        room_size=4,
        rows=1,
        columns=2,
    )
    layouts, _ = draw(levels)
    door = np.argwhere(grids(layouts, DOOR_CLOSED))[:, [2, 1]]
    np.testing.assert_array_equal(layouts.rows.xy[:, 1], door - [1, 0])
    buried = layouts.rows.xy[:, 0, 0] < 0
    np.testing.assert_array_equal(grids(layouts, KEY).sum(axis=(1, 2)), ~buried)
    assert_frequencies([buried.sum(), (~buried).sum()], [1 / 4, 3 / 4])  # the ball is in one of two of four cells


def test_a_key_in_a_box():
    box = Things((BOX,), key_inside=Shared(0))
    layouts, _ = draw(one_room(Things((BALL,)), box, lock=None), count=64)
    assert layouts.rows.contents.tolist() == [[-1, 2, -1]] * 64
    assert (symbols.kind_of(layouts.rows.symbol[:, 2]) == KEY).all() and (layouts.rows.xy[:, 2] == -1).all()
    assert not grids(layouts, KEY).any()


# doors ------------------------------------------------------------------------------------------------------------------------


def doors_of(layouts, room_size=4):
    """Doors by room and side, bool `[n, 3, 3, 2]` of the right and the lower side, as `[column, row]`."""
    doors = grids(layouts, DOOR_CLOSED) | grids(layouts, DOOR_LOCKED)
    pitch = room_size - 1
    found = np.zeros((len(doors), 3, 3, 2), bool)
    for i, j in itertools.product(range(3), repeat=2):
        x, y = i * pitch, j * pitch
        if i < 2:
            found[:, i, j, 0] = doors[:, y + 1 : y + pitch, x + pitch].any(axis=1)
        if j < 2:
            found[:, i, j, 1] = doors[:, y + pitch, x + 1 : x + pitch].any(axis=1)
    return found


def connected(doors):
    """Whether a `[3, 3, 2]` of doors connects all rooms."""
    reach = {(0, 0)}
    for _ in range(9):
        for i, j, side in np.argwhere(doors):
            ends = {(int(i), int(j)), (int(i) + (side == 0), int(j) + (side == 1))}
            if reach & ends:
                reach |= ends
    return len(reach) == 9


def connect_by_chance(rng):
    """Doors as the original adds them."""
    doors = np.zeros((3, 3, 2), bool)
    walls = [wall for wall in itertools.product(range(3), range(3), range(2)) if wall[wall[2]] < 2]
    while not connected(doors):
        doors[walls[rng.integers(len(walls))]] = True
    return doors


def test_connecting_doors_are_those_of_the_original():
    layouts, accepted = draw(RoomLevel(GO, things=(Things(),), connect=True, room_size=4, agent=Agent(when=FIRST)))
    assert accepted == 1
    ours = doors_of(layouts)
    assert all(connected(doors) for doors in ours[:200])
    rng = np.random.default_rng(0)
    originals = np.array([connect_by_chance(rng) for _ in range(2000)])
    for count in (lambda doors: doors.sum(axis=(1, 2, 3)), lambda doors: doors[:, 1, 1].sum(axis=1)):
        table = np.array([np.bincount(count(doors), minlength=13) for doors in (ours, originals)])
        assert stats.chi2_contingency(table[:, table.min(axis=0) >= 5]).pvalue > SIGNIFICANCE
    colours = symbols.colour_of(layouts.grid[grids(layouts, DOOR_CLOSED)])
    assert_frequencies(np.bincount(colours), np.ones(6))


@pytest.mark.parametrize("by_door", [False, True])
def test_the_locked_room(by_door):
    """It has one door; the key has its colour and is elsewhere, as the agent is; without a lock there is no key."""
    maze = RoomLevel(
        Command(((Target((1, 2)),),), (GO_TO,)),
        things=(Things((KEY,), Shared(0), lock=OUTSIDE_LOCK, if_locked=True), Things((BALL,))),
        late=(Things((BOX,), lock=BEHIND_LOCK, if_locked=True),),
        agent=Agent(outside_lock=True),
        lock=Lock(by_door=by_door, chance=0.75),
        connect=True,
        spares_lock_colour=True,
        room_size=5,
    )
    layouts, _ = draw(maze)
    locks = grids(layouts, DOOR_LOCKED)
    locked = locks.any(axis=(1, 2))
    assert_frequencies([locked.sum(), (~locked).sum()], [0.75, 0.25])
    np.testing.assert_array_equal(grids(layouts, KEY).any(axis=(1, 2)), locked)
    layouts = jax.tree.map(lambda leaf: leaf[locked] if leaf.ndim else leaf, layouts)

    room = layouts.rows.xy[:, 2] // 4  # of the box
    counts = np.zeros((3, 3), int)
    np.add.at(counts, tuple(room.T), 1)
    degree = np.array([[2, 3, 2], [3, 4, 3], [2, 3, 2]])
    assert_frequencies(counts, degree / 24 if by_door else np.full((3, 3), 1 / 9))
    for other in (layouts.rows.xy[:, 0], layouts.agent):
        assert (other // 4 != room).any(axis=1).all()

    doors, (n, y, x) = doors_of(layouts, room_size=5), np.nonzero(locks[locked])
    assert (n == np.arange(len(room))).all()
    lock_colour = symbols.colour_of(layouts.grid[n, y, x])
    np.testing.assert_array_equal(lock_colour, symbols.colour_of(layouts.rows.symbol[:, 0]))
    for case, (i, j) in zip(doors, room, strict=True):
        around = [case[i, j, 0], case[i, j, 1], i > 0 and case[i - 1, j, 0], j > 0 and case[i, j - 1, 1]]
        assert sum(around) == 1 and connected(case)
    closed = grids(layouts, DOOR_CLOSED)
    same = (closed & (symbols.colour_of(layouts.grid) == lock_colour[:, None, None])).any(axis=(1, 2))
    number = closed.sum(axis=(1, 2))
    expected = 0.5 * (1 - (5 / 6) ** number)  # of doors that happen to have that colour, if they may
    assert abs(same.sum() - expected.sum()) < 4 * np.sqrt((expected * (1 - expected)).sum())


def test_given_doors():
    four = tuple((CENTRE, side) for side in SIDES)
    go = Command(((Target(doors=None),),), (GO_TO,))
    layouts, _ = draw(RoomLevel(go, doors=(Doors(four, 2, Shared(0), locked=None),), agent=Agent((CENTRE,)), room_size=4))
    doors = grids(layouts, DOOR_CLOSED) | grids(layouts, DOOR_LOCKED)
    assert (doors.sum(axis=(1, 2)) == 2).all()
    pairs = doors_of(layouts)[:, [1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 0, 1]] @ [1, 2, 4, 8]
    assert_frequencies(np.bincount(pairs, minlength=16), [bin(pair).count("1") == 2 for pair in range(16)])
    assert_frequencies(np.bincount(grids(layouts, DOOR_LOCKED).sum(axis=(1, 2))), [1 / 4, 1 / 2, 1 / 4])
    colours = symbols.colour_of(layouts.grid[doors].reshape(-1, 2))
    counts = np.zeros((6, 6), int)
    np.add.at(counts, tuple(colours.T), 1)
    assert_frequencies(counts, 1 - np.eye(6))


def test_openings():
    """An opening is floor from the start, or in the end only."""
    opening = ((0, 0), DOWN)
    two = RoomLevel(
        GO, things=(Things(rooms=((0, 0),)),), agent=Agent(((0, 1),)), openings=(opening,), room_size=4, rows=2, columns=1
    )
    for last in (False, True):
        layouts, _ = draw(replace(two, openings_last=last))
        assert layouts.grid.shape[1:] == (7, 4)
        assert not grids(layouts, symbols.WALL)[:, 3, 1:3].any()
        in_opening = layouts.rows.xy[:, 0, 1] == 3
        assert_frequencies([in_opening.sum(), (~in_opening).sum()], [0, 1] if last else [2 / 6, 4 / 6])


# checks -----------------------------------------------------------------------------------------------------------------------


def reachable(grid, agent):
    """Whether every object is next to a cell that can be walked to, or is such a door."""
    reach, queue = {tuple(agent)}, [tuple(agent)]
    while queue:
        x, y = queue.pop()
        if grid[y, x] >> 3 not in (symbols.EMPTY, DOOR_CLOSED, DOOR_LOCKED, symbols.DOOR_OPEN):
            continue
        for there in ((x + 1, y), (x, y + 1), (x - 1, y), (x, y - 1)):
            if there not in reach:
                reach.add(there)
                queue.append(there)
    objects = np.argwhere((grid >> 3 != symbols.EMPTY) & (grid >> 3 != symbols.WALL))
    return all((x, y) in reach for y, x in objects)


@pytest.mark.parametrize("check", [ALL_REACHABLE, SOME_BLOCKED])
def test_checks(check):
    crowd = one_room(Things(count=8), room_size=6, check=check)
    layouts, accepted = draw(crowd, count=1024)
    expected = check == ALL_REACHABLE
    assert all(reachable(*case) == expected for case in zip(layouts.grid, layouts.agent, strict=True))
    unchecked, _ = draw(replace(crowd, check=UNCHECKED), count=1024)
    share = np.mean([reachable(*case) == expected for case in zip(unchecked.grid, unchecked.agent, strict=True)])
    assert abs(share - accepted) < 4 * np.sqrt(2 * share * (1 - share) / 1024)


# instructions -----------------------------------------------------------------------------------------------------------------


def leaves(layouts, i=0):
    """The fields of a leaf, int `[8, n]`."""
    return layouts.mission.leaves[:, i].astype(int).T


def test_commands_fit_their_targets():
    wanted = Command(((Target((0, 2), None),),), (GO_TO, OPEN, PICK_UP))
    doors = Doors((((0, 0), RIGHT),))
    layouts, _ = draw(
        RoomLevel(wanted, (Things(count=2),), agent=Agent(when=FIRST), doors=(doors,), rows=1, columns=2, room_size=6)
    )
    verb, colour, kind, place, *second, articles = leaves(layouts)
    is_door = kind == language.DOOR
    assert_frequencies([is_door.sum(), (~is_door).sum()], [1 / 3, 2 / 3])
    assert_frequencies(np.bincount(verb[is_door], minlength=5), [0, 0.5, 0.5, 0, 0])
    assert_frequencies(np.bincount(verb[~is_door], minlength=5), [0, 0.5, 0, 0.5, 0])
    assert not place.any() and not np.any(second)
    # the target is described as it is, and so is every member
    kinds, colours = symbols.kind_of(layouts.rows.symbol), 1 + symbols.colour_of(layouts.rows.symbol)
    described = (np.where(kinds > BOX, language.DOOR, 9 - kinds) == kind[:, None]) & (colours == colour[:, None])
    np.testing.assert_array_equal(layouts.members, described)
    np.testing.assert_array_equal(articles, described.sum(axis=1) > 1)


def test_targets_differ_and_swap():
    wanted = Command(((Target((0, 1)), Target((0, 3))),), (PUT_NEXT,), swaps=True)
    things = Things((KEY,), (RED,)), Things((BALL,), (GREEN,)), Things((BOX,), (BLUE,))
    layouts, accepted = draw(one_room(*things, instruction=wanted))
    _, _, kind, _, _, kind_2, _, _ = leaves(layouts)
    counts = np.zeros((5, 5), int)
    np.add.at(counts, (kind, kind_2), 1)
    expected = np.zeros((5, 5))
    for other in (language.BALL, language.BOX):
        expected[language.KEY, other] = expected[other, language.KEY] = 1
    assert_frequencies(counts, expected)
    positions = {language.KEY: 0, language.BALL: 1, language.BOX: 2}
    first, second = (layouts.rows.xy[np.arange(len(kind)), [positions[k] for k in given]] for given in (kind, kind_2))
    assert (np.abs(first - second).sum(axis=1) > 1).all() and accepted < 1


def test_ways_to_describe():
    things = Things((KEY,), (RED,)), Things((BALL,), (RED,))
    wanted = Command(((Target((0, 1)),),), (GO_TO,), by=(BY_KIND, BY_COLOUR, BY_KIND | BY_COLOUR))
    layouts, _ = draw(one_room(*things, instruction=wanted))
    _, colour, kind, *_, articles = leaves(layouts)
    ways = {(0, language.KEY): 0, (1 + RED, language.OBJECT): 1, (1 + RED, language.KEY): 2}
    way = np.array([ways[pair] for pair in zip(colour, kind, strict=True)])
    assert_frequencies(np.bincount(way), np.full(3, 1 / 3))
    np.testing.assert_array_equal(articles, way == 1)
    np.testing.assert_array_equal(layouts.members, np.stack([np.ones_like(way), way == 1], axis=1))


def test_places_are_seen_from_the_agent():
    """Each wall of a room has a door; the one to the right of an agent that looks down is the one on the left."""
    four = tuple((CENTRE, side) for side in SIDES)
    wanted = Command(((Target(doors=four),),), (OPEN,), by=(BY_KIND | BY_PLACE,))
    layouts, accepted = draw(RoomLevel(wanted, agent=Agent((CENTRE,)), doors=(Doors(four, 4),), room_size=5), count=512)
    assert accepted == 1
    _, _, _, place, *_ = leaves(layouts)
    turned = {language.IN_FRONT: 0, language.ON_RIGHT: 1, language.BEHIND: 2, language.ON_LEFT: 3}
    toward = symbols.DIRECTION_XY[[(d + turned[p]) % 4 for d, p in zip(layouts.direction, place, strict=True)]]
    offset = layouts.rows.xy - layouts.agent[:, None]
    np.testing.assert_array_equal(layouts.members != 0, np.sum(offset * toward[:, None], axis=-1) > 0)
    assert_frequencies(np.bincount(place)[1:], np.ones(4))


def test_orders():
    clauses = (Target((0, 1)),), (Target((1, 2)),)
    layouts, _ = draw(one_room(Things((KEY,)), Things((BALL,)), instruction=Command(clauses, (GO_TO,), (ALONE, THEN))))
    assert_frequencies(np.bincount(layouts.mission.order), [0.5, 0.5])
    alone = layouts.mission.order == ALONE
    assert not leaves(layouts, 2)[:, alone].any() and (leaves(layouts, 2)[2, ~alone] == language.BALL).all()
    assert (layouts.members[alone] == [1, 0]).all() and (layouts.members[~alone] == [1, 1 << 4]).all()
    np.testing.assert_array_equal(layouts.max_steps, np.where(alone, 64, 128))


@pytest.mark.parametrize("held", ["at_start", "at_first_action"])
def test_what_is_held(held):
    wanted = Command(((Target((0, 1)), Target((1, 2))),), (PUT_NEXT,), held=held)
    layouts, _ = draw(one_room(Things((KEY,)), Things((BALL,)), instruction=wanted), count=64)
    assert (layouts.held == 0).all() and (layouts.members == [1, 2]).all()
    on_floor = held == "at_first_action"
    np.testing.assert_array_equal(grids(layouts, KEY).any(axis=(1, 2)), np.full(len(layouts.held), on_floor))
    assert ((layouts.rows.xy[:, 0] >= 0) == on_floor).all()
    assert (layouts.rows.symbol[:, 0] >> 3 == KEY).all()


def test_the_grammar_draws_descriptions_as_by_trial_and_error():
    """Of a red key in front of the agent or not: colour, kind and place are drawn until something matches."""
    grammar = Grammar((GO_TO,), (0,))
    layouts, _ = draw(one_room(Things((KEY,), (RED,)), instruction=grammar, room_size=5))
    _, colour, kind, place, *_ = leaves(layouts)
    assert (kind == language.KEY).all()
    assert_frequencies(np.bincount(colour, minlength=7), [0.5, 0.5, 0, 0, 0, 0, 0])
    offset = layouts.rows.xy[:, 0] - layouts.agent
    straight = (offset == 0).any(axis=1)  # then one place is right, otherwise two are
    named = place != 0
    assert_frequencies([(named & straight).sum(), (~named & straight).sum()], [1 / 5, 4 / 5])
    assert_frequencies([(named & ~straight).sum(), (~named & ~straight).sum()], [1 / 3, 2 / 3])


# mixtures ---------------------------------------------------------------------------------------------------------------------


def test_a_mixture_draws_each_level_as_it_is_alone():
    small = one_room(Things((BALL,)), room_size=5)
    large = RoomLevel(Grammar(), things=(Things(count=5),), agent=Agent(when=BEFORE_CONNECTING), connect=True, room_size=6)
    layouts, accepted = draw(small, large, variant=0)
    assert accepted == 1 and layouts.grid.shape[1:] == (16, 16)
    assert (grids(layouts, symbols.WALL).sum(axis=(1, 2)) == 16 * 16 - 9).all()
    assert (grids(layouts, symbols.WALL)[:, 5:] & (layouts.grid[:, 5:] != EMPTY_CELL)).all()
    alone, _ = draw(small)
    for one, other in ((layouts.agent, alone.agent), (layouts.rows.xy[:, 0], alone.rows.xy[:, 0])):
        counts = [np.bincount(xy @ [1, 5], minlength=25) for xy in (one, other)]
        table = np.array(counts)[:, np.sum(counts, axis=0) > 0]
        assert stats.chi2_contingency(table).pvalue > SIGNIFICANCE
    assert (layouts.max_steps == 25).all()
    large_ones, _ = draw(small, large, variant=1, count=64)
    assert (grids(large_ones, DOOR_CLOSED).sum(axis=(1, 2)) >= 8).all()
