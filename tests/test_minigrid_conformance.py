"""Observation for observation, our MiniGrid is Farama's: its environments are injected into ours and both step in lockstep."""

import copy
import functools
from collections import deque
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")

from minigrid import wrappers  # noqa: E402
from minigrid.core import grid as farama_grid  # noqa: E402
from minigrid.core import world_object as objects  # noqa: E402
from minigrid.core.constants import COLOR_NAMES, DIR_TO_VEC  # noqa: E402
from minigrid.core.mission import MissionSpace  # noqa: E402
from minigrid.minigrid_env import MiniGridEnv  # noqa: E402

from jaxagent.envs import grid, minigrid, symbols, view  # noqa: E402
from jaxagent.interop.farama import from_farama  # noqa: E402

STEPS = 60
NAMES = sorted(minigrid.ENVS)
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
ADVERSARIAL = [0.1, 0.1, 0.25, 0.2, 0.15, 0.15, 0.05]  # handles whatever it meets


# lockstep ---------------------------------------------------------------------------------------------------------------------


def trace_farama(source, actions):
    """What `source` shows and says: arrays `[T, ...]`."""
    steps = []
    for action in actions:
        seen, reward, terminated, truncated, _ = source.step(int(action))
        steps.append((seen["image"], seen["direction"], np.float32(reward), terminated, truncated))
    return [np.array(column) for column in zip(*steps, strict=True)]


@functools.partial(jax.jit, static_argnums=0)
def trace_ours(env, params, state, actions):
    def step(state, action):
        seen, state, reward, terminated, truncated, _ = env.step(jax.random.key(0), state, action, params)
        return state, (seen["image"], seen["direction"], reward, terminated, truncated)

    return jax.lax.scan(step, state, actions)[1]


def anonymous(env):
    """The same world without what only `reset` and texts need, so that levels of one size share a compiled program."""
    level = grid.Level(minigrid.empty, env.level.size, 10**6, ("",), env.level.see_through_walls)
    return grid.GridEnv("anonymous", level, env.obs)


def assert_lockstep(source, actions):
    """Steps `source` and its conversion through `actions`, padded to a multiple of STEPS."""
    actions = np.append(actions, [DONE] * (-len(actions) % STEPS)).astype(np.int32)
    env, params, state = from_farama(source)
    first, shown = env.observe(state), source.gen_obs()
    np.testing.assert_array_equal(first["image"], shown["image"])
    assert (first["direction"], env.mission(state)) == (shown["direction"], shown["mission"])

    theirs, ours = trace_farama(source, actions), trace_ours(anonymous(env), params, state, jnp.asarray(actions))
    for name, their, our in zip(("image", "direction", "reward", "terminated", "truncated"), theirs, ours, strict=True):
        np.testing.assert_allclose(our, their, rtol=0, atol=1e-6 if name == "reward" else 0, err_msg=name)
    return theirs


def made(name, seed, **options):
    source = gymnasium.make(name, **options).unwrapped
    source.reset(seed=seed)
    return source


@pytest.mark.parametrize("name", NAMES)
def test_registered_levels(name):
    rng = np.random.default_rng(sum(map(ord, name)))
    for seed in range(3):
        assert_lockstep(made(name, seed), rng.integers(0, 7, STEPS))
        # so that the limit is reached, and passed, under way
        assert_lockstep(made(name, seed, max_steps=40), rng.choice(7, STEPS, p=ADVERSARIAL))
    _, _, rewards, terminated, _ = assert_lockstep(made(name, 3), script(made(name, 3)))
    assert rewards.max() > 0 and terminated.any(), "the script reaches the goal"


def script(source):
    """Actions that bring `source`, which they use up, to its goal."""
    actions = []
    if any(cell is not None and cell.type == "key" for cell in source.grid.grid):
        actions += approach(source, "key") + run(source, [PICKUP])
        actions += approach(source, "door") + run(source, [TOGGLE])
    return actions + approach(source, "goal") + [FORWARD]


def run(source, actions):
    for action in actions:
        source.step(action)
    return actions


def approach(source, kind):
    """Shortest way (breadth-first) to face an object of that kind, walked by `source`."""
    start = (*map(int, source.agent_pos), source.agent_dir)
    queue, ways = deque([start]), {start: []}
    while queue:
        x, y, direction = node = queue.popleft()
        ahead = (x + int(DIR_TO_VEC[direction][0]), y + int(DIR_TO_VEC[direction][1]))
        cell = source.grid.get(*ahead)
        if cell is not None and cell.type == kind:
            return run(source, ways[node])
        moves = {LEFT: (x, y, (direction - 1) % 4), RIGHT: (x, y, (direction + 1) % 4)}
        if cell is None or (cell.type == "door" and cell.is_open):
            moves[FORWARD] = (*ahead, direction)
        for action, following in moves.items():
            if following not in ways:
                ways[following] = [*ways[node], action]
                queue.append(following)
    raise AssertionError(f"no way to a {kind}")


# hand-made worlds -------------------------------------------------------------------------------------------------------------


class Crowded(MiniGridEnv):
    """Every kind of object, in random places; always the same three boxes: empty, with a key, with a box with a ball."""

    def __init__(self, see_through_walls=False):
        mission_space = MissionSpace(mission_func=lambda: "look around")
        super().__init__(mission_space, width=9, height=7, max_steps=100, see_through_walls=see_through_walls)

    def _gen_grid(self, width, height):
        self.grid = farama_grid.Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        colour = self._rand_color
        boxes = [
            objects.Box(colour()),
            objects.Box(colour(), objects.Key("red")),
            objects.Box(colour(), objects.Box(colour(), objects.Ball(colour()))),
        ]
        doors = [objects.Door(colour(), is_open=True), objects.Door(colour()), objects.Door("red", is_locked=True)]
        others = [objects.Key("red"), objects.Key(colour()), objects.Ball(colour()), objects.Floor(colour()), objects.Goal()]
        for thing in (*boxes, *doors, *others, objects.Door("blue", is_locked=True), objects.Wall("purple"), objects.Lava()):
            self.place_obj(thing)
        self.place_agent()
        self.mission = "look around"


def crowded(seed, **options):
    source = Crowded(**options)
    source.reset(seed=seed)
    return source


@pytest.mark.parametrize("see_through_walls", [False, True])
def test_crowded_worlds(see_through_walls):
    rng = np.random.default_rng(5)
    for seed in range(20):
        assert_lockstep(crowded(seed, see_through_walls=see_through_walls), rng.choice(7, 2 * STEPS, p=ADVERSARIAL))


def corridor(*things):
    """A world with `things` in a row to the right of the agent, which stands at (1, 1) and looks at the first."""
    source = crowded(0)
    source.grid = farama_grid.Grid(9, 7)
    source.grid.wall_rect(0, 0, 9, 7)
    source.agent_pos, source.agent_dir = (1, 1), 0
    for i, thing in enumerate(things):
        source.grid.set(2 + i, 1, thing)
    return source


def test_boxes_keep_their_contents_when_carried():
    nested = objects.Box("red", objects.Box("blue", objects.Key("green")))
    source = corridor(nested)
    # carried to the cell below, opened twice, and the key taken out
    assert_lockstep(source, [PICKUP, RIGHT, DROP, TOGGLE, TOGGLE, PICKUP, TOGGLE, LEFT, DROP])
    assert source.grid.get(2, 1).type == "key"


def test_injection_under_way():
    source = corridor(objects.Box("red", objects.Ball("blue")))
    run(source, [PICKUP, FORWARD])
    env, _, state = from_farama(source)
    assert state.step_count == 2 and symbols.kind_of(int(state.carrying)) == symbols.BOX
    assert_lockstep(source, [DROP, TOGGLE, PICKUP])
    assert source.carrying.type == "ball"


@pytest.mark.parametrize("carried", ["red", "blue", None])
def test_locked_doors_need_their_key(carried):
    source = corridor(objects.Door("red", is_locked=True))
    source.carrying = carried and objects.Key(carried)
    assert_lockstep(source, [TOGGLE, TOGGLE, TOGGLE, FORWARD, DROP])
    assert tuple(source.agent_pos) == ((2, 1) if carried == "red" else (1, 1))


# other observations -----------------------------------------------------------------------------------------------------------

WRAPPERS = {
    "onehot": wrappers.OneHotPartialObsWrapper,
    "full": wrappers.FullyObsWrapper,
    "rgb": wrappers.RGBImgPartialObsWrapper,
}


@pytest.mark.parametrize("obs", WRAPPERS)
def test_observations_equal_the_wrappers(obs):
    states, shown = [], []
    for seed in range(12):
        source = crowded(seed)
        for action in np.random.default_rng(seed).choice(7, seed, p=ADVERSARIAL):
            source.step(int(action))
        env, _, state = from_farama(source, obs)
        states.append(state.replace(objects=None))  # how many boxes are left differs, and is not observed
        shown.append(WRAPPERS[obs](source).observation(source.gen_obs())["image"])
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    ours = jax.jit(jax.vmap(env.observe))(states)["image"]
    np.testing.assert_array_equal(ours, np.array(shown))
    assert ours.dtype == jnp.uint8


# occlusion --------------------------------------------------------------------------------------------------------------------


def test_every_row_transition(monkeypatch):
    """All 2^14 pairs of a row's transparent cells and seeds, against `Grid.process_vis`.

    Farama starts from one lit cell, so the seeds are put into its mask as it is created. The row under test is the lowest of
    three; the one above is opaque, so that what is lit there is exactly what the lowest row lights.
    """
    seeds_of_mask = []

    def zeros(shape, dtype):
        mask = np.zeros(shape, dtype)
        mask[:, 2] = seeds_of_mask[-1]
        return mask

    monkeypatch.setattr(farama_grid, "np", SimpleNamespace(zeros=zeros))
    bits = (np.arange(128)[:, None] >> np.arange(7)) & 1 == 1  # [row, x]
    weights = 1 << np.arange(7)
    wall, world = objects.Wall(), farama_grid.Grid(7, 3)
    expected = np.zeros((128, 128, 2), int)
    for transparent in range(128):
        lowest = [None if clear else wall for clear in bits[transparent]]
        for seeds in range(128):
            seeds_of_mask[:] = [bits[seeds]]
            world.grid = [wall] * 14 + lowest
            mask = farama_grid.Grid.process_vis(world, agent_pos=(0, 0))
            expected[transparent, seeds] = weights @ mask[:, 2], weights @ mask[:, 1]
    transparent, seeds = np.divmod(np.arange(1 << 14), 128)
    lit, above = view.light_row(transparent, seeds)
    np.testing.assert_array_equal(np.stack([lit, above], -1), expected.reshape(-1, 2))


def test_random_views():
    rng = np.random.default_rng(0)
    cells = (symbols.EMPTY_CELL, symbols.WALL_CELL, symbols.symbol(symbols.DOOR_CLOSED, symbols.RED), symbols.LAVA_CELL)
    things = (None, objects.Wall(), objects.Door("red"), objects.Lava())
    views, masks = [], []
    for opaque in np.linspace(0, 0.8, 300):
        kinds = rng.choice(4, (7, 7), p=[(1 - opaque) / 2, opaque / 2, opaque / 2, (1 - opaque) / 2])  # [x, y]
        world = farama_grid.Grid(7, 7)
        world.grid = [things[kind] for kind in kinds.T.ravel()]
        views.append(np.array(cells, np.uint8)[kinds])
        masks.append(world.process_vis(agent_pos=view.AGENT_XY))
    ours = jax.jit(jax.vmap(view.visible))(jnp.array(views))
    np.testing.assert_array_equal(ours, np.array(masks))


# generators -------------------------------------------------------------------------------------------------------------------

RESETS = 300
# one level of each generator and kind of size; the others are rows of the same table
GENERATED = [
    "MiniGrid-Empty-Random-5x5-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-DoorKey-6x6-v0",
    "MiniGrid-LavaGapS6-v0",
    "MiniGrid-LavaCrossingS9N2-v0",
    "MiniGrid-SimpleCrossingS11N5-v0",
]


@pytest.mark.parametrize("name", GENERATED)
def test_levels_have_the_same_distribution(name):
    source = gymnasium.make(name).unwrapped
    source.reset(seed=0)
    theirs = []
    for _ in range(RESETS):
        source._gen_grid(source.width, source.height)
        theirs.append(features(source.grid.encode()[..., 0], np.array(source.agent_pos), source.agent_dir))
    env, params = minigrid.make(name)
    _, states = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(0), RESETS), params)
    kinds, _, _ = view.decode(jax.vmap(env.cells)(states))
    ours = [features(*level) for level in zip(*jax.device_get((kinds, *jax.vmap(env.agent)(states))), strict=True)]
    ours, theirs = np.array(ours, float), np.array(theirs, float)
    scale = np.sqrt((ours.var(0) + theirs.var(0)) / RESETS)
    difference = np.abs(ours.mean(0) - theirs.mean(0))
    assert np.all(difference[scale == 0] == 0), "what never varies is the same"
    # about 1000 statistics: the largest of as many standard normals is about 3.3
    assert np.max(difference[scale > 0] / scale[scale > 0], initial=0) < 4.5


def features(kinds, xy, direction):
    """Where each kind of cell and the agent are, how it is turned, and how they lie to each other."""
    layers = [kinds == kind for kind in (symbols.EMPTY, symbols.LAVA, symbols.DOOR_OPEN, symbols.KEY, symbols.GOAL)]
    agent = np.zeros(kinds.shape, bool)
    agent[tuple(xy)] = True
    centres = [np.argwhere(layer).mean(0) if layer.any() else np.zeros(2) for layer in layers]
    offsets = np.concatenate([centre - xy for centre in centres])
    moments = [offsets, np.outer(offsets, offsets).ravel()]
    return np.concatenate([*(layer.ravel() for layer in (*layers, agent)), direction == np.arange(4), *moments])


# refusals ---------------------------------------------------------------------------------------------------------------------


def test_unregistered_levels_of_the_same_rules_are_converted():
    source = made("MiniGrid-MultiRoom-N2-S4-v0", 0)
    assert_lockstep(source, np.random.default_rng(0).choice(7, STEPS, p=ADVERSARIAL))
    env, params, _ = from_farama(source)
    with pytest.raises(ValueError, match="generates no levels"):
        env.reset(jax.random.key(0), params)


def test_registered_levels_keep_their_generator():
    env, params, _ = from_farama(made("MiniGrid-DoorKey-5x5-v0", 0), obs="packed")
    ours, _ = minigrid.make("MiniGrid-DoorKey-5x5-v0", obs="packed")
    assert env == ours and params.max_steps == 250


@pytest.mark.parametrize("name", ["MiniGrid-Fetch-5x5-N2-v0", "BabyAI-GoToObj-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0"])
def test_other_rules_are_refused(name):
    with pytest.raises(ValueError, match="has its own `step`"):
        from_farama(made(name, 0))


def test_other_views_are_refused():
    with pytest.raises(ValueError, match="agent_view_size 7, got 5"):
        from_farama(made("MiniGrid-Empty-5x5-v0", 0, agent_view_size=5))
    with pytest.raises(ValueError, match="expected a MiniGridEnv"):
        from_farama(gymnasium.make("CartPole-v1"))


def test_conversion_only_reads():
    source = crowded(1)
    before = copy.deepcopy(source)
    from_farama(source)
    assert source.grid == before.grid and source.step_count == before.step_count
    assert set(COLOR_NAMES) == set(symbols.COLOUR_NAMES)
