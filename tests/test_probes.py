"""Probe environments: each can only be learnt if one part of the learner is right, and is learnt in seconds.

After A. L. Jones, "Debugging RL, Without the Agonizing Pain" (2021), with probes of memory and of time limits added.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.learners.ppo import PPO
from jaxagent.networks.actor_critic import actor_critic
from jaxagent.train import Trainer
from jaxagent.types import Box, Discrete, EnvSpec, PolicyInput


class State(NamedTuple):
    signal: jax.Array  # float32, -1 or 1, drawn anew for each episode
    time: jax.Array  # int32


@dataclass(frozen=True)
class Probe:
    """Episodes of `length` steps that terminate, or that a time limit cuts if `unending`."""

    observe: Callable[[State], jax.Array]  # a scalar
    reward: Callable[[State, jax.Array], jax.Array]
    length: int = 1
    unending: bool = False

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("Probe-v0", Box(-1.0, 1.0, (1,)), Discrete(2), self.length)

    def reset(self, key, params):
        state = State(jnp.where(jax.random.bernoulli(key), 1.0, -1.0), jnp.int32(0))
        return self._observation(state), state

    def step(self, key, state, action, params):
        after = state._replace(time=state.time + 1)
        over = after.time >= self.length
        reward = jnp.float32(self.reward(state, action))
        return self._observation(after), after, reward, over & (not self.unending), over & self.unending, {}

    def _observation(self, state: State) -> jax.Array:
        return jnp.reshape(jnp.float32(self.observe(state)), (1,))


def learn(probe: Probe, *, updates: int, num_steps: int = 8, memory: int = 0, **settings):
    """Trains on a probe. Returns the trainer and the state reached."""
    network = actor_critic(probe.spec, hidden=(16,), memory=memory)
    settings = {"lr": 1e-2, "gamma": 0.5, "entropy_coef": 0.01, "num_minibatches": 2} | settings
    trainer = Trainer(probe, None, PPO(network=network, **settings), num_envs=32, num_steps=num_steps)
    trainer.validate()
    run = jax.jit(lambda trainer, state: trainer.run(state, updates))
    return trainer, *run(trainer, jax.jit(trainer.init)(jax.random.key(0)))


def values(trainer: Trainer, state, observations: list[float]) -> np.ndarray:
    """The critic's estimates, for a network without memory."""
    learner, num = trainer.learner, len(observations)
    policy = learner.policy()
    inputs = PolicyInput(jnp.array(observations)[:, None], jnp.zeros(num, jnp.int32), jnp.zeros(num), jnp.ones(num, bool))
    return np.asarray(policy.value(learner.agent(state.learner), policy.init(num), inputs))


def mean_return(metrics) -> float:
    """The median of the last 20 batches' means: a policy that has learnt can stumble for a few updates."""
    return float(jnp.median(metrics["return_sum"][-20:] / metrics["episodes"][-20:]))


def test_value_of_a_constant_reward():
    trainer, state, _ = learn(Probe(observe=lambda s: 0.0, reward=lambda s, a: 1.0), updates=40)
    np.testing.assert_allclose(values(trainer, state, [0.0]), [1.0], atol=0.05)


def test_value_by_observation():
    trainer, state, _ = learn(Probe(observe=lambda s: s.signal, reward=lambda s, a: s.signal), updates=40)
    np.testing.assert_allclose(values(trainer, state, [-1.0, 1.0]), [-1.0, 1.0], atol=0.1)


def test_value_is_discounted():
    # a reward of 1 at the second and last step: its observation is worth 1, the first one gamma = 0.5
    probe = Probe(observe=lambda s: s.time, reward=lambda s, a: s.time == 1, length=2)
    trainer, state, _ = learn(probe, updates=60)
    np.testing.assert_allclose(values(trainer, state, [0.0, 1.0]), [0.5, 1.0], atol=0.1)


def test_action():
    _, _, metrics = learn(Probe(observe=lambda s: 0.0, reward=lambda s, a: 2.0 * a - 1.0), updates=40)
    assert mean_return(metrics) > 0.9


def test_action_by_observation():
    probe = Probe(observe=lambda s: s.signal, reward=lambda s, a: (2.0 * a - 1.0) * s.signal)
    _, _, metrics = learn(probe, updates=40)
    assert mean_return(metrics) > 0.9


def test_time_limit_is_not_the_end():
    # reward 1 a step for ever: 1 / (1 - 0.9) = 10. If the limit of 5 steps were the end: at most 1 + .9 + ... + .9^4 = 4.1
    probe = Probe(observe=lambda s: 0.0, reward=lambda s, a: 1.0, length=5, unending=True)
    trainer, state, _ = learn(probe, updates=150, gamma=0.9)
    np.testing.assert_allclose(values(trainer, state, [0.0]), [10.0], atol=0.5)


RECALL = Probe(
    observe=lambda s: jnp.where(s.time == 0, s.signal, 0.0),
    reward=lambda s, a: jnp.where(s.time == 3, (2.0 * a - 1.0) * s.signal, 0.0),
    length=4,
)


def test_memory_recalls_the_first_observation():
    for sequence_length in (None, 4):
        _, _, metrics = learn(RECALL, updates=80, memory=16, sequence_length=sequence_length, gamma=0.9)
        assert mean_return(metrics) > 0.9


def test_without_memory_nothing_can_be_recalled():
    _, _, metrics = learn(RECALL, updates=40, gamma=0.9)
    assert abs(mean_return(metrics)) < 0.3
