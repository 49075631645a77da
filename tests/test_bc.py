"""Behaviour cloning: the loss by hand, what is refused, and learning from the expert, with and without memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagent as ja
from jaxagent.learners.bc import BC
from jaxagent.types import Batch, Box, Discrete, EnvSpec, Transition

SPEC = EnvSpec("Line-v0", Box(-1.0, 1.0, (1,)), Discrete(2), max_steps=8)


def cloner(spec=SPEC, **settings):
    memory = settings.pop("memory", 0)
    return BC(network=ja.actor_critic(spec, hidden=(16,), memory=memory), **settings)


def batch(observation, action, mask=None):
    shape = action.shape
    zeros = jnp.zeros(shape)
    mask = jnp.ones(shape, bool) if mask is None else mask
    first = jnp.zeros(shape, bool).at[0].set(True)
    transition = Transition(observation, action, zeros, zeros > 0, zeros > 0, first, mask, {})
    return Batch(transition, carry=((),))


def test_loss_and_accuracy_by_hand():
    learner = cloner(lr=0.0, num_minibatches=1)
    state = learner.init(jax.random.key(0), SPEC)
    observation = jax.random.uniform(jax.random.key(1), (4, 3, 1), minval=-1.0)
    action = jnp.arange(12, dtype=jnp.int32).reshape(4, 3) % 2
    mask = jnp.ones((4, 3), bool).at[3].set(False)
    _, metrics = learner.update(state, batch(observation, action, mask), jax.random.key(2))
    _, logits, _ = learner.network.apply(state.params, ((),), observation[:3].reshape(9, 1), jnp.zeros(9, bool))
    logits, action = np.asarray(logits, np.float64), np.asarray(action[:3]).ravel()
    log_prob = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(metrics["loss"], -log_prob[np.arange(9), action].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], (logits.argmax(-1) == action).mean(), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr: expected a number in"),
        ({"demonstrator": "teacher"}, "demonstrator: expected expert or expert_view, got 'teacher'"),
        ({"sequence_length": 4}, "sequence_length: expected None for a network without memory"),
        ({"lr_final": 0.0}, "anneal_updates: expected a number of updates"),
    ],
)
@pytest.mark.fast
def test_what_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        cloner(**settings).validate()


@pytest.mark.fast
def test_the_expert_plays_no_other_games():
    env, params = ja.make("Collector-v0")
    trainer = ja.Trainer(env, params, cloner(env.spec), num_envs=8, num_steps=8)
    with pytest.raises(ValueError, match="demonstrator: expected an environment of MiniGrid or BabyAI, got Collector-v0"):
        trainer.validate()


@pytest.mark.parametrize("memory", [0, 16])
def test_learns_what_the_expert_does(memory):
    env, params = ja.make("MiniGrid-Empty-Random-5x5-v0")
    network = ja.actor_critic(env.spec, torso="mlp", hidden=(32,), memory=memory)
    learner = BC(network=network, lr=5e-3, num_minibatches=4, sequence_length=8 if memory else None)
    trainer = ja.Trainer(env, params, learner, num_envs=32, num_steps=16)
    state = jax.jit(trainer.init)(jax.random.key(0))
    state, metrics = jax.jit(lambda s: trainer.run(s, 150))(state)
    assert metrics["success_sum"].sum() == metrics["episodes"].sum() > 0  # the expert's own
    assert metrics["accuracy"][-1] > 0.9
    results = ja.evaluate(env, params, learner.policy(), learner.agent(state.learner), jax.random.key(1), num_episodes=64)
    assert ja.summarise(results)["success_rate"] > 0.9
