"""Rejection sampling: which episodes are cloned, what is refused, and that it improves on what it begins with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagent as ja
from jaxagent.learners.rejection import Rejection
from jaxagent.networks.actor_critic import actor_critic
from jaxagent.types import Batch, Box, Discrete, EnvSpec, Transition

T, B, G = 3, 8, 4
SPEC = EnvSpec("Test-v0", Box(-1.0, 1.0, (2,)), Discrete(2), T)
RETURNS = [0.0, 3.0, 1.0, 2.0, -1.0, -1.0, -2.0, -1.0]


def learner(**settings):
    return Rejection(network=actor_critic(SPEC, hidden=(4,)), **{"group_size": G, "num_kept": 2, "num_epochs": 1, **settings})


def batch(returns=RETURNS):
    observation = jax.random.normal(jax.random.key(0), (T, B, 2))
    action = jax.random.randint(jax.random.key(1), (T, B), 0, 2)
    mask = jnp.arange(T)[:, None] < jnp.array([1, 2, 3, 3, 2, 2, 1, 3])
    first = jnp.broadcast_to(jnp.arange(T)[:, None] == 0, (T, B))
    # what follows the end pays what must not count
    reward = jnp.where(mask, 0.0, 50.0).at[0].set(jnp.asarray(returns))
    return Batch(Transition(observation, action, reward, ~mask, ~mask & False, first, mask, {}), ())


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, [1, 3, 4, 5]),  # the two best of each group, of equals the first
        ({"num_kept": 1}, [1, 4]),
        ({"min_return": 0.0}, [1, 3]),  # nothing of the second group is good enough
    ],
)
def test_the_best_are_cloned(settings, rows):
    rejection = learner(**settings)
    state = rejection.init(jax.random.key(0), SPEC)
    _, metrics = jax.jit(rejection.update)(state, batch(), jax.random.key(2))
    t = batch().transition
    carry = rejection.network.initial_carry(B)
    logits = rejection.network.apply(state.params, carry, t.observation, t.is_first, method="sequence")[1]
    log_p = jax.nn.log_softmax(logits)
    chosen = [float(log_p[s, row, t.action[s, row]]) for row in rows for s in range(T) if t.mask[s, row]]
    assert float(metrics["loss"]) == pytest.approx(-np.mean(chosen), rel=1e-5)
    ranked = rows if "min_return" not in settings else [1, 3, 4, 5]  # it counts what was ranked first, cloned or not
    assert float(metrics["kept_return"]) == pytest.approx(np.mean([RETURNS[row] for row in ranked]))


def test_nothing_good_enough_changes_nothing():
    rejection = learner(min_return=9.0)
    state = rejection.init(jax.random.key(0), SPEC)
    after, metrics = jax.jit(rejection.update)(state, batch(), jax.random.key(2))
    assert metrics["kept_rate"] == 0
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)


@pytest.mark.parametrize("coef", [0.0, 0.5])
def test_the_divergence_from_the_first_policy_is_logged_and_paid_for(coef):
    """Logged of all steps that count, before the update; paid for where episodes are cloned."""
    rejection = learner(kl_coef=coef)
    first = rejection.init(jax.random.key(0), SPEC)
    away = first._replace(params=jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(3), x.shape), first.params))
    t, outputs = batch().transition, []
    for params in (away.params, first.reference):
        carry = rejection.network.initial_carry(B)
        outputs.append(rejection.network.apply(params, carry, t.observation, t.is_first, method="sequence")[1])
    log_p, log_q = (np.asarray(jax.nn.log_softmax(x), np.float64) for x in outputs)
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    assert divergence.mean() > 0.05
    acted = batch()._replace(transition=t._replace(extras={"action_params": outputs[0]}))
    after, metrics = jax.jit(rejection.update)(away, acted, jax.random.key(2))
    assert float(metrics["kl"]) == pytest.approx(divergence[np.asarray(t.mask)].mean(), rel=1e-4)
    _, alone = jax.jit(learner().update)(away._replace(reference=None), batch(), jax.random.key(2))
    cloned = np.zeros((T, B), bool)
    cloned[:, [1, 3, 4, 5]] = np.asarray(t.mask)[:, [1, 3, 4, 5]]
    assert float(metrics["loss"] - alone["loss"]) == pytest.approx(coef * divergence[cloned].mean(), rel=1e-3, abs=1e-6)
    jax.tree.map(np.testing.assert_array_equal, after.reference, first.params)


def test_a_reference_needs_a_coefficient():
    params = learner().init(jax.random.key(0), SPEC).params
    with pytest.raises(ValueError, match="reference: expected None without kl_coef"):
        learner().init(jax.random.key(0), SPEC, reference=params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "group_size: expected at least 2 episodes to choose from, got 1"),
        ({"num_kept": 4}, "num_kept: expected 1 to 3 of a group, got 4"),
        ({"num_kept": 2.0}, "num_kept: expected 1 to 3 of a group, got 2.0"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        learner(**settings).validate()
    with pytest.raises(ValueError, match="num_minibatches: expected a divisor of the 4 episodes kept, got 3"):
        learner(num_minibatches=3).validate_batch(num_steps=T, num_envs=B)


def test_grids_are_learnt_from_the_best_of_sixteen():
    """Collector from nothing: the share of episodes that reach a goal, and what they earn, rises."""
    env, params = ja.make("Collector-v0")
    rejection = Rejection(network=ja.actor_critic(env.spec, torso="mlp", hidden=(64,)), lr=3e-3, num_kept=2)
    trainer = ja.Trainer(env, params, rejection, num_envs=512, num_steps=20)
    trainer.validate()
    _, metrics = jax.jit(lambda key: trainer.run(trainer.init(key), 60))(jax.random.key(0))
    earned = metrics["return_sum"] / metrics["episodes"]
    assert earned[-5:].mean() > 4.0 > 0.0 > earned[:3].mean()
