"""What holds in every tool world: actions, tokens, counts, reward, scripts. The arithmetic of each has a file of its own."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagent as ja
from jaxagent.envs import text, tools
from jaxagent.envs.tools.base import FIRST_WORD, INVALID, PAD, SCRIPTS, ToolEnv
from jaxagent.envs.vector import VectorEnv
from jaxagent.planners.scripted import scripted
from jaxagent.rollout import init, policy_input

NAMES = sorted(tools.ENVS)
PLAYED = [*(("single", script) for script in SCRIPTS), ("pair", "optimal"), ("pair", "random")]
ROWS = 16


class Record:
    """Episodes of one script, a row each: everything that was seen, done and paid, [T, B], until each row's end."""

    def __init__(self, env: ToolEnv, params: Any, script: str, num_rows: int = ROWS, seed: int = 0) -> None:
        vector_env, policy = VectorEnv(env, num_rows, reset_mode="none"), scripted(env, script)

        def play(key):
            start_key, act_key = jax.random.split(key)

            def body(state, step_key):
                carry, action, _ = policy.act(None, state.carry, policy_input(vector_env, policy, state), step_key)
                vector, out = vector_env.step(state.vector, action, params)
                reached = state._replace(vector=vector, carry=carry)
                return reached, (state.vector.env_state, vector_env.observe(state.vector), action, out)

            state = init(vector_env, policy, start_key, params)
            return jax.lax.scan(body, state, jax.random.split(act_key, env.spec.max_steps))

        end, (self.state, self.observation, self.action, self.out) = jax.device_get(jax.jit(play)(jax.random.key(seed)))
        self.end = end.vector.env_state
        self.mask = np.asarray(self.out.mask)
        self.last = self.mask.sum(0) - 1  # [B]

    def at_end(self, values) -> np.ndarray:
        return np.asarray(values)[self.last, np.arange(self.mask.shape[1])]


@pytest.fixture(scope="module", params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def records(name) -> dict[tuple[str, str], tuple[ToolEnv, Any, Record]]:
    made = {}
    for turn, script in PLAYED:
        env, params = ja.make(name, turn=turn)
        made[turn, script] = env, params, Record(env, params, script)
    return made


@pytest.mark.parametrize(("turn", "script"), PLAYED)
def test_every_component_is_paid_and_every_episode_ends(records, turn, script):
    env, params, record = records[turn, script]
    out = record.out
    assert (record.last >= 0).all() and (out.terminated | out.truncated).sum(0).max() == 1
    assert (out.terminated | out.truncated).any(0).all(), "the bound of steps ends an episode"
    paid = np.where(record.mask[..., None], out.info["components"], 0.0)
    assert paid.shape[-1] == len(env.spec.components)
    np.testing.assert_allclose(paid.sum(-1), out.reward, atol=1e-5)
    counts = {key: record.at_end(values) for key, values in out.info["totals"].items()}
    assert (counts["turns"] <= env.world.max_turns).all()
    for component in ("redundant", "invalid", "step"):
        weight, place = getattr(params, f"{component}_weight"), env.spec.components.index(component)
        total = counts["turns" if component == "step" else component]
        np.testing.assert_allclose(paid[..., place].sum(0), weight * total, atol=1e-4)


def test_what_the_scripts_are_for(records):
    """The optimal one succeeds, the wordy one too with more turns, the hack is paid without success, random is neither."""
    performance, turns = {}, {}
    for script in SCRIPTS:
        _, _, record = records["single", script]
        performance[script] = record.at_end(record.out.info["performance"]).mean()
        turns[script] = record.at_end(record.out.info["totals"]["turns"]).mean()
    assert performance["optimal"] == 1.0 and performance["sft"] > 0.6
    assert performance["hack"] < 0.5 * performance["optimal"] and performance["random"] < 0.5
    assert turns["optimal"] < turns["sft"]


def test_words_and_whole_calls_do_the_same(records):
    single, pair = (records[turn, "optimal"][2] for turn in ("single", "pair"))
    for values in (lambda record: record.at_end(record.out.info["performance"]), _returns):
        np.testing.assert_allclose(values(single), values(pair), atol=1e-4)
    for row in range(ROWS):
        said = _said(single, row)
        assert said == _said(pair, row)[: len(said)], "but for the operation that waits for the last argument"


def _returns(record: Record) -> np.ndarray:
    return np.where(record.mask, record.out.reward, 0).sum(0)


def _said(record: Record, row: int) -> list[int]:
    """All tokens of an episode up to its last action."""
    steps = [record.observation["tokens"][t, row] for t in range(record.last[row] + 1)]
    return [int(token) for tokens in steps for token in tokens if token != PAD]


def test_tokens_are_words_and_counted(records):
    for (_, _), (env, _, record) in records.items():
        tokens = record.observation["tokens"]
        assert tokens.min() >= 0 and tokens.max() < len(env.vocabulary) and len(set(env.vocabulary)) == len(env.vocabulary)
        np.testing.assert_array_equal((tokens != PAD).sum(-1), record.observation["num_tokens"])
        assert (np.diff((tokens == PAD).astype(int), axis=-1) >= 0).all(), "PAD only after the last"
        assert len(_said(record, 0)) <= env.max_tokens
        assert record.observation["num_tokens"][0].min() >= 1, "the task is told"


def test_a_window_shows_the_last_words(name, records):
    if name not in ("SqlQuery-v0", "ToolSelect-v0"):
        pytest.skip("a window is the same in every world")
    _, params, record = records["single", "sft"]
    width = record.observation["tokens"].shape[-1] + 5
    windowed = Record(ja.make(name, window=width)[0], params, "sft")
    for row in range(ROWS):
        said: list[int] = []
        for t in range(record.last[row] + 1):
            said += [int(token) for token in record.observation["tokens"][t, row] if token != PAD]
            shown = windowed.observation["tokens"][t, row]
            count = min(len(said), width)
            assert shown[width - count :].tolist() == said[-count:] and (shown[: width - count] == PAD).all()
            assert windowed.observation["num_tokens"][t, row] == count


@pytest.mark.parametrize("turn", ["single", "pair"])
def test_actions_that_mean_nothing_are_counted_and_do_nothing(name, turn):
    env, params = ja.make(name, turn=turn)
    _, start = env.reset(jax.random.key(0), params)
    for action in (-1, env.num_actions, 10**6):
        obs, state, reward, terminated, _, info = env.step(jax.random.key(1), start, jnp.int32(action), params)
        jax.tree.map(np.testing.assert_array_equal, state.world, start.world)
        assert info["totals"]["invalid"] == 1 and info["totals"]["turns"] == 1 and not terminated
        assert float(reward) == pytest.approx(params.invalid_weight + params.step_weight)
        assert obs["tokens"][0] == INVALID and obs["num_tokens"] == 1


@pytest.mark.parametrize("turn", ["single", "pair"])
def test_the_mask_is_what_means_something(name, turn):
    env, params = ja.make(name, turn=turn, mask=True)
    record = Record(env, params, "random", num_rows=4)
    taken = np.take_along_axis(record.observation["action_mask"], record.action[..., None], -1)[..., 0]
    assert taken[record.mask].all() and record.at_end(record.out.info["totals"]["invalid"]).sum() == 0
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), record.state)
    for action in np.flatnonzero(~record.observation["action_mask"][0, 0]):
        info = env.step(jax.random.key(0), state, jnp.int32(action), params)[-1]
        assert info["totals"]["invalid"] == 1


def test_a_cache_answers_the_same_at_no_cost(name, records):
    env, params, plain = records["single", "sft"]
    if not env.calls.cacheable.any():
        pytest.skip("no call here is bound to give the same answer again")
    cached = Record(env, params.replace(cache=np.bool_(True)), "sft")
    jax.tree.map(np.testing.assert_array_equal, cached.observation, plain.observation)
    totals = [{key: r.at_end(v) for key, v in r.out.info["totals"].items()} for r in (plain, cached)]
    assert (totals[0]["cache_hits"] == 0).all() and (totals[0]["latency"] == totals[0]["latency_uncached"]).all()
    np.testing.assert_array_equal(totals[0]["latency"], totals[1]["latency_uncached"])
    assert ((totals[1]["latency"] < totals[0]["latency"]) == (totals[1]["cache_hits"] > 0)).all()


def test_an_error_is_no_answer_that_a_cache_keeps():
    """100 ms for what comes too early, 100 for logging in, 250 for looking up, 100 for the fact, then nothing."""
    env, params = ja.make("ToolSelect-v0", params={"cache": True})
    _, state = env.reset(jax.random.key(0), params)
    calls, known = ["get(fact_0)", "login()", "lookup()", "get(fact_0)", "get(fact_0)"], text.choices(env, state)
    operations = [env.calls.operation[known.index(call)] for call in calls]
    expected = np.cumsum([env.world.operations[operation].latency for operation in operations]).tolist()
    for call, latency, hits in zip(calls, expected[:-1] + expected[-2:-1], (0, 0, 0, 0, 1), strict=True):
        _, state, *_, info = env.step(jax.random.key(0), state, text.parse(env, state, call), params)
        assert (int(info["totals"]["latency"]), int(info["totals"]["cache_hits"])) == (latency, hits)
    assert info["totals"]["latency_uncached"] == expected[-1]


def test_nobody_sees_the_true_objective(name, records):
    """An equal world that is judged otherwise shows and pays the same."""
    env, params, record = records["single", "random"]
    judged = type("Judged", (type(env.world),), {"performance": lambda self, state: jnp.float32(-1.0)})
    world = judged(**{f.name: getattr(env.world, f.name) for f in dataclasses.fields(env.world)})
    other = Record(dataclasses.replace(env, world=world), params, "random")
    assert (other.out.info["performance"] == -1).all()
    jax.tree.map(np.testing.assert_array_equal, (other.observation, other.action), (record.observation, record.action))
    np.testing.assert_array_equal(other.out.reward, record.out.reward)


def test_rows_are_worlds_of_their_own(name, records):
    """Three rows of one state and one action do what one does, whatever the rows beside them do."""
    env, params, record = records["single", "random"]
    vector_env = VectorEnv(env, 6, reset_mode="none")
    take = lambda rows: jax.tree.map(lambda leaf: jnp.asarray(leaf[0, rows]), record.state)  # noqa: E731
    rows = jnp.array([3, 0, 3, 1, 3, 2])
    state = vector_env.init(jax.random.key(0), params)._replace(env_state=take(rows))
    _, out = jax.jit(vector_env.step)(state, jnp.asarray(record.action[0])[rows], params)
    for row in (0, 2, 4):
        assert out.reward[row] == record.out.reward[0, 3]
        np.testing.assert_array_equal(out.observation["tokens"][row], record.observation["tokens"][1, 3])


def test_params_without_a_meaning_are_refused(name):
    with pytest.raises(ValueError, match="params.max_steps: expected 1 to"):
        ja.make(name, params={"max_steps": 0})
    with pytest.raises(ValueError, match="params.step_weight: expected a finite number"):
        ja.make(name, params={"step_weight": float("nan")})
    with pytest.raises(ValueError, match="window: expected at least"):
        ja.make(name, window=1)
    env, params = ja.make(name)
    wrong = {"step_weight": np.inf, "max_steps": 3.5, "cache": 2, "invalid_weight": np.zeros(3)}
    for field, value in wrong.items():
        with pytest.raises(ValueError, match=f"params.{field}: expected"):
            env.check_params(params.replace(**{field: value}))
    with pytest.raises(ValueError, match=f"params: expected {type(params).__name__}, got tuple"):
        env.check_params(())
    for probability in env.world.probabilities:
        with pytest.raises(ValueError, match=f"params.{probability}: expected a probability, got 1.5"):
            ja.make(name, params={probability: 1.5})


def test_states_are_strongly_typed(name):
    """A weakly typed leaf would compile everything that it goes through once more."""
    env, params = ja.make(name)
    begun = jax.eval_shape(env.reset, jax.random.key(0), params)
    stepped = jax.eval_shape(env.step, jax.random.key(0), begun[1], jnp.int32(0), params)
    assert not [leaf for leaf in jax.tree.leaves((begun, stepped)) if leaf.weak_type]
    assert jax.tree.structure(begun[1]) == jax.tree.structure(stepped[1])
    for before, after in zip(jax.tree.leaves(begun[1]), jax.tree.leaves(stepped[1]), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)


def test_words_come_after_the_operations(name):
    env, _ = ja.make(name)
    assert env.vocabulary[FIRST_WORD] == env.world.operations[0].name
    assert all(argument in env.world.words for operation in env.world.operations for argument in operation.arguments)
