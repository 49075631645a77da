"""Environments of gymnax in our engine, and ours as gymnax' and Gymnasium's."""

import subprocess
import sys
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnax.experimental import RolloutWrapper
from gymnax.wrappers import LogWrapper, StickyActionWrapper

from jaxagent.envs import minigrid, registry
from jaxagent.envs.base import StepOutput
from jaxagent.interop import gymnax as from_to_gymnax
from jaxagent.interop.gymnasium import to_gymnasium, to_gymnasium_vector
from jaxagent.interop.gymnax import from_gymnax, to_gymnax
from jaxagent.types import ActionSpace, Box, DictSpace, Discrete, EnvSpec, MultiDiscrete, PyTree, Space

# how episodes end under random actions
COMPARED = {
    "CartPole-v1": "terminated",
    "Pendulum-v1": "truncated",
    "Acrobot-v1": "truncated",
    "Breakout-MinAtar": "terminated",
    "FourRooms-misc": "both",
    "DeepSea-bsuite": "both",
}
DOWNLOADS = "MNISTBandit-bsuite"  # its constructor fetches a data set


class Count(NamedTuple):
    total: jax.Array
    time: jax.Array


class CountParams(NamedTuple):
    goal: jax.Array
    limit: jax.Array


COUNT_PARAMS = CountParams(jnp.int32(3), jnp.int32(5))


@dataclass(frozen=True)
class Counter:
    """Adds up its actions: rewards each by its sum, terminates at `goal`, is truncated after `limit` steps."""

    action: ActionSpace = Discrete(2)

    @property
    def spec(self) -> EnvSpec:
        fields = (("total", Box(0, 9, (1,), "float32")), ("time", Discrete(10)))
        return EnvSpec("Counter", DictSpace(fields), self.action, max_steps=5)

    def reset(self, key: jax.Array, params: CountParams) -> tuple[PyTree, Count]:
        state = Count(jnp.int32(0), jnp.int32(0))
        return self.observe(state), state

    def step(self, key: jax.Array, state: Count, action: jax.Array, params: CountParams) -> StepOutput:
        added = jnp.sum(action)
        state = Count(state.total + added, state.time + 1)
        terminated, truncated = state.total >= params.goal, state.time >= params.limit
        info = {"success": terminated, "components": {"added": added.astype(jnp.float32)}}
        return self.observe(state), state, added.astype(jnp.float32), terminated, truncated, info

    def observe(self, state: Count) -> PyTree:
        return {"total": state.total[None].astype(jnp.float32), "time": state.time}


def signature(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def assert_spec(space: Space, value: PyTree) -> None:
    if isinstance(space, DictSpace):
        assert set(space) == set(value)
        for name in space:
            assert_spec(space[name], value[name])
    else:
        assert (value.shape, value.dtype) == (space.shape, jnp.dtype(space.dtype))


# gymnax to ours ---------------------------------------------------------------------------------------------------------------


def step_both(name: str, num_envs: int, num_steps: int) -> tuple[PyTree, PyTree]:
    """What gymnax' `step` and ours say, [B, T], of the same states, actions and keys: those of gymnax' own episodes."""
    env, params = from_to_gymnax.make(name)
    theirs, their_params = gymnax.make(name)

    def step(state: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        action_key, step_key = jax.random.split(key)
        action = theirs.action_space(their_params).sample(action_key)
        _, next_state, *outcome, info = theirs.step(step_key, state, action, their_params)
        # gymnax takes the first half of a step's key for the step and the second for its reset
        observation, _, *our_outcome, _ = env.step(jax.random.split(step_key)[0], state, action, params)
        return next_state, ((info["final_observation"], *outcome), (observation, *our_outcome))

    def play(key: jax.Array) -> tuple[PyTree, PyTree]:
        reset_key, steps_key = jax.random.split(key)
        observation, state = theirs.reset(reset_key, their_params)
        _, (expected, found) = jax.lax.scan(step, state, jax.random.split(steps_key, num_steps))
        return (observation, *expected), (env.reset(reset_key, params)[0], *found)

    return jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), num_envs))


@pytest.mark.parametrize(("name", "ending"), COMPARED.items())
def test_steps_equal_those_of_gymnax_to_the_last_of_an_episode(name: str, ending: str) -> None:
    limit = from_to_gymnax.make(name)[0].spec.max_steps
    expected, found = step_both(name, num_envs=4, num_steps=limit)
    for theirs, ours in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    _, _, _, terminated, truncated = found
    assert np.all(np.any(terminated | truncated, axis=1))
    assert np.any(terminated) == (ending != "truncated")
    assert np.any(truncated) == (ending != "terminated")


def test_an_episode_goes_on_from_our_own_states_to_its_end() -> None:
    env, params = from_to_gymnax.make("CartPole-v1")
    theirs, their_params = gymnax.make("CartPole-v1")
    observation, state = env.reset(jax.random.key(5), params)
    expected, their_state = theirs.reset(jax.random.key(5), their_params)
    terminated, num_steps = False, 0
    while not terminated:
        np.testing.assert_allclose(observation, expected, rtol=1e-5, atol=1e-6)
        key = jax.random.key(num_steps)
        observation, state, _, terminated, _, _ = env.step(key, state, jnp.int32(1), params)
        expected, their_state, _, their_terminated, _ = theirs.step_env(key, their_state, 1, their_params)
        assert terminated == their_terminated
        num_steps += 1
    assert 8 <= num_steps <= 11  # always pushing one way
    assert state.time == num_steps  # the state reached, not one after a reset


@pytest.fixture(scope="module")
def registered() -> dict[str, tuple[Any, PyTree]]:
    return {name: from_to_gymnax.make(name) for name in from_to_gymnax.ids() if name != DOWNLOADS}


def test_every_registered_environment_keeps_the_contract(registered: dict[str, tuple[Any, PyTree]]) -> None:
    assert {*registered, DOWNLOADS} == set(registry.GYMNAX_IDS)
    key = jax.random.key(0)
    for name, (env, params) in registered.items():
        action = jnp.zeros(env.spec.action.shape, env.spec.action.dtype)
        observation, state = jax.eval_shape(env.reset, key, params)
        reached, after, reward, terminated, truncated, _ = jax.eval_shape(env.step, key, state, action, params)
        assert signature((observation, state)) == signature((reached, after)), name  # a scan can carry them
        assert_spec(env.spec.observation, observation)
        assert (reward.shape, reward.dtype, terminated.dtype, truncated.dtype) == ((), jnp.float32, bool, bool), name
        leaves = jax.tree.leaves(params)
        assert all(leaf.dtype in (jnp.float32, jnp.int32, jnp.bool) and not leaf.weak_type for leaf in leaves), name


def test_environments_of_equal_id_and_options_are_equal_and_share_what_was_compiled() -> None:
    traces = []

    def reset(env: Any, key: jax.Array, params: PyTree) -> PyTree:
        traces.append(env)
        return env.reset(key, params)

    compiled = jax.jit(reset, static_argnums=0)
    for name in ("Breakout-MinAtar", "gymnax/Breakout-MinAtar"):
        env, params = from_to_gymnax.make(name)
        compiled(env, jax.random.key(0), params)
    assert len(traces) == 1
    full, _ = from_to_gymnax.make("Breakout-MinAtar", use_minimal_action_set=False)
    assert (env.spec.action.n, full.spec.action.n) == (3, 6)
    assert full != env
    rooms = [from_to_gymnax.make("FourRooms-misc", goal_fixed=goal)[0] for goal in ([8, 9], (8, 9), [8, 8])]
    assert rooms[0] == rooms[1] != rooms[2]


def test_params_are_traced() -> None:
    env, params = from_to_gymnax.make("CartPole-v1")
    _, state = env.reset(jax.random.key(0), params)

    def angle(force: jax.Array) -> jax.Array:
        step = env.step(jax.random.key(1), state, jnp.int32(1), params.replace(force_mag=force))
        return step[0][3]

    pushed = jax.vmap(angle)(jnp.array([5.0, 10.0, 20.0]))
    assert pushed[0] > pushed[1] > pushed[2]  # a push to the right turns the pole to the left, harder with more force


def test_the_time_limit_is_a_truncation_bounded_by_the_spec() -> None:
    env, params = from_to_gymnax.make("Pendulum-v1", max_steps_in_episode=4)
    assert env.spec.max_steps == 4

    def truncated(limit: int) -> list[bool]:
        limited = params.replace(max_steps_in_episode=jnp.int32(limit))
        _, state = env.reset(jax.random.key(0), limited)
        flags = []
        for _ in range(4):
            _, state, _, terminated, cut, _ = env.step(jax.random.key(1), state, jnp.zeros(1), limited)
            assert not terminated
            flags.append(bool(cut))
        return flags

    assert truncated(2) == [False, True, True, True]
    assert truncated(100) == [False, False, False, True]


def test_an_environment_object_keeps_its_own_params() -> None:
    theirs, params = gymnax.make("Acrobot-v1")
    env, ours = from_gymnax(theirs, params.replace(max_steps_in_episode=7), name="Mine")
    assert (env.spec.name, env.spec.max_steps, env.inner) == ("Mine", 7, theirs)
    np.testing.assert_array_equal(ours.available_torque, [-1.0, 0.0, 1.0])


def test_wrong_names_options_and_wrappers_are_refused() -> None:
    with pytest.raises(ValueError, match="CartPol-v1.*nearest: CartPole-v1"):
        from_to_gymnax.make("gymnax/CartPol-v1")
    with pytest.raises(ValueError, match="CartPole-v1: .*unexpected keyword argument 'colour'"):
        from_to_gymnax.make("CartPole-v1", colour="red")
    with pytest.raises(ValueError, match="action_mapping_key: expected a number, text or list"):
        from_to_gymnax.make("DeepSea-bsuite", action_mapping_key=jax.random.key(1))
    # the wrapper's `step_env` is that of the environment inside: its effect would be lost in silence
    with pytest.raises(ValueError, match="found StickyActionWrapper"):
        from_gymnax(StickyActionWrapper(gymnax.make("CartPole-v1")[0], 0.5))


# ours to gymnax ---------------------------------------------------------------------------------------------------------------


def test_a_round_trip_equals_gymnax_across_resets() -> None:
    theirs, their_params = gymnax.make("CartPole-v1")
    ours = to_gymnax(*from_to_gymnax.make("CartPole-v1"))

    def play(env: Any, params: PyTree, key: jax.Array) -> PyTree:
        def step(carry: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
            action_key, step_key = jax.random.split(key)
            action = env.action_space(params).sample(action_key)
            observation, carry, *outcome, info = env.step(step_key, carry, action, params)
            return carry, (observation, *outcome, info["final_observation"], info["terminated"], info["truncated"])

        observation, state = env.reset(key, params)
        return observation, jax.lax.scan(step, state, jax.random.split(key, 100))[1]

    expected = play(theirs, jax.tree.map(jnp.asarray, their_params), jax.random.key(3))
    found = play(ours, ours.default_params, jax.random.key(3))
    assert np.sum(found[1][2]) >= 2  # terminations, so resets too
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), expected, found)


def test_gymnax_wrappers_count_our_episodes() -> None:
    env = LogWrapper(to_gymnax(Counter(), COUNT_PARAMS))

    def play(action: jax.Array) -> PyTree:
        def step(state: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
            observation, state, _, terminated, truncated, info = env.step(key, state, action)
            return state, (observation, terminated, truncated, info)

        _, state = env.reset(jax.random.key(0))
        return jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 5))[1]

    observation, terminated, truncated, info = jax.vmap(play, out_axes=1)(jnp.array([0, 1]))
    # acting 0 is cut after 5 steps; acting 1 reaches 3 after 3 steps and starts again
    np.testing.assert_array_equal(truncated.T, [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(terminated.T, [[0, 0, 0, 0, 0], [0, 0, 1, 0, 0]])
    np.testing.assert_array_equal(observation["time"].T, [[1, 2, 3, 4, 0], [1, 2, 0, 1, 2]])
    np.testing.assert_array_equal(info["final_observation"]["time"].T, [[1, 2, 3, 4, 5], [1, 2, 3, 1, 2]])
    np.testing.assert_array_equal(info["returned_episode_returns"][-1], [0.0, 3.0])
    np.testing.assert_array_equal(info["returned_episode_lengths"][-1], [5, 3])
    np.testing.assert_array_equal(info["success"].T, [[0, 0, 0, 0, 0], [0, 0, 1, 0, 0]])


def test_gymnax_rollouts_run_multi_discrete_actions() -> None:
    env = to_gymnax(Counter(MultiDiscrete((2, 3))), COUNT_PARAMS)
    assert [part.n for part in env.action_space().spaces] == [2, 3]
    rollout = RolloutWrapper(env=env, env_params=COUNT_PARAMS, num_env_steps=5)
    _, action, reward, _, done, _ = rollout.batch_rollout(jax.random.split(jax.random.key(0), 6), None)
    np.testing.assert_array_equal(action[0] + action[1], reward)
    assert np.all(np.any(done, axis=1))


def test_our_spaces_as_gymnax_spaces() -> None:
    env, params = minigrid.make("MiniGrid-Empty-5x5-v0", obs="symbolic")
    theirs = to_gymnax(env, params)
    space = theirs.observation_space(params)
    assert (space.spaces["image"].shape, space.spaces["image"].dtype) == ((7, 7, 3), jnp.uint8)
    assert (space.spaces["direction"].n, theirs.action_space(params).n, theirs.num_actions) == (4, 7, 7)
    assert theirs.name == "MiniGrid-Empty-5x5-v0"
    observation, _ = theirs.reset(jax.random.key(0))
    np.testing.assert_array_equal(observation["image"], env.reset(jax.random.key(0), params)[0]["image"])


# ours to Gymnasium ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collector() -> tuple[Any, PyTree]:
    return registry.make("Collector-v0")


@pytest.mark.parametrize("name", ["collector", "minigrid", "gymnax", "counter"])
def test_gymnasium_finds_no_fault(name: str, collector: tuple[Any, PyTree]) -> None:
    source = {
        "collector": collector,
        "minigrid": "MiniGrid-DoorKey-5x5-v0",
        "gymnax": "CartPole-v1",
        "counter": (Counter(MultiDiscrete((2, 3))), COUNT_PARAMS),
    }[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(to_gymnasium(source))


def test_a_seed_decides_every_episode(collector: tuple[Any, PyTree]) -> None:
    env = to_gymnasium(minigrid.make("MiniGrid-FourRooms-v0", max_steps=6))

    def play(seed: int | None) -> list[Any]:
        frames = [env.reset(seed=seed)[0]]
        for action in (2, 1, 2, 0, 2, 2):
            frames.append(env.step(action)[0])
        return [frame["image"] for frame in frames]

    first, second = [play(7), play(None)], [play(7), play(None)]
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0], first[1])  # the next episode is another one
    assert not np.array_equal(play(8), first[0])


def test_steps_return_numpy_and_python_values() -> None:
    env = to_gymnasium(Counter(), COUNT_PARAMS)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(1)
    observation, info = env.reset(seed=0)
    assert (observation["total"].tolist(), observation["time"], info) == ([0.0], 0, {})
    for _ in range(3):
        observation, reward, terminated, truncated, info = env.step(np.int64(1))
    assert (observation["total"].tolist(), observation["time"]) == ([3.0], 3)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {"success": True, "components": {"added": 1.0}}
    assert type(reward) is float and type(terminated) is bool and type(observation["time"]) is int
    observation["total"][0] = 9.0  # the caller's own copy


@pytest.mark.parametrize("action", [2, -1, 0.5, [0], "up"])
def test_actions_outside_the_space_are_refused(action: Any) -> None:
    env = to_gymnasium(Counter(), COUNT_PARAMS)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: expected an element of Discrete\(2\), found"):
        env.step(action)


def test_box_actions_of_any_size_and_precision_are_taken() -> None:
    env = to_gymnasium("Pendulum-v1")
    outcomes = []
    for torque in (2.0, 50.0):
        env.reset(seed=0)
        outcomes.append(env.step(np.array([torque]))[1])
    assert outcomes[0] == outcomes[1]  # Pendulum clips to 2
    with pytest.raises(ValueError, match="action: "):
        env.step(np.zeros(2))


def test_pictures_and_text(collector: tuple[Any, PyTree]) -> None:
    env = to_gymnasium(collector, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    assert before.shape == (4 * 32, 8 * 32, 3) and before.dtype == np.uint8
    env.step(0)
    assert not np.array_equal(env.render(), before)
    shaded = to_gymnasium("MiniGrid-Empty-8x8-v0", render_mode="rgb_array")
    shaded.reset(seed=0)
    floor = shaded.render()[16::32, 16::32]  # the middles of the tiles, [row, column]
    # from the corner (1, 1), facing right, the view reaches 6 columns on and 3 rows down: (2, 1) is in it and (2, 5) is not
    assert floor[1, 2].min() > 0 and floor[5, 2].max() == 0
    text = to_gymnasium(collector, render_mode="ansi")
    _, info = text.reset(seed=0)
    assert len(text.render().splitlines()) == 4
    assert info == {"mission": collector[0].mission(None)}
    with pytest.raises(ValueError, match="render_mode: expected None for Counter, found 'ansi'"):
        to_gymnasium(Counter(), COUNT_PARAMS, render_mode="ansi")


def test_gymnasium_makes_it_again_from_its_spec(collector: tuple[Any, PyTree]) -> None:
    env = to_gymnasium(collector, render_mode="ansi")
    again = env.spec.make()
    assert again.spec.id == "jaxagent/Collector-v0"
    assert again.render_mode == "ansi"
    np.testing.assert_array_equal(again.reset(seed=1)[0]["image"], env.reset(seed=1)[0]["image"])


def play_counters(mode: str) -> list[tuple[Any, ...]]:
    """Two counters, one acting 0 and one acting 1, for six steps."""
    env = to_gymnasium_vector(Counter(), 2, COUNT_PARAMS, autoreset_mode=mode)
    env.reset(seed=0)
    return [env.step(np.array([0, 1])) for _ in range(6)]


def test_vector_resets_in_the_same_step() -> None:
    observation, reward, terminated, truncated, info = zip(*play_counters("SameStep"), strict=True)
    # acting 0 is cut after 5 steps, acting 1 reaches 3 after 3 and 6 steps
    np.testing.assert_array_equal([obs["time"] for obs in observation], [[1, 1], [2, 2], [3, 0], [4, 1], [0, 2], [1, 0]])
    np.testing.assert_array_equal(reward, [[0, 1]] * 6)
    np.testing.assert_array_equal(terminated, [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0], [0, 1]])
    np.testing.assert_array_equal(truncated, [[0, 0], [0, 0], [0, 0], [0, 0], [1, 0], [0, 0]])
    assert ["final_obs" in step for step in info] == [False, False, True, False, True, True]
    third = info[2]
    np.testing.assert_array_equal(third["_final_obs"], [False, True])
    assert third["final_obs"][0] is None
    assert (third["final_obs"][1]["total"].tolist(), third["final_obs"][1]["time"]) == ([3.0], 3)
    np.testing.assert_array_equal(third["final_info"]["success"], [False, True])
    np.testing.assert_array_equal(third["final_info"]["_success"], [False, True])
    np.testing.assert_array_equal(third["_success"], [True, False])
    np.testing.assert_array_equal(third["final_info"]["components"]["added"], [0.0, 1.0])


def test_vector_resets_in_the_next_step() -> None:
    observation, reward, terminated, truncated, info = zip(*play_counters("NextStep"), strict=True)
    # the step after an ending only resets: no reward, no flags, no info
    np.testing.assert_array_equal([obs["time"] for obs in observation], [[1, 1], [2, 2], [3, 3], [4, 0], [5, 1], [0, 2]])
    np.testing.assert_array_equal(reward, [[0, 1], [0, 1], [0, 1], [0, 0], [0, 1], [0, 1]])
    np.testing.assert_array_equal(terminated, [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(truncated, [[0, 0], [0, 0], [0, 0], [0, 0], [1, 0], [0, 0]])
    np.testing.assert_array_equal(info[2]["success"], [False, True])
    np.testing.assert_array_equal([step["_success"] for step in info[2:4]], [[True, True], [True, False]])


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_gymnasium_wrappers_count_vector_episodes(mode: AutoresetMode) -> None:
    inner = to_gymnasium_vector(Counter(), 2, COUNT_PARAMS, autoreset_mode=mode)
    assert inner.metadata["autoreset_mode"] is mode
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(inner)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    for _ in range(5):
        observation, *_, info = env.step(np.array([0, 1]))
    assert env.observation_space.contains(observation)
    assert (info["episode"]["l"][0], info["episode"]["r"][0]) == (5, 0.0)


def test_vector_levels_follow_the_seed_and_differ_between_rows() -> None:
    env = to_gymnasium_vector("MiniGrid-FourRooms-v0", 3)
    first, again, other = (env.reset(seed=seed)[0]["image"] for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])


def test_vector_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="autoreset_mode: expected SameStep or NextStep, found 'Disabled'"):
        to_gymnasium_vector(Counter(), 2, COUNT_PARAMS, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match="num_envs: expected a positive integer"):
        to_gymnasium_vector(Counter(), 0, COUNT_PARAMS)
    with pytest.raises(ValueError, match="params: expected those of Counter"):
        to_gymnasium_vector(Counter(), 2)


def test_a_missing_gymnasium_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install jaxagent\[farama\]"):
        to_gymnasium(Counter(), COUNT_PARAMS)


def test_importing_the_adapters_imports_neither_library() -> None:
    code = (
        "import sys, jaxagent.interop.gymnax, jaxagent.interop.gymnasium;"
        "print([name for name in ('gymnax', 'gymnasium', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
