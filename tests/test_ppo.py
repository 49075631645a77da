"""PPO's arithmetic: its loss in float64, its switches one by one, and that changing a float compiles nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.learners.ppo import PPO, Sequences
from jaxagent.networks.actor_critic import actor_critic
from jaxagent.types import Batch, Box, DictSpace, Discrete, EnvSpec, PolicyInput, Transition

T, B = 8, 4
SPEC = EnvSpec("Test-v0", Box(-1.0, 1.0, (3,)), Discrete(3), 10)


def learner(spec=SPEC, *, memory=0, **settings):
    return PPO(network=actor_critic(spec, hidden=(8,), memory=memory), **settings)


def sharpened(state):
    """With a policy that depends strongly on what it sees: a ratio that is not 1 shows."""
    params = state.params["params"]
    head = params["actor_head"] | {"kernel": 300.0 * params["actor_head"]["kernel"]}
    return state._replace(params={"params": params | {"actor_head": head}})


def play(ppo, state, key, *, reward=None):
    """A batch [T, B] acted by the learner's own policy on random observations, every third step ending an episode."""
    policy, agent = ppo.policy(), ppo.agent(state)
    observation_key, reward_key, act_key = jax.random.split(key, 3)
    observations = jax.random.normal(observation_key, (T, B, 3))
    rewards = jax.random.normal(reward_key, (T, B)) if reward is None else jnp.full((T, B), reward)
    ends = jnp.arange(T)[:, None] % 3 == jnp.arange(B) % 3
    firsts = jnp.concatenate([jnp.ones((1, B), bool), ends[:-1]])

    def step(loop, inputs):
        carry, last_reward = loop
        observation, reward, first, end, step_key = inputs
        seen = PolicyInput(observation, jnp.zeros(B, jnp.int32), jnp.where(first, 0.0, last_reward), first)
        next_carry, action, extras = policy.act(agent, carry, seen, step_key)
        extras |= {"next_value": policy.value(agent, next_carry, seen)}
        always = jnp.ones(B, bool)
        return (next_carry, reward), Transition(observation, action, reward, end, ~always, first, always, extras)

    carry = policy.init(B)
    inputs = (observations, rewards, firsts, ends, jax.random.split(act_key, T))
    _, transition = jax.lax.scan(step, (carry, jnp.zeros(B)), inputs)
    return Batch(transition, carry)


def loss_float64(logits, value, items, *, clip_eps, entropy_coef, value_coef):
    """Eq. 9 of the paper over flat arrays [N], written out."""
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ratio = np.exp(log_p[np.arange(len(value)), items["action"]] - items["log_prob"])
    mask = items["mask"].astype(np.float64)
    mean = lambda x: (mask * x).sum() / mask.sum()  # noqa: E731
    advantage = items["advantage"] - mean(items["advantage"])
    advantage = advantage / np.sqrt(mean(advantage**2))
    clipped = np.clip(ratio, 1 - clip_eps, 1 + clip_eps)
    return {
        "policy_loss": -mean(np.minimum(ratio * advantage, clipped * advantage)),
        "value_loss": mean((value - items["target"]) ** 2) / 2,
        "entropy": -mean((np.exp(log_p) * log_p).sum(-1)),
        "approx_kl": mean(ratio - 1 - np.log(ratio)),
        "clip_fraction": mean(np.abs(ratio - 1) > clip_eps),
    }


class TestLoss:
    def test_equals_a_float64_rewrite(self):
        rng = np.random.default_rng(0)
        ppo = learner(value_coef=0.7)
        params = jax.tree.map(lambda x: x + 0.5, ppo.network.initial_params(jax.random.key(0)))
        num = 24
        items = {
            "observation": rng.normal(size=(num, 3)),
            "action": rng.integers(0, 3, num),
            "log_prob": np.log(rng.uniform(0.1, 0.9, num)),
            "advantage": rng.normal(size=num),
            "target": rng.normal(size=num),
            "mask": rng.random(num) < 0.7,
        }
        arrays = {k: jnp.asarray(v)[:, None] for k, v in items.items()}
        sequences = Sequences(
            **{k: v.astype(jnp.float32) if v.dtype == np.float64 else v for k, v in arrays.items()},
            is_first=jnp.ones((num, 1), bool),
            value=jnp.zeros((num, 1)),
            reference=None,
            memory=ppo.network.initial_carry(num),
        )
        loss, metrics = ppo._loss(params, sequences, 0.2, 0.03)
        _, logits, value = ppo.network.apply(params, sequences.memory, sequences.observation[:, 0], sequences.is_first[:, 0])
        expected = loss_float64(np.float64(logits), np.float64(value), items, clip_eps=0.2, entropy_coef=0.03, value_coef=0.7)
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
        total = expected["policy_loss"] + 0.7 * expected["value_loss"] - 0.03 * expected["entropy"]
        np.testing.assert_allclose(loss, total, rtol=1e-4)

    def test_masked_steps_change_nothing(self):
        ppo = learner(num_minibatches=1, num_epochs=1)
        state = ppo.init(jax.random.key(0), SPEC)
        batch = play(ppo, state, jax.random.key(1))
        mask = batch.transition.mask.at[5:].set(False)
        spoilt = batch.transition._replace(
            mask=mask,
            terminated=batch.transition.terminated.at[4].set(True),
            observation=batch.transition.observation.at[5:].set(7.0),
            reward=batch.transition.reward.at[5:].set(100.0),
        )
        clean = spoilt._replace(observation=batch.transition.observation, reward=batch.transition.reward)
        (first, _), (second, _) = (ppo.update(state, batch._replace(transition=t), jax.random.key(2)) for t in (spoilt, clean))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), first.params, second.params)


class TestUpdate:
    def test_starts_at_ratio_one_and_changes_the_parameters(self):
        ppo = learner(num_epochs=1, num_minibatches=1)
        state = sharpened(ppo.init(jax.random.key(0), SPEC))
        after, metrics = ppo.update(state, play(ppo, state, jax.random.key(1)), jax.random.key(2))
        np.testing.assert_allclose(metrics["approx_kl"], 0.0, atol=1e-8)
        assert metrics["clip_fraction"] == 0.0
        assert after.update == 1
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), after.params, state.params)
        # Adam's first step moves every parameter that has a gradient by the learning rate, 3e-4
        np.testing.assert_allclose(max(jax.tree.leaves(moved)), 3e-4, rtol=0.05)

    def test_changing_floats_compiles_nothing(self):
        update = jax.jit(lambda ppo, state, batch, key: ppo.update(state, batch, key))
        ppo = jax.tree.map(jnp.float32, learner(lr_final=0.0, anneal_updates=10.0))
        state = ppo.init(jax.random.key(0), SPEC)
        batch = play(ppo, state, jax.random.key(1))
        for lr in (1e-3, 1e-4, 1e-5):
            state, _ = update(ppo.replace(lr=jnp.float32(lr)), state, batch, jax.random.key(2))
        assert update._cache_size() == 1
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))

    def test_lanes_of_different_rates_equal_separate_runs(self):
        rates = jnp.array([1e-2, 1e-3, 1e-4])

        def three_updates(lr):
            ppo = jax.tree.map(jnp.float32, learner()).replace(lr=lr)
            state = ppo.init(jax.random.key(0), SPEC)
            for i in range(3):
                state, metrics = ppo.update(state, play(ppo, state, jax.random.key(i)), jax.random.key(10 + i))
            return state.params, metrics

        lanes, lane_metrics = jax.jit(jax.vmap(three_updates))(rates)
        alone = jax.jit(three_updates)
        for i, lr in enumerate(rates):
            params, metrics = alone(lr)
            jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-3, atol=1e-5), lanes, params)
            np.testing.assert_allclose(lane_metrics["entropy"][i], metrics["entropy"], rtol=1e-4)
        assert np.ptp(np.asarray(lane_metrics["lr"])) > 0

    def test_rates_follow_the_index_of_the_update(self):
        # from 1e-3 to 0 over 2 updates: 1e-3, 5e-4, then 0, when nothing moves
        ppo = learner(lr=1e-3, lr_final=0.0, entropy_coef=0.2, entropy_coef_final=0.1, anneal_updates=2.0)
        update = jax.jit(ppo.update)
        state = ppo.init(jax.random.key(0), SPEC)
        batch = play(ppo, state, jax.random.key(1))
        rates, coefs = [], []
        for _ in range(3):
            before = state
            state, metrics = update(state, batch, jax.random.key(2))
            rates.append(float(metrics["lr"]))
            coefs.append(float(metrics["entropy_coef"]))
        np.testing.assert_allclose(rates, [1e-3, 5e-4, 0.0], rtol=1e-6)
        np.testing.assert_allclose(coefs, [0.2, 0.15, 0.1], rtol=1e-6)
        jax.tree.map(np.testing.assert_array_equal, state.params, before.params)

    def test_target_kl_stops_before_the_step(self):
        settings = {"lr": 0.05, "num_epochs": 5, "num_minibatches": 1}
        free = learner(**settings)
        state = free.init(jax.random.key(0), SPEC)
        batch = play(free, state, jax.random.key(1))
        _, unbound = jax.jit(free.update)(state, batch, jax.random.key(2))
        assert unbound["applied_fraction"] == 1.0
        # the first minibatch has a divergence of about 0 and is applied; the second has moved too far already
        stopped, metrics = jax.jit(learner(target_kl=1e-4, **settings).update)(state, batch, jax.random.key(2))
        np.testing.assert_allclose(metrics["applied_fraction"], 0.2)
        assert stopped.optimizer.count == 1
        once, _ = jax.jit(learner(**settings | {"num_epochs": 1}).update)(state, batch, jax.random.key(2))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), stopped.params, once.params)

    def test_gradients_are_clipped_by_their_global_norm(self):
        # with b1 = b2 = 0 and a large eps, Adam's direction is g / eps: a step of lr * max_norm / eps in all
        ppo = learner(lr=1.0, max_grad_norm=1e-3, adam_b1=0.0, adam_b2=0.0, adam_eps=1.0, num_epochs=1, num_minibatches=1)
        state = ppo.init(jax.random.key(0), SPEC)
        after, metrics = ppo.update(state, play(ppo, state, jax.random.key(1)), jax.random.key(2))
        assert metrics["grad_norm"] > 1e-3
        step = jax.tree.map(lambda a, b: a - b, after.params, state.params)
        length = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(step)))
        np.testing.assert_allclose(length, 1e-3, rtol=0.01)

    @pytest.mark.parametrize(
        "settings", [{"value_clip_eps": 0.2}, {"normalize_advantage": "batch"}, {"normalize_advantage": "none"}]
    )
    def test_switches_run(self, settings):
        ppo = learner(**settings)
        state = ppo.init(jax.random.key(0), SPEC)
        _, metrics = jax.jit(ppo.update)(state, play(ppo, state, jax.random.key(1)), jax.random.key(2))
        assert all(np.isfinite(value) for value in metrics.values())


class TestReference:
    """The divergence from the reference policy: KL(policy || reference), exact, a mean over steps."""

    def _parts(self, *, memory=0, **settings):
        ppo = learner(memory=memory, num_epochs=1, num_minibatches=1, kl_coef=0.5, **settings)
        state = sharpened(ppo.init(jax.random.key(0), SPEC))
        return ppo, state, play(ppo, state, jax.random.key(1))

    def _kl(self, ppo, state, batch):
        """By hand, [T, B], without memory."""
        t = batch.transition
        carry, first = ppo.network.initial_carry(B), jnp.ones((T, B), bool)
        logits = [
            np.asarray(ppo.network.apply(params, carry, t.observation, first, method="sequence")[1], np.float64)
            for params in (state.params, state.reference)
        ]
        log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in logits)
        return (np.exp(log_p) * (log_p - log_q)).sum(-1)

    def test_in_the_loss(self):
        ppo, state, batch = self._parts()
        expected = self._kl(ppo, state, batch)
        assert expected.mean() > 0.1
        np.testing.assert_allclose(batch.transition.extras["kl"], expected, rtol=1e-3, atol=1e-5)
        items = ppo._sequences(state, batch, *[jnp.zeros((T, B))] * 2)
        with_it, without = (ppo._loss(state.params, items, 0.2, 0.0, coef)[0] for coef in (state.kl_coef, None))
        assert float(with_it - without) == pytest.approx(0.5 * expected.mean(), rel=1e-3)
        _, metrics = jax.jit(ppo.update)(state, batch, jax.random.key(2))
        assert float(metrics["kl"]) == pytest.approx(expected.mean(), rel=1e-3) and metrics["kl_coef"] == 0.5

    def test_in_the_reward(self):
        ppo, state, batch = self._parts(kl_in="reward")
        assert ppo._sequences(state, batch, *[jnp.zeros((T, B))] * 2).reference is None
        paid = batch.transition.reward - 0.5 * batch.transition.extras["kl"]
        plain = learner(num_epochs=1, num_minibatches=1)
        lesser = Batch(batch.transition._replace(reward=paid), batch.carry)
        found, _ = jax.jit(ppo.update)(state, batch, jax.random.key(2))
        expected, _ = jax.jit(plain.update)(state._replace(reference=None, kl_coef=None), lesser, jax.random.key(2))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), found.params, expected.params)

    def test_the_first_policy_is_the_reference_and_remembers_for_itself(self):
        """A memory that only the reference has: after an update it is not the policy's, and rollouts go on with both."""
        ppo = learner(memory=4, num_epochs=1, num_minibatches=1, kl_coef=0.5, kl_target=1e-6, lr=0.1, reference_every=2.0)
        state = ppo.init(jax.random.key(0), SPEC)
        batch = play(ppo, state, jax.random.key(1))
        np.testing.assert_allclose(batch.transition.extras["kl"], 0.0, atol=1e-6)
        first, _ = jax.jit(ppo.update)(state, batch, jax.random.key(2))
        batch = play(ppo, first, jax.random.key(1))
        assert float(batch.transition.extras["kl"].mean()) > 1e-4
        carries = ppo.policy().act(ppo.agent(first), ppo.policy().init(B), _seen(), jax.random.key(0))[0]
        assert np.abs(carries.memory[0] - carries.reference_memory[0]).max() > 1e-3
        second, _ = jax.jit(ppo.update)(first, batch, jax.random.key(2))
        assert float(second.kl_coef) == pytest.approx(0.5 * 0.9 * 1.1)  # below the target at first, then above it
        jax.tree.map(np.testing.assert_array_equal, first.reference, state.params)
        jax.tree.map(np.testing.assert_array_equal, second.reference, second.params)


def _seen():
    return PolicyInput(jnp.ones((B, 3)), jnp.zeros(B, jnp.int32), jnp.zeros(B), jnp.ones(B, bool))


class TestMemory:
    @pytest.mark.parametrize("length", [None, 8, 4, 2, 1])
    def test_sequences_start_from_the_memory_that_acted(self, length):
        # the ratio of the first pass is 1 only if chunk, carry and clearing at first steps all agree with acting
        ppo = learner(memory=6, sequence_length=length, num_epochs=1, num_minibatches=1)
        state = sharpened(ppo.init(jax.random.key(0), SPEC))
        batch = play(ppo, state, jax.random.key(1))
        assert ("carry" in batch.transition.extras) == (length is not None)
        update = jax.jit(ppo.update)
        _, metrics = update(state, batch, jax.random.key(2))
        np.testing.assert_allclose(metrics["approx_kl"], 0.0, atol=1e-8)

        # and it is not, if memory is never cleared, or comes from the step after
        never = batch._replace(transition=batch.transition._replace(is_first=jnp.zeros((T, B), bool)))
        assert update(state, never, jax.random.key(2))[1]["approx_kl"] > 1e-6
        if length in (4, 2, 1):
            late = jax.tree.map(lambda x: jnp.roll(x, -1, axis=0), batch.transition.extras["carry"])
            spoilt = batch._replace(transition=batch.transition._replace(extras=batch.transition.extras | {"carry": late}))
            assert update(state, spoilt, jax.random.key(2))[1]["approx_kl"] > 1e-6

    def test_minibatches_hold_whole_rows(self):
        ppo = learner(memory=6, num_minibatches=2)
        state = ppo.init(jax.random.key(0), SPEC)
        batch = play(ppo, state, jax.random.key(1))
        zeros = jnp.zeros((T, B))
        sequences = ppo._sequences(state, batch, zeros, zeros)
        assert sequences.observation.shape == (B, T, 3)
        np.testing.assert_array_equal(sequences.observation[2], batch.transition.observation[:, 2])


class TestNormalization:
    def test_observations_are_normalised_by_the_statistics_that_acted(self):
        ppo = learner(normalize_observation=True, num_epochs=1, num_minibatches=1)
        state = sharpened(ppo.init(jax.random.key(0), SPEC))
        for i in range(2):
            batch = play(ppo, state, jax.random.key(i))
            state, metrics = jax.jit(ppo.update)(state, batch, jax.random.key(2))
            np.testing.assert_allclose(metrics["approx_kl"], 0.0, atol=1e-8)
        assert state.observation_stats.num_samples == 2 * T * B
        assert state.observation_stats.mean.shape == (3,)
        assert ppo.agent(state).observation_stats is state.observation_stats

    def test_rewards_are_divided_by_the_deviation_of_the_return(self):
        # reward 2 a step, gamma 0.5, every third step ends an episode: the returns so far within an episode are
        # 2, 3, 3.5, and the reward of the last step is among them
        ppo = learner(normalize_reward=True, gamma=0.5)
        state = ppo.init(jax.random.key(0), SPEC)
        batch = play(ppo, state, jax.random.key(1), reward=2.0)
        past = np.asarray(batch.transition.extras["past_return"])
        # row 0 ends at t = 0, 3, 6; before each step: 0 | 0, 2, 3 | 0, 2, 3 | 0
        np.testing.assert_allclose(past[:, 0], [0, 0, 2, 3, 0, 2, 3, 0], rtol=1e-6)
        after, _ = jax.jit(ppo.update)(state, batch, jax.random.key(2))
        returns = 0.5 * past + 2.0
        np.testing.assert_allclose(after.return_stats.mean, returns.mean(), rtol=1e-5)
        np.testing.assert_allclose(after.return_stats.variance, returns.var(), rtol=1e-4)


class TestActing:
    def test_greedy_takes_the_likeliest_action(self):
        ppo = learner()
        agent = ppo.agent(ppo.init(jax.random.key(0), SPEC))
        inputs = PolicyInput(jnp.ones((5, 3)), jnp.zeros(5, jnp.int32), jnp.zeros(5), jnp.ones(5, bool))
        policy = ppo.policy(greedy=True)
        _, action, extras = policy.act(agent, policy.init(5), inputs, jax.random.key(0))
        _, logits, value = ppo.network.apply(agent.params, ppo.network.initial_carry(5), inputs.observation, inputs.is_first)
        np.testing.assert_array_equal(action, jnp.argmax(logits, axis=-1))
        np.testing.assert_allclose(extras["value"], value)
        np.testing.assert_allclose(policy.value(agent, policy.init(5), inputs), value)

    def test_illegal_actions_are_never_taken_nor_learnt(self):
        observation = DictSpace((("state", Box(-1.0, 1.0, (3,))), ("action_mask", Box(0, 1, (3,), "bool"))))
        spec = EnvSpec("Masked-v0", observation, Discrete(3), 10)
        ppo = learner(spec, num_minibatches=1, num_epochs=1)
        state = ppo.init(jax.random.key(0), spec)
        policy = ppo.policy()
        num = 200
        mask = jnp.arange(num)[:, None] % 3 != jnp.arange(3)
        seen = {"state": jax.random.normal(jax.random.key(1), (num, 3)), "action_mask": mask}
        inputs = PolicyInput(seen, jnp.zeros(num, jnp.int32), jnp.zeros(num), jnp.ones(num, bool))
        _, action, extras = policy.act(ppo.agent(state), policy.init(num), inputs, jax.random.key(2))
        assert mask[jnp.arange(num), action].all()
        # the two legal actions have log-probabilities of about log(1/2)
        np.testing.assert_allclose(extras["log_prob"], np.log(0.5), atol=0.1)

        always = jnp.ones((1, num), bool)
        transition = Transition(
            *jax.tree.map(lambda x: x[None], (seen, action, jnp.ones(num))),
            always,
            ~always,
            always,
            always,
            jax.tree.map(lambda x: x[None], extras) | {"next_value": jnp.zeros((1, num))},
        )
        after, metrics = ppo.update(state, Batch(transition, policy.init(num)), jax.random.key(3))
        np.testing.assert_allclose(metrics["approx_kl"], 0.0, atol=1e-8)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"lr": float("nan")}, r"lr: expected a number in \[0, inf\], got nan"),
            ({"gamma": 1.5}, r"gamma: expected a number in \[0, 1\], got 1.5"),
            ({"num_epochs": 0}, "num_epochs: expected a positive integer, got 0"),
            ({"normalize_advantage": "bach"}, "normalize_advantage: expected minibatch, batch or none, got 'bach'"),
            ({"sequence_length": 4}, "sequence_length: expected None for a network without memory, got 4"),
            ({"kl_target": 0.1}, "kl_target: expected None without kl_coef, got 0.1"),
            ({"kl_in": "advantage"}, "kl_in: expected loss or reward, got 'advantage'"),
            ({"lr_final": 0.0}, "anneal_updates: expected a number of updates"),
        ],
    )
    def test_wrong_values_are_named(self, settings, message):
        with pytest.raises(ValueError, match=message):
            learner(**settings).validate()

    def test_the_defaults_are_valid(self):
        learner().validate()
        jax.tree.map(lambda x: jnp.full(3, x), learner()).validate()  # a stack of trials

    def test_indivisible_batches_are_refused(self):
        learner().validate_batch(num_steps=8, num_envs=4)
        with pytest.raises(ValueError, match="num_minibatches: expected a divisor of the 6 steps of a batch, got 4"):
            learner().validate_batch(num_steps=3, num_envs=2)
        with pytest.raises(ValueError, match="num_minibatches: expected a divisor of the 2 sequences of a batch, got 4"):
            learner(memory=4).validate_batch(num_steps=8, num_envs=2)
        with pytest.raises(ValueError, match="sequence_length: expected a divisor of the 8 steps of a rollout, got 3"):
            learner(memory=4, sequence_length=3).validate_batch(num_steps=8, num_envs=4)

    def test_starts_from_given_parameters(self):
        ppo = learner()
        params = jax.tree.map(lambda x: x + 1.0, ppo.network.initial_params(jax.random.key(5)))
        state = ppo.init(jax.random.key(0), SPEC, params=params)
        jax.tree.map(np.testing.assert_array_equal, state.params, params)
        other = learner(memory=4).network.initial_params(jax.random.key(0))
        with pytest.raises(ValueError, match="params: expected"):
            ppo.init(jax.random.key(0), SPEC, params=other)
        with pytest.raises(ValueError, match="reference: expected None without kl_coef"):
            ppo.init(jax.random.key(0), SPEC, reference=params)
        with pytest.raises(ValueError, match="reference: expected those of this network; of params/"):
            learner(kl_coef=0.1).init(jax.random.key(0), SPEC, reference=other)

    def test_refuses_a_network_without_a_critic(self):
        with pytest.raises(ValueError, match="network.critic: expected true"):
            PPO(network=actor_critic(SPEC, critic=False)).validate()

    def test_refuses_a_network_for_another_environment(self):
        other = EnvSpec("Other-v0", Box(-1.0, 1.0, (4,)), Discrete(3), 10)
        with pytest.raises(ValueError, match="network: expected one for the observations and actions of Other-v0"):
            learner().init(jax.random.key(0), other)
