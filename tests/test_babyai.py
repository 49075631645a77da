"""BabyAI's levels: all of them in one program, each level checked by plain rules, some against Farama's in distribution."""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxagent.envs import babyai, language, registry, room_levels, rooms, symbols
from jaxagent.envs.language import BOX, DOOR, GO_TO, KEY, OBJECT, OPEN, PUT_NEXT
from jaxagent.envs.rooms.levels import ALL_REACHABLE, LAST, SOME_BLOCKED, Grammar
from jaxagent.envs.vector import VectorEnv

LEVELS = {
    **babyai.ENVS,
    **{f"{name} fixed": level for name, level in babyai.FIXED.items() if level != babyai.ENVS[name]},
    **room_levels.minigrid(),
}
DRAWS = 48
DOOR_KINDS = (symbols.DOOR_OPEN, symbols.DOOR_CLOSED, symbols.DOOR_LOCKED)
WIDTH, HEIGHT = 22, 22


@pytest.fixture(scope="module")
def drawn():
    """Accepted layouts of every level, as lists."""
    mixture = rooms.Rooms(tuple(LEVELS.values()))
    variants = jnp.repeat(jnp.arange(len(LEVELS)), DRAWS)
    keys = jax.random.split(jax.random.key(0), variants.size)
    layouts = jax.jit(jax.vmap(lambda key, variant: mixture(key, WIDTH, HEIGHT, variant)))(keys, variants)
    layouts = jax.tree.map(np.asarray, layouts)
    cases = [jax.tree.map(lambda leaf, i=i: leaf[i], layouts) for i in range(variants.size)]
    per_level = {name: cases[i * DRAWS : (i + 1) * DRAWS] for i, name in enumerate(LEVELS)}
    return {name: [case for case in cases if case.accepted] for name, cases in per_level.items()}


def each(drawn):
    for name, cases in drawn.items():
        for case in cases:
            yield name, LEVELS[name], case


# the table --------------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*out of date.*:DeprecationWarning")
def test_all_ids_are_there_with_their_sizes_and_steps():
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("minigrid")
    assert set(babyai.ENVS) == {name for name in gymnasium.registry if name.startswith("BabyAI-")}
    for name, level in (babyai.ENVS | room_levels.minigrid()).items():
        source = gymnasium.make(name, disable_env_checker=True).unwrapped
        assert level.size == (source.width, source.height), name
        if level.fixed_steps is not None:
            source.reset(seed=0)
            assert level.fixed_steps == source.max_steps, name


@pytest.mark.fast
def test_fixed_levels():
    changed = {name.split("-")[1] for name, level in babyai.FIXED.items() if level != babyai.ENVS[name]}
    assert changed == {
        *("Unlock", "GoToImpUnlock", "UnlockPickup", "UnlockPickupDist", "SynthS5R2", "PickupDist", "PickupDistDebug"),
        *("PutNextS5N2Carrying", "PutNextS6N3Carrying", "PutNextS7N4Carrying"),
    }
    assert babyai.FIXED["BabyAI-UnlockPickup-v0"].fixed_steps == 288
    assert babyai.FIXED["BabyAI-SynthS5R2-v0"].size == (9, 9)


# every level, by plain rules --------------------------------------------------------------------------------------------------


def test_levels_are_drawn(drawn):
    for name, cases in drawn.items():
        assert len(cases) > 2, name
        assert LEVELS[name].rejects or len(cases) == DRAWS, name


def test_worlds_are_whole(drawn):
    """Every object is a row and the other way round; the agent stands on floor and looks at no object that came before it."""
    for name, level, case in each(drawn):
        width, height = level.size
        kinds = symbols.kind_of(case.grid)
        assert (kinds[height:] == symbols.WALL).all() and (kinds[:, width:] == symbols.WALL).all(), name
        border = np.concatenate([kinds[0, :width], kinds[height - 1, :width], kinds[:height, 0], kinds[:height, width - 1]])
        assert (border == symbols.WALL).all(), name

        placed = case.rows.xy[:, 0] >= 0
        x, y = case.rows.xy[placed].T
        np.testing.assert_array_equal(case.grid[y, x], case.rows.symbol[placed], err_msg=name)
        assert len(set(zip(x, y, strict=True))) == len(x), name
        assert np.isin(kinds, (symbols.KEY, symbols.BALL, symbols.BOX)).sum() == np.sum(
            placed & ~np.isin(symbols.kind_of(case.rows.symbol), DOOR_KINDS)
        ), name

        assert case.grid[case.agent[1], case.agent[0]] == symbols.EMPTY_CELL, name
        ahead = case.agent + symbols.DIRECTION_XY[case.direction]
        may_face = (symbols.EMPTY, symbols.WALL, *(DOOR_KINDS if level.agent.when != LAST else ()))
        assert kinds[ahead[1], ahead[0]] in may_face, name


def flooded(grid, agent, passable):
    """Cells that can be reached, the first that is not passable on each way included."""
    reach, queue = {tuple(agent)}, [tuple(agent)]
    while queue:
        x, y = queue.pop()
        if grid[y, x] >> 3 not in passable:
            continue
        for there in ((x + 1, y), (x, y + 1), (x - 1, y), (x, y - 1)):
            if there not in reach:
                reach.add(there)
                queue.append(there)
    return reach


def test_all_can_be_reached(drawn):
    """Around nothing but walls where rooms are connected; and as the level's check says around objects."""
    movable = (symbols.KEY, symbols.BALL, symbols.BOX)
    for name, level, case in each(drawn):
        objects = {(x, y) for y, x in np.argwhere(~np.isin(case.grid >> 3, (symbols.WALL, symbols.EMPTY)))}
        if level.connect:
            floor = {(x, y) for y, x in np.argwhere(case.grid >> 3 != symbols.WALL)}
            assert floor <= flooded(case.grid, case.agent, (symbols.EMPTY, *DOOR_KINDS, *movable)), name
        if level.check == ALL_REACHABLE and not level.late:
            assert objects <= flooded(case.grid, case.agent, (symbols.EMPTY, *DOOR_KINDS)), name
        if level.check == SOME_BLOCKED:
            assert not objects <= flooded(case.grid, case.agent, (symbols.EMPTY, *DOOR_KINDS)), name


def descriptions(case):
    """Number, `(colour, kind, place)` and article bit of each description of a mission."""
    for i, leaf in enumerate(case.mission.leaves.astype(int)):
        verb, *first = leaf[:4]
        if verb:
            yield 2 * i, tuple(first), leaf[7] & 1
        if verb == PUT_NEXT:
            yield 2 * i + 1, tuple(leaf[4:7]), leaf[7] >> 1


def room_of(level, xy):
    return tuple(np.asarray(xy) // (level.room_size - 1))


def is_in_room(level, room, x, y):
    pitch = level.room_size - 1
    return all(i * pitch <= at <= (i + 1) * pitch for i, at in zip(room, (x, y), strict=True))


def matches(level, case, description):
    """Cells of the world that a description is of, from the grid alone; walls are not described."""
    colour, kind, place = description
    d1 = symbols.DIRECTION_XY[case.direction]
    d2 = np.array([-d1[1], d1[0]])
    for y, x in np.argwhere(~np.isin(case.grid >> 3, (symbols.WALL, symbols.EMPTY))):
        symbol = int(case.grid[y, x])
        known = {symbols.KEY: KEY, symbols.BALL: language.BALL, symbols.BOX: BOX}.get(symbol >> 3, DOOR)
        v = np.array([x, y]) - case.agent
        right_place = {
            0: True,
            language.ON_LEFT: v @ d2 < 0,
            language.ON_RIGHT: v @ d2 > 0,
            language.IN_FRONT: v @ d1 > 0,
            language.BEHIND: v @ d1 < 0,
        }[place]
        if place and not is_in_room(level, room_of(level, case.agent), x, y):
            continue
        if kind in (OBJECT, known) and colour in (0, 1 + (symbol & 7)) and right_place:
            yield x, y


def test_members_articles_and_neighbours(drawn):
    for name, level, case in each(drawn):
        if "Carrying" in name and "fixed" in name:
            continue  # what is held is in no cell
        members = np.zeros(len(case.members), int)
        for number, description, article in descriptions(case):
            cells = set(matches(level, case, description))
            found = np.array([tuple(xy) in cells for xy in case.rows.xy])
            members += found << number
            walls = name.startswith("BabyAI-PickupDist") and "fixed" not in name and description[:2] == (6, OBJECT)
            assert cells and article == (len(cells) > 1 or walls), name
        np.testing.assert_array_equal(case.members, members, err_msg=name)
        for i in np.nonzero(case.mission.leaves[:, 0] == PUT_NEXT)[0]:
            moved, fixed = (case.rows.xy[members >> bit & 1 == 1] for bit in (2 * i, 2 * i + 1))
            assert (np.abs(moved[:, None] - fixed).sum(axis=-1) > 1).all(), name


def test_missions_can_be_read(drawn):
    for name, level, case in each(drawn):
        text = language.text(case.mission)
        parsed = language.parse(text)
        np.testing.assert_array_equal(parsed.leaves, case.mission.leaves, err_msg=name)
        assert parsed.order == case.mission.order
        verbs = set(case.mission.leaves[:, 0].tolist()) - {0}
        assert verbs <= level.verbs and len(verbs) > 0


def test_steps(drawn):
    for name, level, case in each(drawn):
        places = sum(1 for _ in descriptions(case))
        expected = level.max_steps or places * level.room_size**2 * level.rows * level.columns
        assert case.max_steps == expected <= level.most_steps, name


def locked_room(level, case):
    """The room behind the only locked door that has but this door, if there is one."""
    doors = np.argwhere(case.grid >> 3 == symbols.DOOR_LOCKED)
    if level.lock is None or len(doors) != 1 or not level.connect:
        return None
    ((y, x),) = doors
    pitch = level.room_size - 1
    sides = [(x - 1, y), (x + 1, y)] if x % pitch == 0 else [(x, y - 1), (x, y + 1)]
    closed = case.grid.copy()
    closed[y, x] = symbols.WALL_CELL
    free = (symbols.EMPTY, *DOOR_KINDS, symbols.KEY, symbols.BALL, symbols.BOX)
    reaches = [flooded(closed, side, free) for side in sides]
    return room_of(level, sides[int(np.argmin([len(reach) for reach in reaches]))])


def test_locked_rooms(drawn):
    """The key's colour is the door's; the key and the agent are elsewhere, but for what the original gets wrong."""
    inside = Counter()
    for name, level, case in each(drawn):
        room = locked_room(level, case)
        if room is None:
            continue
        ((y, x),) = np.argwhere(case.grid >> 3 == symbols.DOOR_LOCKED)
        key = level.things.index(next(group for group in level.things if group.kinds == (symbols.KEY,)))
        assert case.rows.symbol[key] == symbols.symbol(symbols.KEY, int(case.grid[y, x]) & 7), name
        assert room_of(level, case.agent) != room, name
        inside[name] += is_in_room(level, room, *case.rows.xy[key])
    wrong = {name for name, count in inside.items() if count}
    assert {"BabyAI-Unlock-v0"} <= wrong <= {"BabyAI-Unlock-v0", "BabyAI-GoToImpUnlock-v0"}


def test_grammars_ask_for_nothing_impossible(drawn):
    """No description of a key that opens the locked door; without unlocking, something outside the locked room."""
    for name, level, case in each(drawn):
        if not isinstance(level.instruction, Grammar):
            continue
        room = locked_room(level, case)
        locked = case.grid[case.grid >> 3 == symbols.DOOR_LOCKED] & 7
        for _, description, _ in descriptions(case):
            assert not any(description[:2] == (1 + colour, KEY) for colour in locked), name
            if level.instruction.outside_lock and room is not None:
                assert any(not is_in_room(level, room, *cell) for cell in matches(level, case, description)), name


def test_capacities(drawn):
    assert max(len(case.members) for _, _, case in each(drawn)) <= 48
    assert all(max(level.size) <= 25 for level in LEVELS.values())


# against the original ---------------------------------------------------------------------------------------------------------


def features(name, grid, agent, direction, mission):
    """What is compared: numbers of things, the agent's pose, how the mission reads."""
    kinds = grid >> 3
    counts = {f"number of kind {kind}": int((kinds == kind).sum()) for kind in (5, 6, 7, *DOOR_KINDS)}
    words = [word for word in mission.split() if word not in symbols.COLOUR_NAMES]
    template = " ".join("THING" if word in ("box", "ball", "key", "door") else word for word in words)
    colours = sum(word in symbols.COLOUR_NAMES for word in mission.split())
    ahead = agent + symbols.DIRECTION_XY[direction]
    return {
        **counts,
        "cells where things are": [(int(x), int(y)) for y, x in np.argwhere(np.isin(kinds, (5, 6, 7)))],
        "column": int(agent[0]),
        "row": int(agent[1]),
        "direction": int(direction),
        "ahead": int(kinds[ahead[1], ahead[0]]),
        "template": template,
        "colours": colours,
    }


def farama_features(name, count):
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("minigrid")
    source = gymnasium.make(name, disable_env_checker=True).unwrapped
    states = np.array(DOOR_KINDS)
    for i in range(count):
        source.reset(seed=sum(map(ord, name)) if i == 0 else None)
        kind, colour, state = np.moveaxis(source.grid.encode(), -1, 0).astype(int)
        grid = symbols.symbol(np.where(kind == symbols.DOOR_OPEN, states[state], kind), colour).T
        yield features(name, grid, np.array(source.agent_pos), source.agent_dir, source.mission)


def our_features(name, count):
    env, params = registry.make(name)
    _, states = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(3), count), params)
    grids, (agents, directions) = jax.vmap(env.cells)(states), jax.vmap(env.agent)(states)
    for i, (cells, agent, direction) in enumerate(zip(*map(np.asarray, (grids, agents, directions)), strict=True)):
        mission = env.mission(jax.tree.map(lambda leaf, i=i: leaf[i], states))
        yield features(name, cells.T.astype(int), agent, direction, mission)


@pytest.mark.parametrize(
    "name", ["BabyAI-GoToLocal-v0", "BabyAI-OpenDoorsOrderN4-v0", "BabyAI-PutNextLocalS5N3-v0", "BabyAI-MiniBossLevel-v0"]
)
def test_distributions(name):
    theirs, ours = list(farama_features(name, 200)), list(our_features(name, 2048))
    for feature in theirs[0]:
        counts = []
        for side in (theirs, ours):
            values = [case[feature] for case in side]
            counts.append(Counter(itertools.chain(*values) if isinstance(values[0], list) else values))
        table = np.array([[count[value] for value in set().union(*counts)] for count in counts])
        expected = table.sum(axis=0) * table[0].sum() / table.sum()
        rare = expected < 5
        table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
        table = table[:, table.sum(axis=0) > 0]
        if table.shape[1] > 1:
            assert stats.chi2_contingency(table).pvalue > 1e-5, feature


@pytest.mark.parametrize(
    ("name", "word"), [("BabyAI-OpenTwoDoors-v0", ", then open"), ("BabyAI-MoveTwoAcrossS5N2-v0", ", then put")]
)
def test_a_level_of_its_own_keeps_its_one_order(name, word):
    env, params = registry.make(name)
    assert word in env.mission(jax.jit(env.reset)(jax.random.key(0), params)[1])


# environments -----------------------------------------------------------------------------------------------------------------


def test_fixed_carrying_starts_with_the_object_in_hand():
    for fixed, holds in ((False, False), (True, True)):
        env, params = registry.make("BabyAI-PutNextS5N2Carrying-v0", fixed=fixed)
        observation, state = jax.jit(env.reset)(jax.random.key(0), params)
        assert bool(state.carrying != 0) == holds
        assert (observation["image"][3, 6] != symbols.EMPTY_CELL) == holds
        _, state, *_ = jax.jit(env.step)(jax.random.key(0), state, jnp.int32(0), params)
        assert state.carrying != 0


def test_options():
    env, params = registry.make("BabyAI-SynthSeq-v0", max_steps=7, obs="symbolic", mission="tokens", done_action=True)
    assert env.spec.max_steps == 7 and env.level.done_action
    observation, state = env.reset(jax.random.key(1), params)
    assert observation["image"].shape == (7, 7, 3) and observation["mission"].shape == (72,)
    assert state.max_steps is None


MIXED = ("BabyAI-GoToObjS4-v0", "BabyAI-PutNextLocalS5N3-v0", "BabyAI-OpenRedDoor-v0")


def test_mixture_weights_hold_among_accepted_levels_and_are_traced():
    """PutNextLocalS5N3 is rejected about every other time and comes as often as it should nevertheless."""
    env, params = registry.make(babyai.MIX, levels=MIXED, weights=[2, 1, 1])
    params = jax.tree.map(jnp.asarray, params)
    assert env.level.size == (9, 5) and env.level.variants == 3
    reset = jax.jit(jax.vmap(env.reset, (0, None)))
    keys = jax.random.split(jax.random.key(0), 2048)

    def shares(params):
        verbs = np.asarray(reset(keys, params)[1].mission.leaves[:, 0, 0])
        return [int((verbs == verb).sum()) for verb in (GO_TO, PUT_NEXT, OPEN)]

    assert stats.chisquare(shares(params), [1024, 512, 512]).pvalue > 1e-4
    assert shares(params.replace(weights=jnp.array([0.0, 0.0, 3.0]))) == [0, 0, 2048]
    assert reset._cache_size() == 1


def test_mixture_plays():
    env, params = registry.make(babyai.MIX, levels=MIXED)
    vector = VectorEnv(env, 16)

    @jax.jit
    def play(key):
        def step(state, key):
            actions = jax.random.randint(key, (16,), 0, 7)
            state, out = vector.step(state, actions, params)
            return state, (out.reward, out.terminated, out.truncated)

        return jax.lax.scan(step, vector.init(key, params), jax.random.split(key, 200))

    _, (reward, terminated, truncated) = play(jax.random.key(0))
    assert terminated.any() and truncated.any() and (reward[terminated] > 0).all()


@pytest.mark.fast
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("BabyAI-GoToLocl-v0", {}, "BabyAI-GoToLocal-v0"),
        (babyai.MIX, {"levels": []}, "levels: expected a list of at least one"),
        (babyai.MIX, {"levels": "BabyAI-GoToLocal-v0"}, "levels: expected a list, each text"),
        (babyai.MIX, {"levels": ["BabyAI-Bosslevel"]}, "levels: expected BabyAI levels, .* nearest: BabyAI-BossLevel-v0"),
        (babyai.MIX, {"levels": MIXED, "params": {"weights": [0, 0, 0]}}, r"params.weights: expected .* got \[0, 0, 0\]"),
        (babyai.MIX, {"levels": MIXED, "params": {"weights": [-1, 2, 1]}}, "params.weights: expected a list of 3, each from 0"),
        (
            babyai.MIX,
            {"levels": MIXED, "weights": (1, 2)},
            r"weights: expected a list of 3, each from 0 to 1e\+30, one .*, got \[1, 2\]",
        ),
        (babyai.MIX, {"levels": MIXED, "weights": [0, 0, 0]}, "weights: expected a list of 3"),
        (babyai.MIX, {"levels": MIXED, "weights": [1, -1, 1]}, "weights: expected a list of 3"),
        (babyai.MIX, {"levels": MIXED, "weights": [1, 1e31, 1]}, r"weights: expected a list of 3, .*got \[1, 1e\+31, 1\]"),
        (
            babyai.MIX,
            {"levels": MIXED, "weights": [1, 1e40, 1]},
            r"weights: expected .* a finite number .*got \[1, 1e\+40, 1\]",
        ),
        (babyai.MIX, {"levels": MIXED, "weights": [1e-60, 0, 0]}, "one of them 1e-30 or more"),
        (babyai.MIX, {"levels": MIXED, "params": {"weights": [1e38, 1e38, 1]}}, r"params.weights: expected .* to 1e\+30"),
        (babyai.MIX, {"levels": MIXED, "weights": [1, float("nan"), 1]}, "weights: expected a list, each a finite number"),
        ("BabyAI-GoToLocal-v0", {"max_steps": 0}, "max_steps: expected at least 1"),
    ],
)
def test_what_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        registry.make(name, **options)
