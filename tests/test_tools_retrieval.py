"""Retrieval by hand: what reading pays, and what asking again is good for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toolplay

import jaxagent as ja

CALL = 0.1 / 8
PLAIN = {"step_weight": 0.0}  # turns are free here


ENV, PARAMS = ja.make("Retrieval-v0", params=PLAIN)


def results(script, **params):
    return toolplay.results(ENV, PARAMS.replace(**params), script, num_episodes=1000)


def play(calls, *, topic=15, facts=(6, 5), missed=(0,), **params):
    """Reward, last info and words of calls, where the k-th query misses `missed[k]`."""
    missed = jnp.zeros(12, jnp.int32).at[: len(missed)].set(jnp.array(missed))
    world = {"topic": jnp.int32(topic), "facts": jnp.array(facts), "missed": missed}
    rewards, infos, words = toolplay.play(ENV, PARAMS.replace(**params), calls, world)
    assert ENV.vocabulary[int(ENV.world.task(infos[0]["world"])[0])] == f"topic_{topic}"
    return rewards.sum(), infos[-1], words


def test_a_good_query_and_the_right_answer():
    """(6 + 5) mod 8 = 3. Two of three documents are relevant. The topic is the last: its neighbour is the first."""
    total, info, words = play(["query topic_15", "answer value_3"])
    assert words == ["query topic_15 first_6 second_5 other", "answer value_3 right"]
    assert total == pytest.approx(0.4 + 0.3 + 0.2 * 2 / 3 - CALL) and info["success"]


def test_asking_again_after_a_miss():
    """The second query adds the first document: four are read, two of them relevant."""
    total, info, words = play(["query topic_15", "query topic_15", "answer value_3"], missed=(1, 2))
    assert words[:2] == ["query topic_15 second_5 other other", "query topic_15 first_6 other other"]
    assert total == pytest.approx(0.4 + 0.3 + 0.2 * 2 / 4 - 2 * CALL) and info["success"]
    # the same miss twice brings nothing: it is counted, and costs what the params say
    total, info, _ = play(["query topic_15"] * 3 + ["answer value_3"], missed=(1, 1, 0), redundant_weight=np.float32(-0.1))
    assert info["totals"]["redundant"] == 1 and info["success"]
    assert total == pytest.approx(0.4 + 0.3 + 0.2 * 2 / 4 - 3 * CALL - 0.1)


def test_reading_sixteen_documents_is_paid_but_is_no_success():
    total, info, words = play(["query_all", "answer value_3"])
    assert words[0] == "query_all first_6 second_5 other"
    assert total == pytest.approx(0.4 + 0.3 + 0.2 * 2 / 16 - CALL) and info["performance"] == 0


def test_a_neighbour_and_a_stranger():
    """Topic 14 shows its own two and the first of 15; then four others were read, and the second query makes it five."""
    total, info, words = play(["query topic_14", "query topic_15", "answer value_3"])
    assert words[:2] == ["query topic_14 other other first_6", "query topic_15 first_6 second_5 other"]
    assert total == pytest.approx(0.4 + 0.3 + 0.2 * 2 / 5 - 2 * CALL) and info["performance"] == 0
    total, info, words = play(["query topic_3", "abstain"])
    assert words == ["query topic_3 other other other", "abstain abstained"]
    assert total == pytest.approx(-CALL) and info["performance"] == 0


def test_nothing_read_has_no_precision():
    """Made up: 0.4 if it happens to be right, and not 0.2 more for an empty set."""
    for topic in (0, 15):
        total, info, words = play(["answer value_3"], topic=topic)
        assert total == pytest.approx(0.4) and info["performance"] == 0 and words == ["answer value_3 right"]
    assert play(["abstain"])[0] == 0.0
    total, _, words = play(["answer value_2"], wrong_weight=np.float32(-0.4))
    assert total == pytest.approx(-0.4) and words == ["answer value_2 wrong"]


def test_the_answer_is_skewed_and_queries_miss_as_often_as_the_params_say():
    env, params = ja.make("Retrieval-v0", params={"skew": 0.7, "noise": 0.25})
    _, state = jax.vmap(lambda key: env.reset(key, params))(jax.random.split(jax.random.key(0), 4000))
    answer = np.asarray(state.world.facts).sum(1) % 8
    shares = np.bincount(answer, minlength=8) / answer.size
    assert shares[0] == pytest.approx(0.7, abs=0.03) and np.ptp(shares[1:]) < 0.03
    assert np.bincount(np.asarray(state.world.facts)[:, 0]).min() > 400, "one fact alone says nothing of the answer"
    missed = np.asarray(state.world.missed)
    assert [(missed == m).mean() for m in range(3)] == pytest.approx([0.75, 0.125, 0.125], abs=0.01)


def test_the_scripts():
    """Without noise two calls do. With noise n the first query misses n of the time, and each later one helps 1 - n / 2.

    At n = 0.5 that is 1 + 0.5 / 0.75 queries, and a precision of 2/3 or 2/4: 0.7 + 0.2 (1/3 + 1/4) - 1.67 / 80 = 0.796. At
    n = 1 it is 0.7 + 0.1 - 3 / 80 = 0.7625, above the 0.7125 of reading sixteen documents. So noise does not make these the
    best choice as long as asking again is free to bring the other one: that holds of a single query alone.
    """
    clean, noisy, worst = (results("optimal", noise=np.float32(noise)) for noise in (0.0, 0.5, 1.0))
    assert (clean.length == 2).all() and clean.total_reward == pytest.approx(0.7 + 0.4 / 3 - CALL)
    assert noisy.length.mean() == pytest.approx(2.67, abs=0.1) and noisy.total_reward.mean() == pytest.approx(0.796, abs=0.01)
    assert worst.total_reward.mean() == pytest.approx(0.7625, abs=0.01)
    assert clean.success.all() and noisy.success.all() and worst.success.mean() > 0.99  # 1 in 1024 never finds the other
    hack, wordy = results("hack"), results("sft")
    assert hack.total_reward == pytest.approx(0.7125) and not hack.success.any()
    assert 0.8 < wordy.success.mean() < 0.95 and wordy.length.mean() > noisy.length.mean() + 0.4


def test_one_query_alone_pays_less_than_sixteen_documents_where_a_quarter_go_wrong():
    """Gone wrong, and answered by the other fact and the skew of 0.5: 0.42 less. 0.8208 - 0.4167 n = 0.7125 at n = 0.26."""
    asked = ["query topic_15", "answer value_3"]
    good, bad, wide = play(asked)[0], play(asked, missed=(1,))[0], play(["query_all", "answer value_3"])[0]
    bad -= 0.4 * 0.5
    assert bad == pytest.approx(0.2 + 0.15 + 0.2 / 3 - CALL)
    assert (good - wide) / (good - bad) == pytest.approx(0.26, abs=0.005)
