"""FlightBooking by hand: the ten actions, what they pay by each reward, and what a wrong one does."""

from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toolplay

import jaxagent as ja

OPEN, SEARCH, PASSENGER, PAY, CONFIRM, BACK = ((operation, 0) for operation in (0, 2, 5, 6, 7, 8))
ASKED = (3, 5, 1, 2, 1)  # origin, destination, day, offer, seat
TEN = [OPEN, (1, 3), (1, 5), (1, 1), SEARCH, (3, 2), (4, 1), PASSENGER, PAY, CONFIRM]


def results(script, *, num_episodes=512, **params):
    return toolplay.results(*ja.make("FlightBooking-v0", params=params), script, num_episodes=num_episodes)


def play(calls, **params):
    """Rewards, infos and words of calls, where ASKED is asked for: an evening."""
    env, given = ja.make("FlightBooking-v0", params=params)
    chosen = env.reset(jax.random.key(0), given)[1].world.chosen  # what the stage that it starts at implies
    world = {
        "asked": jnp.array(ASKED),
        "chosen": jnp.where(chosen < 0, -1, jnp.array(ASKED)),
        "evening": jnp.bool_(True),
        "prices": jnp.array([0, 3, 1, 2]),
        "evenings": jnp.array([False, True, True, True]),
    }
    return toolplay.play(env, given, calls, world)


def test_ten_actions_and_one_reward():
    rewards, infos, words = play(TEN)
    assert rewards.tolist() == [0.0] * 9 + [1.0]
    assert [info["terminated"] for info in infos] == [False] * 9 + [True] and infos[-1]["success"]
    assert words == [
        "open page_1",
        "type value_3 page_2",
        "type value_5 page_3",
        "type value_1 page_4",
        "search morning_0 evening_3 evening_1 evening_2",
        "select offer_2 page_6",
        "seat aisle page_7",
        "passenger page_8",
        "pay page_9",
        "confirm booked",
    ]
    for left_out in range(10):
        _, infos, _ = play(TEN[:left_out] + TEN[left_out + 1 :])
        assert not infos[-1]["terminated"], "none of the ten can be left out"


def test_the_task_names_what_is_to_be_booked_and_the_offer_is_the_cheapest_at_that_time():
    env, given = ja.make("FlightBooking-v0")
    obs, state = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(0), 512), given)
    world = jax.device_get(state.world)
    feasible = world.evenings == world.evening[:, None]
    cheapest = np.argmin(np.where(feasible, world.prices, 9), axis=1)
    assert feasible.any(1).all() and (cheapest == world.asked[:, 3]).all()
    assert (np.sort(world.prices, axis=1) == np.arange(4)).all() and (world.asked[:, 0] != world.asked[:, 1]).all()
    words = np.array(env.vocabulary)[np.asarray(obs["tokens"])]
    for said, asked, evening in zip(words, world.asked, world.evening, strict=True):
        time, seat = ("morning", "evening")[int(evening)], ("window", "aisle")[asked[4]]
        assert said.tolist() == [*(f"value_{v}" for v in asked[:3]), time, seat, "page_0"]


@pytest.mark.parametrize(("place", "instead"), [(1, (1, 0)), (5, (3, 1)), (5, (3, 0)), (6, (4, 0))])
def test_a_wrong_value_is_taken_and_makes_a_wrong_booking(place, instead):
    """Another origin, a dearer offer, one at another time, another seat. Strict: it is refused, and the page stays."""
    calls = TEN[:place] + [instead] + TEN[place + 1 :]
    rewards, infos, words = play(calls)
    assert rewards.sum() == 0 and infos[-1]["terminated"] and not infos[-1]["success"] and words[-1] == "confirm booked"
    mended, infos, _ = play(TEN[:place] + [instead, BACK] + TEN[place:])
    assert mended.sum() == 1 and infos[-1]["success"] and infos[-1]["totals"]["errors"] == 0
    rewards, infos, words = play(TEN[:place] + [instead] + TEN[place:], strict=True)
    assert rewards.sum() == 1 and infos[-1]["success"] and infos[-1]["totals"]["errors"] == 1
    assert words[place].endswith(f"wrong page_{place}")


@pytest.mark.parametrize(("wrong", "stage"), [(0, 4), (1, 3), (2, 0)])
def test_what_a_wrong_action_does(wrong, stage):
    """Paying before the search; and going back, or anything but opening, at the start."""
    _, infos, words = play([BACK, PAY, *TEN[:4], PAY], wrong=wrong)
    assert [int(info["world"].stage) for info in infos] == [0, 0, 1, 2, 3, 4, stage]
    assert words[0] == "back wrong page_0" and words[-1] == f"pay wrong page_{stage}"
    assert infos[-1]["totals"]["errors"] == 3 and infos[-1]["totals"]["redundant"] == 0


def test_milestones_are_paid_once_and_forward_steps_every_time():
    for weight in ("milestone_weight", "forward_weight"):
        rewards, _, _ = play(TEN, **{weight: 0.1})
        assert rewards.sum() == pytest.approx(2.0)  # ten stages, and the booking
    there_and_back = [OPEN, BACK] * 25
    rewards, _, _ = play(there_and_back, milestone_weight=0.2)
    assert rewards.sum() == pytest.approx(0.2)
    # 25 times 0.2, more than the ten stages and the booking with 3; 24 of the 25 brought nothing new
    rewards, infos, _ = play(there_and_back, forward_weight=0.2)
    assert rewards.sum() == pytest.approx(5.0) and infos[-1]["totals"]["redundant"] == 24
    assert results("hack", forward_weight=0.2).total_reward.mean() == pytest.approx(5.0)
    assert results("optimal", forward_weight=0.2).total_reward.mean() == pytest.approx(3.0)
    rewards, _, _ = play(there_and_back, forward_weight=0.2, redundant_weight=-0.2)
    assert rewards.sum() == pytest.approx(0.2)


@pytest.mark.parametrize("start", [0, 6])
def test_the_potential_adds_up_to_what_it_was_at_the_start(start):
    """Discounted, whatever is done on the way: the sum is gamma^T times 0 less start / 10."""
    for calls in (TEN[start:], [CONFIRM, BACK, *TEN[max(start - 1, 0) :]], [PAY, (1, 2), OPEN, BACK, BACK, BACK, *TEN]):
        for wrong in (0, 1, 2):
            rewards, infos, _ = play(calls, start_stage=start, potential_weight=1.0, booking_weight=0.0, gamma=0.9, wrong=wrong)
            assert infos[-1]["terminated"] or wrong or len(calls) > 12, "where a wrong action does nothing, the first two end"
            if infos[-1]["terminated"]:
                discounted = (rewards * 0.9 ** np.arange(len(calls))).sum()
                assert discounted == pytest.approx(-start / 10, abs=1e-6)
    rewards, _, _ = play(TEN[:3], potential_weight=1.0, gamma=0.5)
    assert rewards.tolist() == pytest.approx([0.05, 0.5 * 0.2 - 0.1, 0.5 * 0.3 - 0.2])


def test_levels_start_where_the_rest_is_right():
    for start in range(10):
        best = results("optimal", start_stage=start)
        assert best.success.all() and (best.length == 10 - start).all()
        rewards, infos, _ = play(TEN[start:], start_stage=start)
        assert rewards.sum() == 1 and infos[-1]["success"]
    env, given = ja.make("FlightBooking-v0", params={"start_stage": 6})
    obs, _ = env.reset(jax.random.key(0), given)
    assert env.vocabulary[obs["tokens"][-1]] == "page_6"


def test_the_demonstrations_take_half_as_many_again():
    """A hesitation in five turns: one in 5 x 5/6 types something else, which costs two more; elsewhere it goes back."""
    wordy = results("sft")
    assert wordy.success.all() and 13 < wordy.length.mean() < 17
    strict = results("sft", strict=True)
    assert strict.success.all() and 12 < strict.length.mean() < wordy.length.mean()  # a wrong value costs one turn alone


def test_chance_alone():
    """Random actions hardly confirm anything. The bound is for a lock of ten without a way back."""

    def tail(actions):
        return sum(comb(50, k) * (actions - 1) ** (50 - k) for k in range(10, 51)) / actions**50

    assert [round(tail(a), 5) for a in (12, 16, 18, 20)] == [0.00747, 0.00092, 0.00037, 0.00016]
    assert ja.make("FlightBooking-v0")[0].num_actions == 18
    assert not results("random").success.any()
    last = results("random", start_stage=9, max_steps=10, strict=True)
    # ten turns, each confirms with 1/18, and with 1/18 goes back: less than 1 - (17/18)^10 = 0.435
    assert 0.25 < last.success.mean() < 0.435


def test_settings_without_a_meaning_are_refused():
    for name, value, bounds in (("start_stage", 10, "0 to 9"), ("wrong", 3, "0 to 2"), ("gamma", 1.5, "0 to 1")):
        with pytest.raises(ValueError, match=f"params.{name}: expected {bounds}, got {value}"):
            ja.make("FlightBooking-v0", params={name: value})
