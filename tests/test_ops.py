"""Operators against worked arithmetic, float64 rewrites and the libraries that others trust."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagent.ops import minibatch, running_stats
from jaxagent.ops.distributions import Categorical, DiagGaussian, MultiCategorical, from_action_space, mask_logits, num_params
from jaxagent.ops.lanes import one_by_one_on_cpu
from jaxagent.ops.masked import mean_weights, standardize, weighted_mean, weighted_variance
from jaxagent.ops.optimizer import adam_init, adam_step, anneal
from jaxagent.ops.policy_losses import clipped_surrogate, is_clipped, kl_estimate
from jaxagent.ops.returns import gae
from jaxagent.ops.value_losses import clipped_squared_error, squared_error
from jaxagent.types import Box, Discrete, MultiDiscrete


def column(*values: float) -> jax.Array:
    return jnp.asarray(values)[:, None]


def gae_float64(reward, value, next_value, terminated, truncated, gamma, lambda_):
    advantage = np.zeros(reward.shape, np.float64)
    following = np.zeros(reward.shape[1], np.float64)
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * next_value[t] * (1 - terminated[t]) - value[t]
        following = delta + gamma * lambda_ * following * (1 - np.maximum(terminated[t], truncated[t]))
        advantage[t] = following
    return advantage


class TestGae:
    def test_worked_example_with_a_termination(self):
        # gamma 0.5, lambda 0.5; the episode ends at t = 1, another starts at t = 2
        # t=2: delta = 4 + 0.5 * 2 - 1 = 4                                A = 4
        # t=1: delta = 2 + 0 (terminated)  - 1 = 1                        A = 1, the trace is cut
        # t=0: delta = 1 + 0.5 * 1 - 3 = -1.5      A = -1.5 + 0.25 * 1 =    -1.25
        terminated = column(False, True, False)
        advantage, target = gae(
            column(1.0, 2.0, 4.0),
            column(3.0, 1.0, 1.0),
            column(1.0, 9.0, 2.0),
            terminated,
            jnp.zeros_like(terminated),
            gamma=0.5,
            lambda_=0.5,
        )
        np.testing.assert_allclose(advantage[:, 0], [-1.25, 1.0, 4.0])
        np.testing.assert_allclose(target[:, 0], [1.75, 2.0, 5.0])

    def test_worked_example_with_a_time_limit(self):
        # as above, but t = 1 is a time limit: it bootstraps from the value 9 of what it reached
        # t=1: delta = 2 + 0.5 * 9 - 1 = 5.5                              A = 5.5, the trace is cut
        # t=0: A = -1.5 + 0.25 * 5.5 = -0.125
        truncated = column(False, True, False)
        advantage, _ = gae(
            column(1.0, 2.0, 4.0),
            column(3.0, 1.0, 1.0),
            column(1.0, 9.0, 2.0),
            jnp.zeros_like(truncated),
            truncated,
            gamma=0.5,
            lambda_=0.5,
        )
        np.testing.assert_allclose(advantage[:, 0], [-0.125, 5.5, 4.0])

    @pytest.mark.parametrize(("gamma", "lambda_"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0)])
    def test_equals_a_float64_rewrite(self, gamma, lambda_):
        rng = np.random.default_rng(0)
        reward, value, next_value = rng.normal(size=(3, 40, 5))
        terminated, truncated = rng.random((2, 40, 5)) < 0.15
        assert (terminated & truncated).any()  # both at once is a termination
        expected = gae_float64(reward, value, next_value, terminated, truncated, gamma, lambda_)
        advantage, target = gae(
            *map(jnp.float32, (reward, value, next_value)), terminated, truncated, gamma=gamma, lambda_=lambda_
        )
        np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(target, expected + value, rtol=1e-4, atol=1e-5)

    def test_equals_rlax_where_nothing_is_truncated(self):
        rlax = pytest.importorskip("rlax")
        rng = np.random.default_rng(1)
        reward = rng.normal(size=(30, 4)).astype(np.float32)
        values = rng.normal(size=(31, 4)).astype(np.float32)
        terminated = rng.random((30, 4)) < 0.2
        advantage, _ = gae(reward, values[:-1], values[1:], terminated, np.zeros_like(terminated), gamma=0.97, lambda_=0.9)
        discount = np.where(terminated, 0.0, 0.97).astype(np.float32)
        expected = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=(1, 1, None, 1), out_axes=1)(
            jnp.asarray(reward), jnp.asarray(discount), 0.9, jnp.asarray(values)
        )
        np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)

    def test_has_no_gradient_and_refuses_unequal_shapes(self):
        ones, never = jnp.ones((3, 2)), jnp.zeros((3, 2), bool)
        gradient = jax.grad(lambda v: sum(x.sum() for x in gae(ones, v, v, never, never, gamma=0.9, lambda_=0.9)))(ones)
        np.testing.assert_array_equal(gradient, 0.0)
        with pytest.raises(AssertionError):
            gae(ones, ones[:, :1], ones, never, never, gamma=0.9, lambda_=0.9)


class TestLosses:
    def test_clipped_surrogate_worked_example(self):
        # eps 0.2. ratio 1.5: A = +2 -> min(3, 1.2 * 2) = 2.4; A = -2 -> min(-3, -2.4) = -3
        # ratio 0.5: A = +2 -> min(1, 1.6) = 1;                A = -2 -> min(-1, -1.6) = -1.6
        log_ratio = jnp.log(jnp.array([1.5, 1.5, 0.5, 0.5]))
        advantage = jnp.array([2.0, -2.0, 2.0, -2.0])
        loss, slope = jax.vmap(jax.value_and_grad(lambda r, a: clipped_surrogate(r, a, 0.2)))(log_ratio, advantage)
        np.testing.assert_allclose(loss, [-2.4, 3.0, -1.0, 1.6], rtol=1e-6)
        # d(-r A)/d log r = -r A where the clip does not bind, else 0
        np.testing.assert_allclose(slope, [0.0, 3.0, -1.0, 0.0], rtol=1e-6)

    def test_kl_estimate_averages_to_the_divergence(self):
        old, new = Categorical(jnp.array([0.3, -0.4, 1.0])), Categorical(jnp.array([0.1, 0.2, 0.5]))
        actions = jnp.arange(3)
        log_old = jax.nn.log_softmax(old.logits)
        log_ratio = jax.vmap(new.log_prob)(actions) - log_old
        np.testing.assert_allclose(jnp.sum(jnp.exp(log_old) * kl_estimate(log_ratio)), old.kl(new), rtol=1e-5)
        assert kl_estimate(jnp.float32(0.0)) == 0.0

    def test_is_clipped(self):
        ratios = jnp.array([0.79, 0.81, 1.0, 1.19, 1.21])
        np.testing.assert_array_equal(is_clipped(jnp.log(ratios), 0.2), [1, 0, 0, 0, 1])

    def test_value_losses_worked_example(self):
        # v = 2, target 0, old 1, eps 0.5: clipped to 1.5; (4 / 2) against (2.25 / 2): the larger is 2
        # v = 0.2, target 0, old 1, eps 0.5: clipped to 0.5; 0.02 against 0.125
        value, target, old = jnp.array([2.0, 0.2]), jnp.zeros(2), jnp.ones(2)
        np.testing.assert_allclose(squared_error(value, target), [2.0, 0.02], rtol=1e-6)
        np.testing.assert_allclose(clipped_squared_error(value, target, old, 0.5), [2.0, 0.125], rtol=1e-6)

    def test_masked_statistics(self):
        x, mask = jnp.array([1.0, 3.0, 100.0]), jnp.array([True, True, False])
        weights = mean_weights(mask)
        assert weighted_mean(x, weights) == 2.0
        assert weighted_variance(x, weights) == 1.0
        np.testing.assert_allclose(standardize(x, weights)[:2], [-1.0, 1.0], rtol=1e-5)
        assert weighted_mean(x, mean_weights(jnp.zeros(3, bool))) == 0.0

    def test_standardize_does_not_amplify_noise(self):
        x = jnp.full(64, 0.1) * (1.0 + 1e-7 * (jnp.arange(64) % 2))
        np.testing.assert_array_equal(standardize(x, mean_weights(jnp.ones(64, bool))), 0.0)


class TestDistributions:
    def test_categorical_equals_distrax(self):
        distrax = pytest.importorskip("distrax")
        first, second = jax.random.normal(jax.random.key(0), (2, 6, 5))
        ours, theirs = Categorical(first), distrax.Categorical(logits=first)
        action = jnp.array([0, 1, 2, 3, 4, 0])
        np.testing.assert_allclose(ours.log_prob(action), theirs.log_prob(action), rtol=1e-5)
        np.testing.assert_allclose(ours.entropy(), theirs.entropy(), rtol=1e-5)
        np.testing.assert_allclose(
            ours.kl(Categorical(second)), theirs.kl_divergence(distrax.Categorical(logits=second)), rtol=1e-4
        )
        np.testing.assert_array_equal(ours.mode(), theirs.mode())

    def test_gaussian_equals_distrax(self):
        distrax = pytest.importorskip("distrax")
        mean, other_mean, action = jax.random.normal(jax.random.key(0), (3, 6, 2))
        log_std = jnp.array([-0.5, 0.3])
        ours, theirs = (
            DiagGaussian(mean, log_std, (2,)),
            distrax.MultivariateNormalDiag(mean, jnp.broadcast_to(jnp.exp(log_std), mean.shape)),
        )
        np.testing.assert_allclose(ours.log_prob(action), theirs.log_prob(action), rtol=1e-5)
        np.testing.assert_allclose(ours.entropy(), theirs.entropy(), rtol=1e-5)
        narrow = DiagGaussian(other_mean, log_std - 0.2, (2,))
        expected = theirs.kl_divergence(
            distrax.MultivariateNormalDiag(other_mean, jnp.broadcast_to(jnp.exp(log_std - 0.2), mean.shape))
        )
        np.testing.assert_allclose(ours.kl(narrow), expected, rtol=1e-4)

    def test_samples_follow_the_probabilities(self):
        # p = (0.2, 0, 0.8); of 4000 draws the first takes 800 +- 25
        logits = mask_logits(jnp.log(jnp.array([0.2, 0.5, 0.8])), jnp.array([True, False, True]))
        draws = Categorical(jnp.broadcast_to(logits, (4000, 3))).sample(jax.random.key(0))
        counts = np.bincount(draws, minlength=3)
        assert draws.dtype == jnp.int32
        assert counts[1] == 0
        assert 700 < counts[0] < 900

    def test_gaussian_samples_follow_mean_and_deviation(self):
        mean, log_std = jnp.full((4000, 2), 3.0), jnp.log(jnp.array([0.5, 2.0]))
        draws = DiagGaussian(mean, log_std, (2,)).sample(jax.random.key(0))
        np.testing.assert_allclose(draws.mean(0), 3.0, atol=0.15)
        np.testing.assert_allclose(draws.std(0), [0.5, 2.0], rtol=0.1)

    @pytest.mark.parametrize("legal", [[True, False, True], [False, True, False], [False, False, False]])
    def test_masked_logits_keep_values_and_gradients_finite(self, legal):
        mask = jnp.array(legal)
        action = jnp.argmax(mask)

        def scores(logits):
            distribution = Categorical(mask_logits(logits, mask))
            other = Categorical(mask_logits(2.0 * logits, mask))
            return distribution.log_prob(action) + distribution.entropy() + distribution.kl(other)

        logits = jnp.array([0.5, -1.0, 2.0])
        value, gradient = jax.value_and_grad(scores)(logits)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[~mask], 0.0)

    def test_masked_entropy_is_that_of_the_legal_actions(self):
        # two equally likely legal actions: log 2
        entropy = Categorical(mask_logits(jnp.array([1.0, 7.0, 1.0]), jnp.array([True, False, True]))).entropy()
        np.testing.assert_allclose(entropy, np.log(2.0), rtol=1e-6)

    def test_multi_discrete_is_a_product(self):
        space = MultiDiscrete((2, 3))
        logits = jax.random.normal(jax.random.key(0), (4, 5))
        distribution = from_action_space(space, logits)
        assert isinstance(distribution, MultiCategorical)
        first, second = Categorical(logits[:, :2]), Categorical(logits[:, 2:])
        action = distribution.sample(jax.random.key(1))
        assert action.shape == (4, 2)
        assert (action < jnp.array([2, 3])).all()
        expected = first.log_prob(action[:, 0]) + second.log_prob(action[:, 1])
        np.testing.assert_allclose(distribution.log_prob(action), expected, rtol=1e-6)
        np.testing.assert_allclose(distribution.entropy(), first.entropy() + second.entropy(), rtol=1e-6)
        np.testing.assert_array_equal(distribution.mode()[:, 1], second.mode())
        np.testing.assert_allclose(distribution.kl(distribution), 0.0, atol=1e-6)

    def test_multi_discrete_mask_holds_for_each_part(self):
        mask = jnp.array([False, True, True, False, False])
        distribution = from_action_space(MultiDiscrete((2, 3)), jnp.zeros(5), mask)
        np.testing.assert_array_equal(distribution.sample(jax.random.key(0)), [1, 0])

    @pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
    def test_box_actions_have_the_shape_of_the_box(self, shape):
        space = Box(-1.0, 1.0, shape)
        mean = jnp.zeros((4, num_params(space)))
        distribution = from_action_space(space, (mean, jnp.zeros_like(mean)))
        action = distribution.sample(jax.random.key(0))
        assert action.shape == (4, *shape)
        assert distribution.log_prob(action).shape == distribution.entropy().shape == (4,)

    def test_number_of_parameters(self):
        assert [num_params(s) for s in (Discrete(4), MultiDiscrete((2, 3)), Box(-1, 1, (2, 3)))] == [4, 5, 6]


class TestMinibatch:
    @pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 100, 8192])
    def test_permutation_has_every_index_once(self, n):
        order = minibatch.permutation(jax.random.key(n), n)
        np.testing.assert_array_equal(jnp.sort(order), jnp.arange(n))

    def test_permutations_are_spread_evenly(self):
        # 20000 draws of 6 indices: each index stands at each place 3333 +- 53 times, each ordered pair of indices at the
        # first two places 667 +- 26 times
        orders = jax.vmap(lambda key: minibatch.permutation(key, 6))(jax.random.split(jax.random.key(0), 20_000))
        orders = np.asarray(orders)
        places = np.stack([np.bincount(orders[:, i], minlength=6) for i in range(6)])
        assert np.abs(places - 20_000 / 6).max() < 5 * 53
        pairs = np.bincount(orders[:, 0] * 6 + orders[:, 1], minlength=36).reshape(6, 6)
        assert np.abs(pairs[~np.eye(6, dtype=bool)] - 20_000 / 30).max() < 5.5 * 26
        assert len(np.unique(orders, axis=0)) == 720

    def test_a_permutation_mixes_neighbours(self):
        order = np.asarray(minibatch.permutation(jax.random.key(0), 8192))
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
        assert abs(np.corrcoef(order, np.arange(8192))[0, 1]) < 0.05

    def test_every_epoch_takes_each_item_once(self):
        indices = minibatch.minibatch_indices(jax.random.key(0), 12, num_epochs=2, num_minibatches=3)
        assert indices.shape == (6, 4)
        for epoch in np.asarray(indices).reshape(2, 12):
            np.testing.assert_array_equal(np.sort(epoch), np.arange(12))
        assert (np.asarray(indices[:3]) != np.asarray(indices[3:])).any()

    def test_indivisible_batches_are_refused(self):
        with pytest.raises(ValueError, match="num_minibatches: expected a divisor of the 12 items, got 5"):
            minibatch.minibatch_indices(jax.random.key(0), 12, num_epochs=1, num_minibatches=5)

    def test_sequences_are_consecutive_steps_of_one_row(self):
        # entry (t, b) holds 10 t + b
        steps = 10 * jnp.arange(6)[:, None] + jnp.arange(3)[None]
        sequences = minibatch.split_sequences(steps, 2)
        np.testing.assert_array_equal(
            sequences, [[0, 10], [1, 11], [2, 12], [20, 30], [21, 31], [22, 32], [40, 50], [41, 51], [42, 52]]
        )
        np.testing.assert_array_equal(minibatch.split_sequences(steps, 1)[:, 0], minibatch.flatten_steps(steps))

    def test_take(self):
        tree = {"a": jnp.arange(4), "b": jnp.arange(8).reshape(4, 2)}
        taken = minibatch.take(tree, jnp.array([2, 0]))
        np.testing.assert_array_equal(taken["a"], [2, 0])
        np.testing.assert_array_equal(taken["b"], [[4, 5], [0, 1]])


class TestRunningStats:
    def test_equal_those_of_all_samples_together(self):
        rng = np.random.default_rng(0)
        samples = rng.normal(5.0, 3.0, size=(3, 7, 4, 2)).astype(np.float32)
        stats = running_stats.init({"x": jnp.zeros(2), "n": jnp.zeros(3, jnp.int32)})
        for batch in samples:
            tree = {"x": jnp.asarray(batch), "n": jnp.zeros((7, 4, 3), jnp.int32)}
            stats = running_stats.update(stats, tree, mean_weights(jnp.ones((7, 4), bool)), jnp.float32(28))
        flat = samples.reshape(-1, 2)
        assert stats.num_samples == 84
        np.testing.assert_allclose(stats.mean["x"], flat.mean(0), rtol=1e-5)
        np.testing.assert_allclose(stats.variance["x"], flat.var(0), rtol=1e-4)

    def test_masked_samples_do_not_count(self):
        stats = running_stats.init(jnp.zeros(()))
        mask = jnp.array([True, True, False])
        stats = running_stats.update(stats, jnp.array([1.0, 3.0, 1e6]), mean_weights(mask), mask.sum(dtype=jnp.float32))
        assert (stats.num_samples, stats.mean, stats.variance) == (2.0, 2.0, 1.0)
        nothing = jnp.zeros(3, bool)
        same = running_stats.update(stats, jnp.full(3, 9.0), mean_weights(nothing), jnp.float32(0.0))
        assert (same.num_samples, same.mean, same.variance) == (2.0, 2.0, 1.0)

    def test_still_learn_after_more_samples_than_float32_can_count(self):
        full = running_stats.RunningStats(jnp.float32(running_stats.MAX_SAMPLES), jnp.float32(0.0), jnp.float32(1.0))
        after = running_stats.update(full, jnp.ones(8192), jnp.full(8192, 1 / 8192), jnp.float32(8192))
        assert after.num_samples == running_stats.MAX_SAMPLES
        np.testing.assert_allclose(after.mean, 8192 / (2**24 + 8192), rtol=1e-4)

    def test_normalize_leaves_integers_alone(self):
        stats = running_stats.RunningStats(
            jnp.float32(5), {"x": jnp.float32(1.0), "n": jnp.float32(0.0)}, {"x": jnp.float32(4.0), "n": jnp.float32(1.0)}
        )
        tree = running_stats.normalize(stats, {"x": jnp.array([5.0, 1e9]), "n": jnp.array([7, 8])})
        np.testing.assert_allclose(tree["x"], [2.0, 10.0], rtol=1e-5)
        np.testing.assert_array_equal(tree["n"], [7, 8])


class TestOptimizer:
    def test_equals_optax(self):
        params = {"w": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
        reference = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2, b1=0.8, b2=0.99, eps=1e-5))
        theirs, their_state = params, reference.init(params)
        ours, our_state = params, adam_init(params)
        for i in range(3):
            gradients = jax.tree.map(lambda p, i=i: 3.0 * p + i, theirs)
            updates, their_state = reference.update(gradients, their_state)
            theirs = optax.apply_updates(theirs, updates)
            ours, our_state, norm = adam_step(ours, gradients, our_state, lr=1e-2, max_norm=0.5, b1=0.8, b2=0.99, eps=1e-5)
            np.testing.assert_allclose(norm, optax.tree.norm(gradients), rtol=1e-6)
        np.testing.assert_allclose(ours["w"], theirs["w"], rtol=1e-5)
        np.testing.assert_allclose(ours["b"], theirs["b"], rtol=1e-5)

    def test_anneal(self):
        # from 4 to 2 over 4 updates: 4, 3.5, 3, 2.5, then 2 for good
        values = [float(anneal(4.0, 2.0, jnp.int32(u), 4.0)) for u in (0, 1, 2, 3, 4, 5)]
        assert values == [4.0, 3.5, 3.0, 2.5, 2.0, 2.0]
        assert anneal(4.0, None, jnp.int32(3), None) == 4.0


# lanes ------------------------------------------------------------------------------------------------------------------------


def test_lanes_one_by_one_equal_lanes_side_by_side() -> None:
    def function(tree, x, key):
        return {"sum": tree["a"] * x.sum() + tree["b"], "noise": x + jax.random.normal(key, x.shape)}

    tree = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.float32(2.0)}
    x, keys = jnp.arange(4.0), jax.random.split(jax.random.key(0), 3)
    axes = ({"a": 1, "b": None}, None, 0)
    outer = ({"a": 0, "b": None}, None, None)

    def lanes(f):  # two nested axes, over which different arguments differ
        inner_axes = ({"a": 0, "b": None}, None, 0)
        return jax.jit(jax.vmap(jax.vmap(f, in_axes=inner_axes), in_axes=outer))(tree, x, keys)

    one_axis = [jax.vmap(f, in_axes=axes)(tree, x, keys) for f in (function, one_by_one_on_cpu(function))]
    for expected, found in (one_axis, (lanes(function), lanes(one_by_one_on_cpu(function)))):
        jax.tree.map(lambda f, e: np.testing.assert_allclose(f, e, rtol=1e-6), found, expected)


def test_lanes_one_by_one_are_a_loop_on_cpus() -> None:
    laned = jax.vmap(one_by_one_on_cpu(jnp.sin))
    assert "while" in jax.jit(laned).lower(jnp.zeros(4)).as_text()
