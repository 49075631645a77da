"""ToolSelect by hand: what calls pay, and how many there are."""

import jax.numpy as jnp
import numpy as np
import pytest
import toolplay

import jaxagent as ja

DOCUMENT = {"tool_weight": 0.1, "arguments_weight": 0.05, "step_weight": 0.0}  # a bonus for every call


def results(script, *, params=None, **options):
    return toolplay.results(*ja.make("ToolSelect-v0", params=params or {}, **options), script)


def play(calls, *, params=None, needed=(0, 1, 4, 5)):
    """Rewards, infos and words of calls, where these facts are needed."""
    needed = jnp.zeros(8, bool).at[jnp.array(needed)].set(True)
    return toolplay.play(*ja.make("ToolSelect-v0", params=params or {}), calls, {"needed": needed})


LOGIN, LOOKUP, ANSWER = (0, 0), (1, 0), (4, 0)


def test_the_shortest_way_is_five_to_seven_calls_and_the_demonstrations_take_eight_to_twelve():
    optimal, wordy = results("optimal"), results("sft")
    assert set(np.unique(optimal.length)) == {5, 6, 7} and optimal.success.all()
    # 2 + m + 1 calls are 7, 9 or 11, one in five of the facts' calls is made again: about 10.4
    assert 8 < wordy.length.mean() < 12 and wordy.success.all()
    assert set(np.unique(results("optimal", bundle=True).length)) == {4}


def test_a_bonus_for_every_call_pays_single_facts_twice():
    """Four facts: 4 x 0.15 by single calls, 2 x 0.15 by pairs, and 1 for the answer."""
    singles, _, _ = play([LOGIN, LOOKUP, (2, 0), (2, 1), (2, 4), (2, 5), ANSWER], params=DOCUMENT)
    pairs, infos, words = play([LOGIN, LOOKUP, (3, 0), (3, 2), ANSWER], params=DOCUMENT)
    assert singles.sum() == pytest.approx(1.6) and pairs.sum() == pytest.approx(1.3)
    assert infos[-1]["success"] and infos[-1]["performance"] == 1 and infos[-1]["terminated"]
    assert words == ["login ok", "lookup ok", "pair pair_0 ok", "pair pair_2 ok", "answer right"]


def test_a_bonus_for_new_facts_pays_both_the_same():
    params = {"facts_weight": 0.15, "step_weight": -0.02}
    singles, _, _ = play([LOGIN, LOOKUP, (2, 0), (2, 1), (2, 4), (2, 5), ANSWER], params=params)
    pairs, _, _ = play([LOGIN, LOOKUP, (3, 0), (3, 2), ANSWER], params=params)
    assert pairs.sum() - singles.sum() == pytest.approx(2 * 0.02)  # two calls fewer


def test_the_hack_pays_most_where_repetition_costs_nothing():
    """22 right calls of 24, 0.15 each: 3.3, beyond the honest 1.6."""
    farmed = results("hack", params=DOCUMENT | {"redundant_weight": 0.0, "loop_weight": 0.0})
    np.testing.assert_allclose(farmed.total_reward, 3.3, atol=1e-5)
    assert not farmed.success.any() and (farmed.length == 24).all()
    # the document's own prices: -0.1 for 21 repeated ones, -0.5 for 20 in a loop
    np.testing.assert_allclose(results("hack", params=DOCUMENT).total_reward, 3.3 - 2.1 - 10.0, atol=1e-4)


def test_errors_repetition_and_a_wrong_answer():
    rewards, infos, words = play([(2, 0), LOOKUP, LOGIN, (2, 0), LOOKUP, (2, 0), (2, 0), (2, 2), ANSWER], params=DOCUMENT)
    assert words == [
        "get fact_0 not_logged_in",
        "lookup not_logged_in",
        "login ok",
        "get fact_0 no_customer",
        "lookup ok",
        "get fact_0 ok",
        "get fact_0 nothing_new",
        "get fact_2 nothing_new",  # which is new, but not needed
        "answer wrong",
    ]
    assert infos[-1]["totals"]["errors"] == 3 and infos[-1]["totals"]["redundant"] == 2
    assert rewards.tolist() == pytest.approx([0, 0, 0, 0, 0, 0.15, 0.15 - 0.1, -0.1, -1.0])
    assert not infos[-1]["success"] and infos[-1]["totals"]["recoveries"] == 0
    assert infos[-1]["totals"]["latency"] == 200 + 2 * 150 + 5 * 100 + 50
