"""Evaluation counts exactly one episode an environment."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent import evaluation
from jaxagent.types import Box, Discrete, EnvSpec, Policy


class Countdown(NamedTuple):
    """Lasts 1 to 9 steps and pays its length at the end; the longest ones are cut by the limit and fail."""

    spec = EnvSpec("Countdown", Box(0, 10, (), "int32"), Discrete(2), 9)

    def reset(self, key, params):
        left = jax.random.randint(key, (), 1, 10)
        return left, (left, left, jnp.int32(0))

    def step(self, key, state, action, params):
        length, left, time = state
        left, time = left - 1, time + 1
        terminated, truncated = left == 0, time >= params
        reward = jnp.where(terminated, length, 0).astype(jnp.float32)
        return left, (length, left, time), reward, terminated, truncated, {"success": terminated}


POLICY = Policy(
    init=lambda rows: (), act=lambda agent, carry, inputs, key: (carry, jnp.zeros(inputs.is_first.shape, jnp.int32), {})
)


def _evaluate(limit: int, seed: int = 0) -> evaluation.EpisodeResults:
    key = jax.random.key(seed)
    return jax.jit(lambda k: evaluation.evaluate(Countdown(), limit, POLICY, (), k, num_episodes=200))(key)


def test_each_row_plays_one_episode_to_its_end():
    results = _evaluate(limit=9)
    np.testing.assert_array_equal(results.total_reward, results.length)
    assert set(np.unique(results.length)) == set(range(1, 10))  # the first to finish are not favoured
    assert results.success.all() and results.performance is None


def test_an_episode_cut_by_the_limit_counts_as_it_stands():
    results = _evaluate(limit=4)
    cut = np.asarray(results.total_reward) == 0
    assert 0.3 < cut.mean() < 0.8  # 5 of 9 lengths are beyond the limit
    np.testing.assert_array_equal(results.length[cut], 4)
    np.testing.assert_array_equal(results.success, ~cut)


def test_the_key_decides_everything():
    jax.tree.map(np.testing.assert_array_equal, _evaluate(9), _evaluate(9))
    assert (_evaluate(9).length != _evaluate(9, seed=1).length).any()


def test_summary_gives_each_mean_its_interval():
    lengths = jnp.array([[2, 4], [6, 8]], jnp.int32)
    results = evaluation.EpisodeResults(lengths.astype(jnp.float32), lengths, lengths > 2, None)
    summary = evaluation.summarise(results)
    assert summary["episodes"] == 4
    assert summary["success_rate"] == 0.75 and summary["success_rate_ci95"][0] < 0.75 < summary["success_rate_ci95"][1]
    # mean 5, standard deviation sqrt(20 / 3) = 2.582; half width 3.1824 (t, 3 degrees of freedom) * 2.582 / 2 = 4.108
    assert summary["length_mean"] == summary["return_mean"] == 5
    assert summary["return_mean_ci95"] == pytest.approx([0.892, 9.108], abs=2e-3)
    assert summary["performance_mean"] is None and summary["performance_mean_ci95"] is None and "reward_gap" not in summary
    judged = evaluation.summarise(results._replace(performance=jnp.ones((2, 2))))
    assert judged["reward_gap"] == 4
