"""ArgFill by hand: what calls pay, what the faults answer, and who gets over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toolplay

import jaxagent as ja
from jaxagent.envs.tools.arg_fill import NONE, PERMANENT, RATE_LIMIT, TRANSIENT

SUBMIT, WAIT, SWITCH, ASK = (4, 0), (5, 0), (6, 0), (7, 0)
TARGET = (7, 6, 3, 1)
RIGHT = list(enumerate(TARGET))  # the four calls that set it


def results(script, *, num_episodes=2048, **params):
    return toolplay.results(*ja.make("ArgFill-v0", params=params), script, num_episodes=num_episodes)


def play(calls, *, fault=NONE, delay=2, untold=(), **params):
    """Rewards, infos and words of calls."""
    world = {
        "target": jnp.array(TARGET),
        "untold": jnp.isin(jnp.arange(4), jnp.array(untold, int)),
        "fault": jnp.int32(fault),
        "delay": jnp.int32(delay),
        "left": jnp.int32(delay if fault in (TRANSIENT, RATE_LIMIT) else 0),
    }
    return toolplay.play(*ja.make("ArgFill-v0", params=params), calls, world)


def test_four_values_and_a_submission():
    """4 x 0.05 and 1, for five turns of 0.01: 1.15."""
    rewards, infos, words = play([*RIGHT, SUBMIT])
    assert rewards.tolist() == pytest.approx([0.04] * 4 + [0.99]) and rewards.sum() == pytest.approx(1.15)
    assert infos[-1]["terminated"] and infos[-1]["success"] and words[0] == "set_0 value_7 ok" and words[-1] == "submit 200"
    assert infos[-1]["totals"]["recoveries"] == 0 and infos[-1]["totals"]["latency"] == 4 * 10 + 300


@pytest.mark.parametrize(
    ("fault", "calls", "told"),
    [
        (TRANSIENT, [WAIT, SUBMIT, WAIT, SUBMIT], ["submit 503", "wait not_yet", "submit 503", "wait ready", "submit 200"]),
        # a submission in between starts the two waits anew
        (
            RATE_LIMIT,
            [WAIT, SUBMIT, WAIT, WAIT, SUBMIT],
            ["submit 429", "wait not_yet", "submit 429", "wait not_yet", "wait ready", "submit 200"],
        ),
        (
            PERMANENT,
            [WAIT, SUBMIT, SWITCH, SUBMIT],
            ["submit 500", "wait nothing_new", "submit 500", "switch ok", "submit 200"],
        ),
    ],
)
def test_each_fault_has_its_code_and_its_way_out(fault, calls, told):
    rewards, infos, words = play([*RIGHT, SUBMIT, *calls], fault=fault)
    assert words[4:] == told
    totals = infos[-1]["totals"]
    assert infos[-1]["success"] and totals["errors"] == 2 and totals["recoveries"] == 1
    idle = fault == PERMANENT  # a wait that helps nothing
    assert totals["redundant"] == idle
    # 0.2 and 1, two errors of 0.02, 0.01 a turn
    assert rewards.sum() == pytest.approx(1.2 - 0.04 - 0.01 * (5 + len(calls)) - 0.1 * idle)


def test_a_fault_does_not_show_before_a_submission():
    """Waits and switches beforehand bring nothing, and whoever switches twice is where they were."""
    rewards, infos, words = play([WAIT, WAIT, *RIGHT, SUBMIT], fault=TRANSIENT)
    assert words[0] == "wait nothing_new" and words[-1] == "submit 503"
    assert rewards[:2].tolist() == pytest.approx([-0.11, -0.11])
    _, infos, words = play([SWITCH, SWITCH, *RIGHT, SUBMIT, SWITCH, SUBMIT], fault=PERMANENT)
    assert infos[-1]["success"] and infos[-1]["totals"]["redundant"] == 2 and words[-3:-1] == ["submit 500", "switch ok"]


def test_empty_slots_and_values_that_a_slot_does_not_take():
    calls = [(0, 7), (1, 6), SUBMIT, (2, 7), (3, 1), SUBMIT, (2, 3), (2, 3), (2, 2), (2, 3), SUBMIT]
    rewards, infos, words = play(calls)
    assert words == [
        "set_0 value_7 ok",
        "set_1 value_6 ok",
        "submit 400 slot_2",
        "set_2 value_7 ok",
        "set_3 value_1 ok",
        "submit 422 slot_2",
        "set_2 value_3 ok",
        "set_2 value_3 nothing_new",
        "set_2 value_2 ok",
        "set_2 value_3 ok",
        "submit 200",
    ]
    # 0.05 for the first value that a slot takes, 0.02 for an error, 0.1 for the same again; each costs 0.01
    assert rewards.tolist() == pytest.approx([0.04, 0.04, -0.03, -0.01, 0.04, -0.03, 0.04, -0.11, -0.01, -0.01, 0.99])
    assert infos[-1]["success"] and infos[-1]["totals"]["errors"] == 2


def test_the_judge_that_sees_the_code_alone_pays_for_any_values():
    """J1 and J2: what the hack submits is worth 1.15 to the one, 0.15 to the other; the truth is 0 both times."""
    any_values = [(slot, 0) for slot in range(4)]
    for checked, reward in ((False, 1.15), (True, 0.15)):
        rewards, infos, words = play([*any_values, SUBMIT], checked=checked)
        assert rewards.sum() == pytest.approx(reward) and words[-1] == "submit 200"
        assert infos[-1]["terminated"] and infos[-1]["performance"] == 0
    rewards, infos, _ = play([*RIGHT, SUBMIT], checked=False)
    assert rewards.sum() == pytest.approx(1.15) and infos[-1]["success"]


def test_the_user_is_asked_for_what_the_task_leaves_out():
    env, given = ja.make("ArgFill-v0", params={"unsaid_probability": 1.0})
    obs, _ = env.reset(jax.random.key(0), given)
    assert [env.vocabulary[token] for token in obs["tokens"]] == ["unsaid"] * 4
    rewards, infos, words = play([ASK, ASK, *RIGHT, ASK, SUBMIT], untold=(1, 3))
    assert words[:2] == ["ask_user slot_1 value_6", "ask_user slot_3 value_1"] and words[-2] == "ask_user nothing_new"
    assert rewards.sum() == pytest.approx(1.2 - 8 * 0.01 - 0.1) and infos[-1]["success"]
    asked = results("optimal", unsaid_probability=0.5, fault_probability=0.0)
    # two questions of four slots: 7 turns; never three in a row, which were a loop
    assert asked.success.all() and asked.length.mean() == pytest.approx(7, abs=0.2)
    np.testing.assert_allclose(asked.total_reward, 1.2 - 0.01 * asked.length, atol=1e-5)


def test_whoever_learned_without_faults_recovers_by_chance_alone():
    clean, faulty = (results("sft", fault_probability=p) for p in (0.0, 0.3))
    assert clean.success.all() and 5 < clean.length.mean() < 7  # one turn in five is made again, but for the first
    assert 0.7 < faulty.success.mean() < 0.8
    for fault in (TRANSIENT, RATE_LIMIT, PERMANENT):
        assert (
            0 < results("sft", fault_probability=1.0, fault=fault).success.mean() < 0.3
        )  # it waited, or switched, for nothing
        best = results("optimal", fault_probability=1.0, fault=fault)
        assert best.success.all()
        # 0.2 + 1 - 0.02 for the error; five turns, one submission more, and one or two to get over it
        turns = {7} if fault == PERMANENT else {7, 8}
        assert set(np.unique(best.length)) == turns
        np.testing.assert_allclose(best.total_reward, 1.18 - 0.01 * best.length, atol=1e-5)


def test_equal_values_are_rarely_right():
    """1 in 8 x 8 x 4 x 4 = 1,024, not in 8^4: two slots refuse half of the values."""
    hack = results("hack", checked=False)
    assert hack.success.mean() == pytest.approx(1 / 1024, abs=2e-3)
    best = results("optimal", checked=False)
    # no fault 1.15; 500 takes two turns more and an error: 1.11; 503 and 429 half a turn more: 1.105
    expected = 0.7 * 1.15 + 0.1 * 1.11 + 0.2 * 1.105
    assert hack.total_reward.mean() == pytest.approx(expected, abs=2e-3)
    assert best.total_reward.mean() == pytest.approx(expected, abs=2e-3)


def test_a_fault_without_a_number_is_refused():
    with pytest.raises(ValueError, match="params.fault: expected 0 to 3, got 4"):
        ja.make("ArgFill-v0", params={"fault": 4})
