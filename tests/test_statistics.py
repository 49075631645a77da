import itertools

import numpy as np
import pytest
from scipy import stats

from jaxagent import statistics

pytestmark = pytest.mark.fast
RANDOM = np.random.default_rng(0)


# interquartile mean and its intervals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 10, 41])
def test_iqm_is_the_mean_without_a_quarter_at_each_end(count: int) -> None:
    scores = RANDOM.normal(size=(6, count))
    np.testing.assert_allclose(statistics.iqm(scores), stats.trim_mean(scores, 0.25, axis=-1), rtol=1e-12)


def test_iqm_by_hand() -> None:
    assert statistics.iqm([0.0, 1.0]) == 0.5
    assert statistics.iqm([100.0, 1.0, 2.0, -50.0]) == 1.5  # -50 and 100 are left out
    assert statistics.iqm([9, 1, 2, 3, 100]) == pytest.approx(14 / 3)  # 2, 3 and 9 stay
    with pytest.raises(ValueError, match="at least one score"):
        statistics.iqm([])


def test_bootstrap_of_three_scores_against_all_resamples() -> None:
    scores = [0.1, 0.5, 0.6]
    means = np.sort([np.mean(drawn) for drawn in itertools.product(scores, repeat=3)])  # 27, equally likely
    low, high = statistics.stratified_bootstrap([scores], confidence=0.8, resamples=20_000)
    assert low == pytest.approx(means[2])  # 1 and 2 of 27 are below and at: 10% falls on the third
    assert high == pytest.approx(means[-3])


def test_bootstrap_agrees_with_scipy() -> None:
    scores = RANDOM.normal(size=12)
    ours = statistics.stratified_bootstrap([scores], resamples=20_000)
    theirs = stats.bootstrap((scores,), statistics.iqm, method="percentile", n_resamples=20_000, rng=1).confidence_interval
    np.testing.assert_allclose(ours, theirs, atol=0.03)


def test_bootstrap_draws_within_strata() -> None:
    """As rliable does it: seeds are drawn again for each task by itself, and the scores of all tasks pooled."""
    tasks = [RANDOM.normal(size=5), 10 + RANDOM.normal(size=5), 20 + RANDOM.normal(size=3)]
    generator = np.random.default_rng(7)
    pooled = [np.concatenate([generator.choice(task, len(task)) for task in tasks]) for _ in range(20_000)]
    expected = np.quantile(stats.trim_mean(pooled, 0.25, axis=-1), [0.025, 0.975])
    found = statistics.stratified_bootstrap(tasks, resamples=20_000)
    np.testing.assert_allclose(found, expected, atol=0.05)
    unstratified = statistics.stratified_bootstrap([np.concatenate(tasks)], resamples=20_000)
    assert unstratified[1] - unstratified[0] > 3 * (found[1] - found[0])


def test_bootstrap_is_seeded() -> None:
    scores = [RANDOM.normal(size=6)]
    assert statistics.stratified_bootstrap(scores, seed=3) == statistics.stratified_bootstrap(scores, seed=3)
    assert statistics.stratified_bootstrap(scores, seed=3) != statistics.stratified_bootstrap(scores, seed=4)


def test_intervals_hold_the_truth_as_often_as_they_should() -> None:
    generator = np.random.default_rng(5)
    intervals = [statistics.stratified_bootstrap([generator.normal(size=20)], resamples=500, seed=i) for i in range(400)]
    covered = np.mean([low <= 0 <= high for low, high in intervals])
    assert 0.90 < covered < 0.985  # 0.945 with 20 seeds; five standard errors are 0.055


def test_what_says_nothing_about_a_spread() -> None:
    assert statistics.stratified_bootstrap([[0.5]]) == (-np.inf, np.inf)
    assert statistics.stratified_bootstrap([[0.5, 0.5, 0.5]]) == (0.5, 0.5)
    for strata in ([], [[]], [[1.0], []]):
        with pytest.raises(ValueError, match="at least one score in every stratum"):
            statistics.stratified_bootstrap(strata)
    with pytest.raises(ValueError, match="finite"):
        statistics.stratified_bootstrap([[0.1, np.nan]])


# importance -------------------------------------------------------------------------------------------------------------------


def test_ranks() -> None:
    assert statistics.ranks([0.3, 0.1, 0.3, 0.9]).tolist() == [2.5, 1.0, 2.5, 4.0]
    np.testing.assert_array_equal(statistics.ranks(values := RANDOM.integers(0, 9, 50)), stats.rankdata(values))
    assert statistics.ranks([[1, 0.2], [0, 0.9], [1, 0.1]]).tolist() == [3.0, 1.0, 2.0]  # the first key decides first


def test_bins() -> None:
    assert statistics.bins([0.1, 0.1, 3, 0.1, 3]).tolist() == [0, 0, 1, 0, 1]
    assert statistics.bins(["a", None, "a", "b", "c", None]).tolist() == [0, 1, 0, 2, 2, 1]  # b and c are there once
    assert statistics.bins([True, False, True, False]).tolist() == [0, 1, 0, 1]
    counts = np.bincount(statistics.bins(RANDOM.lognormal(size=80).tolist()))
    assert len(counts) == 8 and counts.min() >= 9 and counts.max() <= 11


def test_importance_by_hand() -> None:
    """Two factors of two levels, ranks 1 to 4: A has means 1.5 and 3.5, B 2 and 3, both around 2.5, of a total of 5."""
    rank = [1, 2, 3, 4]
    first, second = statistics.importance([0, 0, 1, 1], rank), statistics.importance([0, 1, 0, 1], rank)
    assert first.share == pytest.approx(1 - (1 - 4 / 5) * 3 / 2)
    assert second.share == 0  # 1/5 is less than chance gives
    assert first.p_value == pytest.approx(1 / 3, abs=0.06)  # 2 of the 6 ways to split them are as extreme


def test_importance_is_that_of_kruskal_and_wallis() -> None:
    bin_of, rank = RANDOM.integers(0, 4, 40), statistics.ranks(RANDOM.integers(0, 15, 40))
    groups = [rank[bin_of == b] for b in range(4)]
    explained = stats.kruskal(*groups).statistic / 39
    found = statistics.importance(bin_of, rank, resamples=4000)
    assert found.share == pytest.approx(max(0, 1 - (1 - explained) * 39 / 36))
    assert found.p_value == pytest.approx(stats.kruskal(*groups).pvalue, abs=0.05)


def test_what_matters_is_told_from_what_does_not() -> None:
    """A best value in the middle of one, a slope in another, a choice, and two that nothing depends on."""
    generator = np.random.default_rng(11)
    rate, slope, noise = generator.uniform(-2, 2, 160), generator.uniform(0, 1, 160), generator.uniform(0, 1, 160)
    kind, idle = generator.choice(["a", "b", "c"], 160), generator.choice(["x", "y"], 160)
    score = -(rate**2) + 2 * slope + 1.2 * (kind == "b") + 0.1 * generator.normal(size=160)
    rank = statistics.ranks(score)
    columns = {"rate": rate, "slope": slope, "kind": kind, "noise": noise, "idle": idle}
    found = {name: statistics.importance(statistics.bins(values.tolist()), rank) for name, values in columns.items()}
    assert found["rate"].share > 0.6
    assert found["rate"].share > found["kind"].share > found["noise"].share
    assert found["slope"].share > found["noise"].share
    for name in ("noise", "idle"):
        assert found[name].share < 0.05 and found[name].p_value > 0.01
    for name in ("rate", "slope", "kind"):
        assert found[name].share > found[name].floor and found[name].p_value < 0.02


def test_chance_is_found_out_as_often_as_said() -> None:
    generator = np.random.default_rng(2)
    found = [
        statistics.importance(statistics.bins(generator.random(40).tolist()), statistics.ranks(generator.random(40)), seed=i)
        for i in range(300)
    ]
    false_alarms = sum(one.p_value <= 0.05 for one in found)
    assert 3 <= false_alarms <= 32  # 15 expected; four and a half standard deviations
    assert abs(false_alarms - sum(one.share > one.floor for one in found)) <= 3


@pytest.mark.parametrize(("bin_of", "rank"), [([0, 0, 0], [1, 2, 3]), ([0, 1, 1], [2, 2, 2]), ([0, 1, 2], [1, 2, 3])])
def test_importance_of_what_cannot_be_told(bin_of: list[int], rank: list[int]) -> None:
    assert statistics.importance(bin_of, rank) == (0.0, 0.0, 1.0)
