"""Observation for observation, our MiniGrid is Farama's: its environments are injected into ours and both step in lockstep."""

import copy
from collections import deque
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")

import lockstep  # noqa: E402
from lockstep import DONE, DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, adversarial_stream, script  # noqa: E402
from minigrid import wrappers  # noqa: E402
from minigrid.core import grid as farama_grid  # noqa: E402
from minigrid.core import world_object as objects  # noqa: E402
from minigrid.core.constants import COLOR_NAMES, DIR_TO_VEC  # noqa: E402
from minigrid.core.mission import MissionSpace  # noqa: E402
from minigrid.minigrid_env import MiniGridEnv  # noqa: E402

from jaxagent.envs import minigrid, symbols, view  # noqa: E402
from jaxagent.interop.farama import from_farama  # noqa: E402

STEPS = 60


def made(name, seed, **options):
    source = lockstep.made(name, **options)
    source.reset(seed=seed)
    return source


# registered levels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "seed"), lockstep.rotating(minigrid.ENVS, 6))
def test_a_sample_of_levels(name, seed):
    for make in lockstep.STREAMS.values():
        source = lockstep.made(name)
        assert not lockstep.first_mismatches(source, lockstep.reset(source, seed))
        (stream,) = make([source], [np.random.default_rng(seed)])
        lockstep.run(source, stream, STEPS)


# a level of each rule, and what ends it well ----------------------------------------------------------------------------------

GOALS = [
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-Empty-Random-6x6-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-LavaGapS5-v0",
    "MiniGrid-SimpleCrossingS9N1-v0",
]


@pytest.mark.parametrize("name", GOALS)
def test_goals_are_reached(name):
    way = to_goal(made(name, 3))
    steps = lockstep.run(made(name, 3), script(way), STEPS).steps
    assert steps.terminated[-1] and steps.reward[-1] > 0
    # so that the limit is reached on the very last step, or missed
    exact = lockstep.run(made(name, 3, max_steps=len(way)), script(way), STEPS).steps
    assert exact.terminated[-1] and exact.truncated[-1] and exact.reward[-1] == pytest.approx(0.1)
    short = lockstep.run(made(name, 3, max_steps=len(way) - 1), script(way), STEPS).steps
    assert short.truncated[-1] and not short.terminated[-1]


def to_goal(source):
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


def approach(source, kind, colour=None):
    """Shortest way (breadth-first) to face an object of that kind, walked by `source`."""
    start = (*map(int, source.agent_pos), source.agent_dir)
    queue, ways = deque([start]), {start: []}
    while queue:
        x, y, direction = node = queue.popleft()
        ahead = (x + int(DIR_TO_VEC[direction][0]), y + int(DIR_TO_VEC[direction][1]))
        cell = source.grid.get(*ahead)
        if cell is not None and cell.type == kind and colour in (None, cell.color):
            return run(source, ways[node])
        moves = {LEFT: (x, y, (direction - 1) % 4), RIGHT: (x, y, (direction + 1) % 4)}
        if cell is None or (cell.type == "door" and cell.is_open):
            moves[FORWARD] = (*ahead, direction)
        for action, following in moves.items():
            if following not in ways:
                ways[following] = [*ways[node], action]
                queue.append(following)
    raise AssertionError(f"no way to a {kind}")


def ends(name, act, *, seed=0):
    """Whether the actions that `act` finds, and plays on a copy, end an episode of `name` with success; in lockstep."""
    actions = act(made(name, seed))
    steps = lockstep.run(made(name, seed), script(actions), STEPS).steps
    assert steps.terminated.tolist() == [False] * (len(actions) - 1) + [True]
    return bool(steps.reward[-1] > 0)


def fetch(right):
    def act(source):
        for thing in list(source.grid.grid):
            kind = thing and (thing.type, thing.color)
            if thing and thing.can_pickup() and (kind == (source.targetType, source.targetColor)) == right:
                return approach(source, *kind) + [PICKUP]
        raise AssertionError

    return act


def stop_at_object(last, kind=None):
    return lambda source: approach(source, kind or source.targetType, source.target_color) + [last]


def put_near(source, beside=True):
    actions = approach(source, source.move_type, source.moveColor) + run(source, [PICKUP])
    if not beside:
        return actions + [DROP]
    # stand a step short of the target, turn aside: the cell in front is then diagonal to it
    return actions + approach(source, source.target_type, source.target_color) + [LEFT, DROP]


def red_then_blue(*colours):
    def act(source):
        actions = []
        for colour in colours:
            actions += approach(source, "door", colour) + run(source, [TOGGLE])
        return actions

    return act


def unlock(source):
    return approach(source, "key") + run(source, [PICKUP]) + approach(source, "door") + [TOGGLE]


def unlock_pickup(source):
    actions = unlock(source)
    run(source, [TOGGLE])
    # the key goes where the agent came from
    actions += run(source, [LEFT, LEFT, DROP, LEFT, LEFT])
    return actions + approach(source, "box") + [PICKUP]


@pytest.mark.parametrize(
    ("name", "act", "success"),
    [
        ("MiniGrid-Fetch-8x8-N3-v0", fetch(True), True),
        ("MiniGrid-Fetch-8x8-N3-v0", fetch(False), False),
        ("MiniGrid-GoToDoor-6x6-v0", stop_at_object(DONE, "door"), True),
        ("MiniGrid-GoToDoor-6x6-v0", stop_at_object(TOGGLE, "door"), False),
        ("MiniGrid-GoToDoor-6x6-v0", lambda source: [DONE], False),
        ("MiniGrid-GoToObject-8x8-N2-v0", stop_at_object(DONE), True),
        ("MiniGrid-GoToObject-8x8-N2-v0", lambda source: [*stop_at_object(DONE)(source)[:-1], RIGHT, DONE], True),
        ("MiniGrid-PutNear-8x8-N3-v0", put_near, True),
        ("MiniGrid-PutNear-8x8-N3-v0", lambda source: put_near(source, beside=False), False),
        ("MiniGrid-RedBlueDoors-6x6-v0", red_then_blue("red", "blue"), True),
        ("MiniGrid-RedBlueDoors-6x6-v0", red_then_blue("blue"), False),
        ("MiniGrid-Unlock-v0", unlock, True),
        ("MiniGrid-UnlockPickup-v0", unlock_pickup, True),
    ],
)
def test_rules_of_their_own(name, act, success):
    assert ends(name, act) == success


@pytest.mark.parametrize("seed", range(3))
def test_memory_ends_at_both_branches(seed):
    source = made("MiniGrid-MemoryS7-v0", seed)
    for place, success in ((source.success_pos, True), (source.failure_pos, False)):
        source = made("MiniGrid-MemoryS7-v0", seed)
        source.agent_pos, source.agent_dir = (place[0], source.height // 2), 3 if place[1] < source.height // 2 else 1
        steps = lockstep.run(source, script([PICKUP, TOGGLE, FORWARD]), STEPS).steps
        assert steps.terminated.tolist() == [False, False, True] and (steps.reward[-1] > 0) == success


# obstacles --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [objects.Wall(), objects.Ball(), None])
def test_walking_into_an_obstacle_costs(cell):
    source = made("MiniGrid-Dynamic-Obstacles-6x6-v0", 0)
    x, y = source.front_pos
    source.grid.set(x, y, cell)
    steps = lockstep.run(source, script([FORWARD]), STEPS).steps
    assert (steps.reward[0], bool(steps.terminated[0])) == ((0, False) if cell is None else (-1, True))


def test_an_action_that_there_is_not_turns_left():
    source = made("MiniGrid-Dynamic-Obstacles-6x6-v0", 1)
    steps = lockstep.run(source, script([PICKUP, TOGGLE, DONE]), STEPS).steps
    assert steps.direction.tolist() == [3, 2, 1]


@pytest.mark.parametrize("seed", range(2))
def test_obstacles_move_alike(seed):
    assert lockstep.obstacle_moves(made("MiniGrid-Dynamic-Obstacles-6x6-v0", seed), 1500) > 1e-4


# hand-made worlds -------------------------------------------------------------------------------------------------------------


class Crowded(MiniGridEnv):
    """Every kind of object, in random places; always the same three boxes: empty, with a key, with a box with a ball."""

    def __init__(self, see_through_walls=False):
        mission_space = MissionSpace(mission_func=lambda: "reach the goal")
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
        self.mission = "reach the goal"


def crowded(seed, **options):
    source = Crowded(**options)
    source.reset(seed=seed)
    return source


@pytest.mark.parametrize("see_through_walls", [False, True])
def test_crowded_worlds(see_through_walls):
    for seed in range(12):
        source = crowded(seed, see_through_walls=see_through_walls)
        lockstep.run(source, adversarial_stream(source, np.random.default_rng(seed)), 2 * STEPS, past_end=True)


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
    lockstep.run(source, script([PICKUP, RIGHT, DROP, TOGGLE, TOGGLE, PICKUP, TOGGLE, LEFT, DROP]), STEPS, past_end=True)
    assert source.grid.get(2, 1).type == "key"


def test_injection_under_way():
    source = corridor(objects.Box("red", objects.Ball("blue")))
    run(source, [PICKUP, FORWARD])
    env, _, state = from_farama(source)
    assert state.step_count == 2 and symbols.kind_of(int(state.carrying)) == symbols.BOX
    lockstep.run(source, script([DROP, TOGGLE, PICKUP]), STEPS, past_end=True)
    assert source.carrying.type == "ball"


@pytest.mark.parametrize("carried", ["red", "blue", None])
def test_locked_doors_need_their_key(carried):
    source = corridor(objects.Door("red", is_locked=True))
    source.carrying = carried and objects.Key(carried)
    lockstep.run(source, script([TOGGLE, TOGGLE, TOGGLE, FORWARD, DROP]), STEPS, past_end=True)
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
        for action in np.random.default_rng(seed).choice(7, seed, p=[0.1, 0.1, 0.25, 0.2, 0.15, 0.15, 0.05]):
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


# refusals ---------------------------------------------------------------------------------------------------------------------


def test_registered_levels_keep_their_generator():
    for name in ("MiniGrid-DoorKey-5x5-v0", "MiniGrid-Fetch-5x5-N2-v0"):
        env, params, state = from_farama(made(name, 0), obs="packed")
        ours, our_params = minigrid.make(name, obs="packed")
        assert env == ours and params == our_params
        generated = jax.eval_shape(ours.reset, jax.random.key(0), params)[1]
        assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, generated)


def test_levels_made_with_other_arguments_are_converted():
    source = made("MiniGrid-Fetch-5x5-N2-v0", 0, size=7, numObjs=5)
    lockstep.run(source, adversarial_stream(source, np.random.default_rng(0)), STEPS)
    env, params, _ = from_farama(source)
    with pytest.raises(ValueError, match="generates no levels"):
        env.reset(jax.random.key(0), params)


class Hasty(MiniGridEnv):
    def step(self, action):
        return super().step(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda source: setattr(source, "__class__", Hasty), "Hasty has its own `step`"),
        (lambda source: setattr(source, "mission", "reach the gaol"), "unknown word 'gaol'"),
        (lambda source: setattr(source, "mission", "open the door"), "expected one that asks to reach a goal"),
        (lambda source: setattr(source, "agent_pos", None), "was never reset"),
        (lambda source: setattr(source, "agent_pos", (0, 3)), "expected a cell inside the walls"),
        (lambda source: setattr(source, "agent_pos", (1.5, 3)), "expected a cell inside the walls"),
        (lambda source: setattr(source, "agent_pos", "ab"), "expected a cell inside the walls"),
        (lambda source: setattr(source, "step_count", -3), "step_count: expected 0 to"),
        (lambda source: setattr(source, "max_steps", 2**40), "max_steps: expected 1 to"),
        (lambda source: setattr(source, "step_count", None), "a state that a level can have, got one that raises TypeError"),
        (lambda source: setattr(source, "grid", None), "a state that a level can have, got one that raises AttributeError"),
        (lambda source: setattr(source.grid.get(2, 1), "color", "pink"), "got one that raises KeyError"),
        (lambda source: source.grid.set(1, 1, "key"), "got one that raises AttributeError"),
        (lambda source: source.grid.grid.pop(), "grid: expected 9 x 7 cells"),
        (lambda source: source.grid.set(4, 0, None), r"expected walls around the agent, who can leave it at \(4, 0\)"),
        (lambda source: source.grid.set(8, 3, objects.Key("red")), r"who can leave it at \(8, 3\)"),
        (lambda source: setattr(source, "carrying", source.grid.get(2, 1)), "in two places"),
        (lambda source: setattr(source, "carrying", objects.Wall()), "carrying: expected a key, ball or box, got a wall"),
    ],
)
def test_states_that_no_level_has_are_refused(change, message):
    source = corridor(objects.Ball("red"))
    change(source)
    with pytest.raises(ValueError, match=message):
        from_farama(source)


def test_dynamic_obstacles_without_any_are_refused():
    with pytest.raises(ValueError, match="obstacles: expected at least one, got none"):
        from_farama(made("MiniGrid-Dynamic-Obstacles-5x5-v0", 0, n_obstacles=0))


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
