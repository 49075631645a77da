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
        ({"demonstrator": "teacher"}, "demonstrator: expected one of expert, expert_view, optimal, .*, got 'teacher'"),
        ({"held_out": 1.0}, "held_out: expected a share between 0 and 1, got 1.0"),
        ({"patience": 3}, "patience: expected None without held_out, got 3"),
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
    with pytest.raises(
        ValueError, match="demonstrator: expected an environment of MiniGrid, BabyAI or tools, got Collector-v0"
    ):
        trainer.validate()


@pytest.mark.fast
def test_demonstrators_are_those_of_the_environment():
    for name, demonstrator, message in (
        ("ToolSelect-v0", "expert", "demonstrator: expected optimal, sft, hack, random in ToolSelect-v0, got 'expert'"),
        ("BabyAI-GoToLocal-v0", "sft", "demonstrator: expected expert or expert_view in BabyAI-GoToLocal-v0, got 'sft'"),
    ):
        env, params = ja.make(name)
        trainer = ja.Trainer(env, params, cloner(env.spec, demonstrator=demonstrator), num_envs=8, num_steps=8)
        with pytest.raises(ValueError, match=message):
            trainer.validate()


@pytest.mark.fast
def test_recorded_demonstrations_are_checked():
    env, _ = ja.make("ToolSelect-v0")
    learner = BC(network=ja.actor_critic(env.spec, torso="bag"), demonstrator="sft")
    tokens, counts = np.zeros((4, 3, 8), int), np.ones((4, 3), int)
    sound = batch({"tokens": tokens, "num_tokens": counts}, np.zeros((4, 3), int))
    learner.validate_recorded(sound)
    unknown = tokens.copy()
    unknown[2, 1, 5] = len(env.vocabulary)
    for observation, action, message in (
        ({"tokens": unknown, "num_tokens": counts}, None, r"observation.tokens: expected 0 to 24, got 25 at \[2, 1, 5\]"),
        ({"tokens": tokens}, None, "observation.num_tokens: missing"),
        (
            {"tokens": tokens[..., :7], "num_tokens": counts},
            None,
            r"observation.tokens: expected an array of shape \(4, 3, 8\)",
        ),
        (None, np.full((4, 3), -1), r"action: expected 0 to 14, got -1 at \[0, 0\]"),
    ):
        parts = {"observation": observation, "action": action}
        wrong = sound.transition._replace(**{name: part for name, part in parts.items() if part is not None})
        with pytest.raises(ValueError, match=message):
            learner.validate_recorded(sound._replace(transition=wrong))


def test_held_out_demonstrations_decide_when_to_stop():
    """What is learnt is noise: its loss falls, the loss of what is held out rises, and the best parameters act on."""
    learner = cloner(lr=0.03, num_minibatches=1, held_out=0.25, patience=3)
    learner.validate_batch(num_steps=4, num_envs=16)
    state = learner.init(jax.random.key(0), SPEC)
    observation_key, action_key = jax.random.split(jax.random.key(1))
    observation = jax.random.normal(observation_key, (4, 16, 1))
    demonstrations = batch(observation, jax.random.randint(action_key, (4, 16), 0, 2))
    update, rows, states = jax.jit(learner.update), [], [state]
    for i in range(40):
        state, metrics = update(states[-1], demonstrations, jax.random.key(i))
        rows.append({name: float(value) for name, value in metrics.items()})
        states.append(state)
    losses = [row["held_out_loss"] for row in rows]
    best = int(np.argmin(losses))
    stopped = next(i for i, row in enumerate(rows) if not row["learns"])
    assert stopped == best + 4, "three updates without a better one"
    for found, expected in ((learner.agent(states[-1]), states[best + 1].params), (states[-1].params, states[stopped].params)):
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    with pytest.raises(ValueError, match="held_out: expected a share of 2 environments, some but not all, got 0.1"):
        cloner(held_out=0.1).validate_batch(num_steps=4, num_envs=2)


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
