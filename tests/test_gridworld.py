"""Collector worlds: the published map, the rules of a step, random levels."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.envs import gridworld, symbols
from jaxagent.render import render_rgb
from jaxagent.types import Discrete

RIGHT, DOWN, LEFT, UP = range(4)
KEY = jax.random.key(0)


class Player:
    """Walks through one environment, one compiled step at a time."""

    def __init__(self, name: str = "Collector-v0", **options: object):
        self.env, self.params = gridworld.make(name, **options)
        self.jitted_step = jax.jit(self.env.step)
        _, self.start = jax.jit(self.env.reset)(KEY, self.params)

    def step(self, state, action, params=None):
        return self.jitted_step(KEY, state, jnp.int32(action), params or self.params)

    def walk(self, actions, params=None):
        """Returns the outputs of all steps."""
        outputs, state = [], self.start
        for action in actions:
            outputs.append(self.step(state, action, params))
            state = outputs[-1][1]
        return outputs


@pytest.fixture(scope="module")
def player() -> Player:
    return Player()


def xy(state) -> tuple[int, int]:
    return tuple(int(coordinate) for coordinate in state.xy)


def test_map_is_the_published_one(player):
    cells = np.asarray(player.env.cells(player.start))
    assert cells.shape == (8, 4)

    def where(cell: int) -> set[tuple[int, int]]:
        return {(int(row), int(column)) for column, row in np.argwhere(cells == cell)}

    # (row, column), as the text draws them
    assert where(gridworld.RESOURCE_CELL) == {(0, 2), (2, 4)}
    assert where(symbols.WALL_CELL) == {(1, 1), (1, 2), (3, 2)}
    assert where(symbols.GOAL_CELL) == {(0, 7), (3, 6)}
    assert xy(player.start) == (0, 2)
    assert player.env.spec.max_steps == 20 and player.env.spec.action == Discrete(4)


def test_optimum_takes_both_resources_in_11_steps(player):
    """Breadth-first search over (position, what is left), so that the first arrival with n resources is the quickest."""
    seen, arrivals = {(xy(player.start), 0)}, {}
    frontier = [(player.start, 0.0)]
    steps = 0
    while frontier:
        steps += 1
        following = []
        for state, paid in frontier:
            for action in range(4):
                _, reached, reward, terminated, _, info = player.step(state, action)
                total = paid + float(reward)
                if terminated:
                    arrivals.setdefault(int(info["resources"]), (steps, round(total, 4), bool(info["success"])))
                    continue
                node = (xy(reached), np.asarray(reached.cells).tobytes())
                if node not in seen:
                    seen.add(node)
                    following.append((reached, total))
        frontier = following
    # 2 + 5.5 - 11 * 0.16 = 5.74;  1 + 5.5 - 7 * 0.16 = 5.38;  5.5 - 7 * 0.16 = 4.38
    assert arrivals == {2: (11, 5.74, True), 1: (7, 5.38, False), 0: (7, 4.38, False)}
    assert 2 - 20 * 0.16 < 5.74  # nor does it pay to stay


@pytest.mark.parametrize(
    ("resources", "steps", "goal_rate", "reward"), [(1.8, 16.3, 0.72, 3.2), (2.1, 13.7, 0.88, 4.8), (2.4, 12.8, 0.94, 5.6)]
)
def test_default_rewards_reproduce_the_published_rows(player, resources, steps, goal_rate, reward):
    params = player.params
    fitted = params.resource_reward * resources + params.goal_reward * goal_rate - params.step_cost * steps
    assert fitted == pytest.approx(reward, abs=0.1)


def test_walls_and_borders_hold_the_agent_but_cost_a_step(player):
    blocked_left, up, at_wall, *_ = player.walk([LEFT, UP, RIGHT])
    assert xy(blocked_left[1]) == (0, 2)  # the border
    assert xy(up[1]) == (0, 1)
    assert xy(at_wall[1]) == (0, 1)  # the wall at row 1, column 1
    for step in (blocked_left, up, at_wall):
        assert float(step[2]) == pytest.approx(-0.16) and not step[3] and not step[4]
    assert [int(step[1].direction) for step in (blocked_left, up, at_wall)] == [LEFT, UP, RIGHT]
    np.testing.assert_array_equal(at_wall[1].cells, player.start.cells)
    assert xy(player.walk([DOWN, DOWN])[-1][1]) == (0, 3)


def test_a_resource_pays_once(player):
    outputs = player.walk([RIGHT, RIGHT, RIGHT, RIGHT, LEFT, RIGHT])
    np.testing.assert_allclose([float(step[2]) for step in outputs], [-0.16, -0.16, -0.16, 0.84, -0.16, -0.16], rtol=1e-6)
    assert [int(step[5]["resources"]) for step in outputs] == [0, 0, 0, 1, 1, 1]
    assert int(outputs[3][1].cells[4, 2]) == symbols.EMPTY_CELL


def test_a_goal_terminates_and_success_needs_all_resources(player):
    short = player.walk([RIGHT] * 6 + [DOWN])[-1]
    assert short[3] and not short[4] and not short[5]["success"]
    full = player.walk([UP, UP, RIGHT, RIGHT, RIGHT, DOWN, DOWN, RIGHT, RIGHT, RIGHT, DOWN])[-1]
    assert full[3] and full[5]["success"] and float(full[2]) == pytest.approx(5.34)


def test_the_time_limit_truncates(player):
    outputs = player.walk([LEFT] * 20)
    assert [bool(step[4]) for step in outputs] == [False] * 19 + [True]
    assert not any(bool(step[3]) for step in outputs)
    # the params may shorten an episode, but not lengthen it beyond the static bound
    shorter, longer = (player.params.replace(max_steps=np.int32(limit)) for limit in (3, 100))
    assert [bool(step[4]) for step in player.walk([LEFT] * 3, shorter)] == [False, False, True]
    assert player.walk([LEFT] * 20, longer)[-1][4]


def test_the_last_step_may_terminate_and_truncate(player):
    last = player.walk([RIGHT] * 6 + [DOWN], player.params.replace(max_steps=np.int32(7)))[-1]
    assert last[3] and last[4] and float(last[2]) == pytest.approx(5.34)


def test_actions_out_of_range_do_nothing_for_a_step(player):
    before = player.walk([UP])[-1][1]
    for action in (-(2**31), -1, 4, 2**31 - 1):
        _, after, reward, terminated, _, _ = player.step(before, action)
        jax.tree.map(np.testing.assert_array_equal, after._replace(step_count=before.step_count), before)
        assert after.step_count == 2 and float(reward) == pytest.approx(-0.16) and not terminated


def test_rewards_are_traced(player):
    params = player.params.replace(resource_reward=np.float32(3), step_cost=np.float32(0.5))
    assert float(player.walk([RIGHT] * 4, params)[-1][2]) == pytest.approx(2.5)
    assert player.jitted_step._cache_size() == 1


def test_packed_shows_the_agent(player):
    observation = player.walk([UP])[-1][0]
    assert int(observation["image"][0, 1]) == gridworld.AGENT_CELL
    assert int(observation["direction"]) == UP and int(observation["mission"]) == 0
    assert "yellow" in player.env.mission(player.start)


def test_symbolic_is_minigrids_encoding(player):
    image = np.asarray(Player(obs="symbolic").walk([DOWN])[-1][0]["image"])
    assert image[0, 3].tolist() == [10, 0, DOWN]  # agent, red, direction
    assert image[4, 2].tolist() == [6, 4, 0]  # ball, yellow
    assert image[1, 1].tolist() == [2, 5, 0]  # wall, grey
    assert image[7, 0].tolist() == [8, 1, 0]  # goal, green
    assert image[3, 3].tolist() == [1, 0, 0]  # empty


def test_what_shows_a_state_wants_one(player):
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), player.start)
    for show in (player.env.cells, player.env.agent, player.env.seen):
        with pytest.raises(ValueError, match=r"state: expected one, with cells \[8, 4\], got cells \[3, 8, 4\]; of several"):
            show(several)
        with pytest.raises(ValueError, match="state: expected a CollectorState, got NoneType"):
            show(None)


def test_rgb_is_the_rendered_grid():
    player = Player(obs="rgb", tile_size=4)
    for observation, state, *_ in player.walk([UP, UP, RIGHT]):
        agent_xy, direction = player.env.agent(state)
        expected = render_rgb(player.env.cells(state), agent_xy=agent_xy, agent_dir=direction, tile_size=4)
        np.testing.assert_array_equal(observation["image"], expected)


@pytest.mark.parametrize("name", gridworld.ENVS)
@pytest.mark.parametrize("obs", ["packed", "symbolic", "rgb"])
def test_observations_have_the_shapes_of_the_spec(name, obs):
    env, params = gridworld.make(name, obs=obs)
    observation, state = jax.eval_shape(env.reset, KEY, params)
    stepped = jax.eval_shape(env.step, KEY, state, jnp.int32(0), params)
    assert env.spec.name == name
    assert set(env.spec.observation) == set(observation)
    for field, space in env.spec.observation.items():
        assert (observation[field].shape, str(observation[field].dtype)) == (space.shape, space.dtype)
    assert jax.tree.map(lambda leaf: leaf.update(weak_type=False), stepped[:2]) == (observation, state)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((observation, state, stepped)))
    assert (stepped[2].dtype, stepped[3].dtype, stepped[4].dtype) == (jnp.float32, bool, bool)


# random levels


def shortest_tour(cells: np.ndarray, start: tuple[int, int]) -> int | None:
    """Steps to collect everything and then reach a goal, by breadth-first search; None if it cannot be done."""
    resources = {(int(x), int(y)): 1 << index for index, (x, y) in enumerate(np.argwhere(cells == gridworld.RESOURCE_CELL))}
    everything = (1 << len(resources)) - 1
    grid = {(x, y): cell for x, column in enumerate(cells.tolist()) for y, cell in enumerate(column)}
    queue, seen = deque([(start, 0, 0)]), {(start, 0)}
    while queue:
        (x, y), collected, steps = queue.popleft()
        for dx, dy in ((1, 0), (0, 1), (-1, 0), (0, -1)):
            cell = (x + dx, y + dy)
            if grid.get(cell, symbols.WALL_CELL) == symbols.WALL_CELL:
                continue
            if grid[cell] == symbols.GOAL_CELL:
                if collected == everything:
                    return steps + 1
                continue
            node = (cell, collected | resources.get(cell, 0))
            if node not in seen:
                seen.add(node)
                queue.append((*node, steps + 1))
    return None


def random_levels(generator: gridworld.RandomLevel, count: int) -> list[tuple[np.ndarray, tuple[int, int]]]:
    levels = jax.jit(jax.vmap(generator))(jax.random.split(jax.random.key(1), count))
    starts = [tuple(start) for start in np.asarray(levels.start).tolist()]
    return list(zip(np.asarray(levels.cells), starts, strict=True))


def count_of(cells: np.ndarray, cell: int) -> int:
    return int(np.sum(cells == cell))


def test_random_levels_are_solvable_within_the_time_limit():
    env, _ = gridworld.make("CollectorRandom-v0")
    levels = random_levels(env.level, 300)
    for cells, start in levels:
        counts = [count_of(cells, cell) for cell in (gridworld.RESOURCE_CELL, symbols.GOAL_CELL, symbols.WALL_CELL)]
        assert counts == [4, 1, 12] and cells[start] == symbols.EMPTY_CELL
        tour = shortest_tour(cells, start)
        assert tour is not None and tour <= env.max_steps
    assert len({cells.tobytes() + bytes(start) for cells, start in levels}) == 300
    everywhere = np.stack([cells for cells, _ in levels])
    # nothing is kept from a cell: of 64, 64 * (63 / 64) ** 300 = 0.57 are expected to be missed in 300 draws
    assert np.sum(np.any(everywhere == symbols.GOAL_CELL, axis=0)) >= 60
    assert len({start for _, start in levels}) >= 60


def test_the_check_of_random_levels_is_exact():
    """Mazes dense enough that many cannot be solved: the flood agrees with the search on each."""
    level = gridworld.RandomLevel(edge=5, resources=2, walls=8)
    orders = jax.vmap(lambda key: gridworld._shuffled(key, 25))(jax.random.split(KEY, 200))
    placements = jax.vmap(level._placement)(orders)
    found = np.asarray(jax.jit(jax.vmap(level._is_solvable))(placements))
    for solvable, start, goal, resources, walls in zip(found, *map(np.asarray, placements), strict=True):
        cells = np.full(25, symbols.EMPTY_CELL, np.uint8)
        cells[walls], cells[resources], cells[goal] = symbols.WALL_CELL, gridworld.RESOURCE_CELL, symbols.GOAL_CELL
        tour = shortest_tour(cells.reshape(5, 5), divmod(int(start), 5))
        assert (tour is not None) == solvable
    assert 20 < found.sum() < 180


def test_a_level_that_cannot_be_solved_loses_its_walls():
    levels = random_levels(gridworld.RandomLevel(edge=5, resources=3, walls=16, tries=2), 100)
    walls = [count_of(cells, symbols.WALL_CELL) for cells, _ in levels]
    assert set(walls) == {0, 16}
    assert all(shortest_tour(cells, start) is not None for cells, start in levels)


def test_vmapped_steps_equal_single_ones():
    player = Player("CollectorRandom-v0")
    keys = jax.random.split(jax.random.key(2), 5)
    observations, states = jax.jit(jax.vmap(player.env.reset, (0, None)))(keys, player.params)
    reset = jax.jit(player.env.reset)
    rows = [reset(key, player.params) for key in keys]
    batched_step = jax.jit(jax.vmap(player.env.step, (None, 0, 0, None)))
    actions = np.random.default_rng(0).integers(0, 4, (30, 5)).astype(np.int32)
    batch = (observations, states)
    for time in range(30):
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
        jax.tree.map(np.testing.assert_array_equal, batch, stacked)
        batch = batched_step(KEY, batch[1], actions[time], player.params)
        rows = [player.step(row[1], action) for row, action in zip(rows, actions[time], strict=True)]
    assert batched_step._cache_size() == player.jitted_step._cache_size() == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Colector-v0", {}, "environment 'Colector-v0' is unknown.*did you mean 'Collector-v0'"),
        (
            "Collector-v0",
            {"ops": "rgb"},
            "option 'ops' is unknown: expected one of obs, tile_size, max_steps.*did you mean 'obs'",
        ),
        ("Collector-v0", {"walls": 3}, "Collector-v0 option 'walls' is unknown"),
        ("Collector-v0", {"obs": "pixels"}, "obs: expected one of packed, symbolic, rgb, found 'pixels'"),
        ("Collector-v0", {"max_steps": 0}, "max_steps: expected at least 1, found 0"),
        ("CollectorRandom-v0", {"size": 40}, "size: expected 3 to 32, found 40"),
        ("CollectorRandom-v0", {"walls": -1}, "walls: expected at least 0, found -1"),
        ("CollectorRandom-v0", {"size": 4, "walls": 11}, "expected at most 14 .size 4., found 15"),
    ],
)
def test_errors_name_the_option(name, options, message):
    with pytest.raises(ValueError, match=message):
        gridworld.make(name, **options)
