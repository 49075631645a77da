"""The grid engine by itself: its arithmetic, its edges, and what JAX does with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent import report
from jaxagent.envs import grid, minigrid, registry, symbols, view

EMPTY = "MiniGrid-Empty-5x5-v0"
# each generator once; the other registered levels are sizes of them
GENERATED = [
    "MiniGrid-Empty-Random-5x5-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-LavaGapS5-v0",
    "MiniGrid-LavaCrossingS9N3-v0",
    "MiniGrid-SimpleCrossingS11N5-v0",
]


def start(name: str, **options):
    env, params = minigrid.make(name, **options)
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    return env, params, state


def play(env, params, state, actions):
    """The outcome of the last of `actions`, and the state it leads to."""
    step = jax.jit(env.step)
    for action in actions:
        _, state, *outcome = step(jax.random.key(0), state, jnp.int32(action), params)
    return state, outcome


# Empty-5x5: from (1, 1), facing right, the goal at (3, 3) is two steps right, a turn and two steps down
TO_GOAL = [grid.FORWARD, grid.FORWARD, grid.RIGHT, grid.FORWARD, grid.FORWARD]


def test_goal_pays_by_the_number_of_steps():
    state, (reward, terminated, truncated, info) = play(*start(EMPTY), TO_GOAL)
    # 1 - 0.9 * 5 / 100
    assert reward == pytest.approx(0.955, abs=1e-6) and reward.dtype == jnp.float32
    assert terminated and not truncated and info["success"] and state.step_count == 5


def test_actions_may_be_plain_numbers():
    env, params = registry.make("BabyAI-GoToObj-v0")
    _, state = env.reset(jax.random.key(0), params)
    outs = [env.step(jax.random.key(0), state, action, params) for action in (grid.LEFT, jnp.int32(grid.LEFT))]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, *outs))


def test_goal_on_the_last_step_ends_both_ways():
    _, (reward, terminated, truncated, info) = play(*start(EMPTY, max_steps=5), TO_GOAL)
    # 1 - 0.9 * 5 / 5
    assert reward == pytest.approx(0.1, abs=1e-6)
    assert terminated and truncated and info["success"]


def test_lava_ends_without_reward():
    env, params, state = start("MiniGrid-LavaGapS5-v0")
    state = state.replace(cells=state.cells.at[env.frame.index(2, 1)].set(symbols.LAVA_CELL))
    _, (reward, terminated, truncated, info) = play(env, params, state, [grid.FORWARD])
    assert reward == 0 and terminated and not truncated and not info["success"]


def test_params_lower_the_step_limit_but_never_raise_it():
    env, params, state = start(EMPTY, max_steps=3)
    assert env.spec.max_steps == 3 and params.max_steps == 3
    for limit, steps in ((2, 2), (50, 3)):
        given = params.replace(max_steps=jnp.int32(limit))
        assert not play(env, given, state, [grid.DONE] * (steps - 1))[1][2]
        assert play(env, given, state, [grid.DONE] * steps)[1][2]


def test_actions_out_of_range_do_nothing():
    env, params, state = start("MiniGrid-DoorKey-5x5-v0")
    after, (reward, terminated, truncated, _) = play(env, params, state, [-(2**31), -1, 7, 2**31 - 1])
    assert after.step_count == 4 and reward == 0 and not terminated and not truncated
    jax.tree.map(np.testing.assert_array_equal, after.replace(step_count=state.step_count), state)


@pytest.mark.parametrize("name", GENERATED)
def test_levels_are_closed_and_solvable(name):
    """Walls all around, one goal, and a path to it that needs no lava (a locked door is passable: its key is on this side)."""
    env, params = minigrid.make(name)
    _, states = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(1), 128), params)
    cells = np.asarray(jax.vmap(env.cells)(states))  # [N, W, H]
    xy, direction = jax.vmap(env.agent)(states)
    border = np.ones(cells.shape[1:], bool)
    border[1:-1, 1:-1] = False
    assert np.all(cells[:, border] == symbols.WALL_CELL)
    assert np.all(np.sum(cells == symbols.GOAL_CELL, axis=(1, 2)) == 1)
    assert np.all((direction >= 0) & (direction < 4))
    rows = np.arange(len(cells))
    assert np.all(cells[rows, xy[:, 0], xy[:, 1]] == symbols.EMPTY_CELL)

    passable = ~np.isin(cells >> 3, (symbols.WALL, symbols.LAVA))
    key_side = passable & (cells >> 3 != symbols.DOOR_LOCKED)
    reached = np.zeros_like(passable)
    reached[rows, xy[:, 0], xy[:, 1]] = True
    near_side = _flood(reached, key_side)
    has_key = np.any(cells >> 3 == symbols.KEY, axis=(1, 2))
    assert np.all(np.any(near_side & (cells >> 3 == symbols.KEY), axis=(1, 2)) == has_key)
    assert np.all(np.any(_flood(reached, passable) & (cells == symbols.GOAL_CELL), axis=(1, 2)))


def _flood(reached: np.ndarray, passable: np.ndarray) -> np.ndarray:
    for _ in range(passable[0].size):
        grown = reached.copy()
        for axis in (1, 2):
            grown |= np.roll(reached, 1, axis) | np.roll(reached, -1, axis)
        grown &= passable
        if np.array_equal(grown, reached):
            break
        reached = grown
    return reached


@pytest.mark.parametrize("obs", [*view.ENCODINGS, "full"])
def test_observations_fit_the_spec(obs):
    env, params = minigrid.make("MiniGrid-DoorKey-5x5-v0", obs=obs)
    observation, state = jax.jit(env.reset)(jax.random.key(0), params)
    stepped, *_ = jax.jit(env.step)(jax.random.key(0), state, jnp.int32(grid.FORWARD), params)
    for seen in (observation, stepped):
        assert set(seen) == set(env.spec.observation)
        for name, space in env.spec.observation.items():
            assert seen[name].shape == space.shape and seen[name].dtype == space.dtype
        assert np.max(seen["image"]) <= env.spec.observation["image"].high
    assert env.mission(state) == "use the key to open the door and then get to the goal"


def test_what_shows_a_state_wants_one():
    env, params = minigrid.make("MiniGrid-Empty-5x5-v0")
    observation, state = env.reset(jax.random.key(0), params)
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state)
    for show in (env.mission, env.cells, env.agent, env.seen, lambda shown: report.draw(env, shown)):
        with pytest.raises(ValueError, match=r"state: expected one, with cells \[193\], got cells \[3, 193\]; of several"):
            show(several)
        with pytest.raises(ValueError, match="state: expected a GridState, got dict"):
            show(observation)
    other = minigrid.make("MiniGrid-Empty-6x6-v0")[0]
    with pytest.raises(ValueError, match=r"state: expected one, with cells \[\d+\], got cells \[193\]$"):
        other.mission(state)


def test_rows_of_a_batch_equal_single_environments():
    env, params = minigrid.make("MiniGrid-DoorKey-6x6-v0")
    keys = jax.random.split(jax.random.key(2), 4)
    actions = jnp.array([grid.FORWARD, grid.LEFT, grid.PICKUP, grid.TOGGLE])

    def both(key, action):
        observation, state = env.reset(key, params)
        return observation, env.step(key, state, action, params)

    batched = jax.jit(jax.vmap(both))(keys, actions)
    for i in range(4):
        single = jax.jit(both)(keys[i], actions[i])
        jax.tree.map(lambda b, s, i=i: np.testing.assert_array_equal(b[i], s), batched, single)


def test_equal_levels_share_one_compiled_program():
    traces = []

    def step(env, state, action, params):
        traces.append(env)
        return env.step(jax.random.key(0), state, action, params)

    step = jax.jit(step, static_argnums=0)
    for seed in range(2):
        env, params = minigrid.make("MiniGrid-SimpleCrossingS9N1-v0")
        _, state = env.reset(jax.random.key(seed), params)
        step(env, state, jnp.int32(seed), params.replace(max_steps=jnp.int32(7 + seed)))
    assert len(traces) == 1


def test_a_frame_keeps_its_cells():
    frame = grid.Frame(4, 3)
    cells = jnp.arange(12, dtype=jnp.uint8).reshape(3, 4)
    flat = frame.flatten(cells)
    np.testing.assert_array_equal(frame.unflatten(flat), cells)
    for x, y in ((0, 0), (3, 2), (1, 2)):
        assert flat[frame.index(x, y)] == cells[y, x]
        assert frame.xy(frame.index(x, y)) == (x, y)
    # the farthest cells that an agent in a corner can look at lie inside the array, so that gathers need no bounds check
    corners = [frame.index(x, y) for x in (0, 3) for y in (0, 2)]
    looked_at = np.array([corner + view.offsets(frame.stride) for corner in corners])
    assert looked_at.min() >= 0 and looked_at.max() < flat.size


def test_seen_marks_what_the_view_shows():
    env, params, state = start("MiniGrid-SimpleCrossingS9N1-v0")
    seen = np.asarray(env.seen(state))
    observation = np.asarray(env.observe(state)["image"])
    assert seen.shape == env.level.size and seen[1, 1]
    assert not seen[0, :].any(), "the agent faces right: the wall behind it is out of view"
    inside = np.sum(observation != 0) - np.sum(observation[:2, :] != 0)  # at y = 1, two columns of the view lie outside
    assert seen.sum() == inside


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("MiniGrid-DoorKey-8x8", {}, "MiniGrid-DoorKey-8x8-v0"),
        (EMPTY, {"obs": "packd"}, "obs: expected one of packed, symbolic, onehot, rgb, full, got 'packd'"),
        (EMPTY, {"max_steps": 0}, "max_steps: expected at least 1, got 0"),
    ],
)
def test_errors_name_the_field(name, options, message):
    with pytest.raises(ValueError, match=message):
        minigrid.make(name, **options)
