"""The token transformer: acting with its memory is the full forward, whatever is padded, packed or forgotten."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagent as ja
from jaxagent.learners.bc import BC
from jaxagent.learners.grpo import GRPO
from jaxagent.learners.rejection import Rejection
from jaxagent.networks.actor_critic import actor_critic
from jaxagent.ops.fit import ladder
from jaxagent.types import Box, DictSpace, Discrete, EnvSpec, MultiDiscrete

T, B, K, V = 7, 3, 4, 11
TOKENS = EnvSpec(
    "Text-v0", DictSpace((("tokens", MultiDiscrete((V,) * K)), ("num_tokens", Discrete(K + 1)))), Discrete(5), T, (), 20
)
GRID = EnvSpec("Grid-v0", DictSpace((("image", Box(0, 20, (3, 3), "uint8")), ("direction", Discrete(4)))), Discrete(5), T)
SIZE = {"torso": "transformer", "layers": 2, "heads": 2, "width": 16, "hidden": (8,)}


def stream(seed: int = 0, spec: EnvSpec = TOKENS):
    """Observations [T, B] that add one to K tokens each."""
    keys = jax.random.split(jax.random.key(seed), 3)
    if spec is GRID:
        image = jax.random.randint(keys[0], (T, B, 3, 3), 0, 20).astype(jnp.uint8)
        return {"image": image, "direction": jax.random.randint(keys[1], (T, B), 0, 4)}
    count = jax.random.randint(keys[0], (T, B), 1, K + 1)
    tokens = jax.random.randint(keys[1], (T, B, K), 1, V)
    return {"tokens": jnp.where(jnp.arange(K) < count[..., None], tokens, 0), "num_tokens": count}


@functools.cache
def started(spec: EnvSpec = TOKENS, **settings):
    """A network, compiled functions of it included, and parameters that tell actions apart."""
    network = actor_critic(spec, **{**SIZE, **settings})
    params = network.initial_params(jax.random.key(0))
    head = params["params"]["actor_head"] | {"kernel": 100.0 * params["params"]["actor_head"]["kernel"]}
    return network, {"params": params["params"] | {"actor_head": head}}


@functools.partial(jax.jit, static_argnums=0)
def acted(network, params, observation, first, carry):
    """Step by step, as an agent acts."""

    def step(carry, inputs):
        carry, *outputs = network.apply(params, carry, *inputs)
        return carry, outputs

    carry, outputs = jax.lax.scan(step, carry, (observation, first))
    return carry, *outputs


@functools.partial(jax.jit, static_argnums=(0, 5))
def at_once(network, params, observation, first, carry, num_tokens=None):
    return network.apply(params, carry, observation, first, num_tokens, method="sequence")


@functools.partial(jax.jit, static_argnums=0)
def packed(network, params, observation, first):
    return network.apply(params, observation, first, method="episodes")


FIRSTS = {
    "one episode": jnp.arange(T)[:, None] == jnp.zeros((1, B), jnp.int32),
    "in the middle of one": jnp.zeros((T, B), bool),
    "ends on the way": jnp.arange(T)[:, None] % jnp.array([3, 4, 9]) == jnp.array([0, 2, 8]),
}


@pytest.mark.parametrize(("spec", "context"), [(TOKENS, 64), (TOKENS, 5), (GRID, 5)], ids=["tokens", "few tokens", "grid"])
@pytest.mark.parametrize("firsts", FIRSTS)
def test_acting_with_the_memory_is_the_whole_sequence(spec, context, firsts):
    network, params = started(spec, context=context)
    earlier, _, _ = acted(network, params, stream(5, spec), FIRSTS["one episode"], network.initial_carry(B))
    observation, first = stream(1, spec), FIRSTS[firsts]
    carry, logits, value = acted(network, params, observation, first, earlier)
    found = at_once(network, params, observation, first, earlier)
    np.testing.assert_allclose(found[1], logits, rtol=1e-3, atol=2e-4)
    np.testing.assert_allclose(found[2], value, rtol=1e-3, atol=1e-5)
    assert np.abs(np.diff(logits, axis=0)).max() > 0.1
    # and what follows from either memory
    following = [acted(network, params, stream(2, spec), FIRSTS["in the middle of one"], c)[1] for c in (carry, found[0])]
    np.testing.assert_allclose(following[0], following[1], rtol=1e-3, atol=2e-4)


def test_whole_episodes_are_packed():
    """In as many places as an episode can have tokens, instead of steps times the most a step can add."""
    network, params = started(context=64)
    first = FIRSTS["one episode"]
    observation = stream(1) | {"num_tokens": jnp.minimum(stream(1)["num_tokens"], 2)}  # at most 14 of 20, instead of 28
    expected = at_once(network, params, observation, first, network.initial_carry(B))
    found = packed(network, params, observation, first)
    np.testing.assert_allclose(found[0], expected[1], rtol=1e-3, atol=2e-4)
    np.testing.assert_allclose(found[1], expected[2], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("firsts", FIRSTS)
def test_steps_that_add_less_than_there_is_room_for_are_packed(firsts):
    """Rows of several episodes too, and what is remembered afterwards."""
    network, params = started(context=5)
    earlier, _, _ = acted(network, params, stream(5), FIRSTS["one episode"], network.initial_carry(B))
    observation, first = stream(1), FIRSTS[firsts]
    most = int(observation["num_tokens"].sum(0).max())
    assert most < T * K
    expected, found = (at_once(network, params, observation, first, earlier, bound) for bound in (None, most))
    for whole, bounded in zip(expected[1:], found[1:], strict=True):
        np.testing.assert_allclose(bounded, whole, rtol=1e-3, atol=1e-4)
    following = [acted(network, params, stream(2), FIRSTS["in the middle of one"], c[0])[1] for c in (expected, found)]
    np.testing.assert_allclose(*following, rtol=1e-3, atol=2e-4)


def test_neither_padding_nor_the_future_is_seen():
    network, params = started(context=64)
    observation, first = stream(1), FIRSTS["one episode"]
    expected, _ = packed(network, params, observation, first)
    padded = jnp.arange(K) >= observation["num_tokens"][..., None]
    late = (jnp.arange(T) >= 4)[:, None, None]
    changed = observation | {"tokens": jnp.where(padded | late, V - observation["tokens"] - 1, observation["tokens"])}
    found, _ = packed(network, params, changed, first)
    np.testing.assert_allclose(found[:4], expected[:4], rtol=1e-3, atol=1e-4)
    assert np.abs(found[4:] - expected[4:]).max() > 0.01


def test_a_context_of_few_tokens_forgets_the_others():
    """With one layer, what is further back than the context changes nothing; just inside it does."""
    network, params = started(context=4, layers=1)
    ones = {"tokens": jnp.ones((T, 1, K), jnp.int32), "num_tokens": jnp.ones((T, 1), jnp.int32)}
    first = FIRSTS["one episode"][:, :1]
    logits = [
        network.apply(params, ones | {"tokens": ones["tokens"].at[t].set(2)}, first, method="episodes")[0][-1]
        for t in (1, 2, 3)
    ]
    plain = packed(network, params, ones, first)[0][-1]
    np.testing.assert_allclose(logits[0], plain, atol=1e-6)
    np.testing.assert_allclose(logits[1], plain, atol=1e-6)
    assert np.abs(logits[2] - plain).max() > 1e-3  # the fourth last


def test_an_empty_memory_can_be_donated():
    """No two of its arrays are the same buffer."""
    network, params = started(context=5)
    first = jax.tree.map(lambda x: x[0], (stream(1), FIRSTS["one episode"]))
    carry, *_ = jax.jit(network.apply, donate_argnums=1)(params, network.initial_carry(B), *first)
    assert carry[0].length.tolist() == stream(1)["num_tokens"][0].tolist()


def test_less_memory_or_precision_is_nearly_the_same():
    observation, first = stream(1), FIRSTS["one episode"]
    network, params = started(context=64)

    def loss(network, params):
        return jnp.sum(jnp.square(packed(network, params, observation, first)[0]))

    expected = jax.grad(lambda p: loss(network, p))(params)
    again = jax.grad(lambda p: loss(started(context=64, remat=True)[0], p))(params)  # one layer's is all that is repeated
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), again, expected)
    coarse = started(context=64, bf16=True)[0]
    assert coarse.initial_carry(1)[0].keys[0].dtype == jnp.bfloat16
    assert float(loss(coarse, params)) == pytest.approx(float(loss(network, params)), rel=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "width: expected a multiple of twice the 3 heads, got 16"),
        ({"layers": 0}, "layers: expected a positive integer, got 0"),
        ({"memory": 8}, "memory: expected 0, since a transformer remembers by itself, got 8"),
    ],
)
def test_sizes_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        started(**settings)
    env, _ = ja.make("ToolSelect-v0", window=16)
    with pytest.raises(ValueError, match="torso: expected no transformer for a window of tokens"):
        ja.actor_critic(env.spec, torso="transformer")


@pytest.mark.parametrize(
    "network",
    [{"torso": "bag", "hidden": (32,), "memory": 32}, {**SIZE, "layers": 1, "context": 96}],
    ids=["gru", "transformer"],
)
def test_every_learner_reads_what_each_step_adds(network):
    """Cloning, comparing episodes and PPO, one after the other with one network."""
    env, params = ja.make("ToolSelect-v0")
    network = ja.actor_critic(env.spec, **network)

    def trained(learner, num_updates, num_envs, warm_start=None):
        trainer = ja.Trainer(env, params, learner, num_envs=num_envs, num_steps=24)
        trainer.validate()
        state, metrics = jax.jit(lambda key: trainer.run(trainer.init(key, warm_start=warm_start), num_updates))(
            jax.random.key(0)
        )
        return state.learner.params, jax.tree.map(lambda x: float(x[-3:].mean()), jax.device_get(metrics))

    cloned, metrics = trained(BC(network=network, lr=1e-2, demonstrator="sft", num_minibatches=8), 40, 64)
    assert metrics["accuracy"] > 0.5  # at random 0.07
    _, compared = trained(GRPO(network=network, kl_coef=0.01, num_minibatches=1), 2, 32, cloned)
    _, policed = trained(ja.PPO(network=network, lr=1e-4, kl_coef=0.1, num_minibatches=1), 2, 32, cloned)
    for found in (compared, policed):
        assert found["success_sum"] / found["episodes"] > 0.2 and 0 <= found["kl"] < 0.5


@pytest.mark.parametrize("learner", [GRPO, Rejection, ja.PPO, BC])
def test_an_update_with_room_for_all_there_could_be_is_the_same(learner, monkeypatch):
    env, params = ja.make("ToolSelect-v0")
    in_groups = {"group_size": 2, "kl_coef": 0.1}
    settings = {GRPO: in_groups, Rejection: in_groups, ja.PPO: {}, BC: {"demonstrator": "sft"}}[learner]
    network = ja.actor_critic(env.spec, **{**SIZE, "layers": 1, "context": 32})
    trainer = ja.Trainer(
        env, params, learner(network=network, num_epochs=1, num_minibatches=1, **settings), num_envs=16, num_steps=10
    )
    state = jax.jit(trainer.init)(jax.random.key(0))
    sizes = []

    def step(ladder):
        monkeypatch.setattr("jaxagent.learners.common.ladder", ladder)
        return jax.jit(trainer.step)(state)

    def noted(most):
        sizes.append(most)
        return ladder(most)

    fitting, whole = step(noted), step(lambda most: (most,))
    assert sizes in ([10], [80])
    for found, expected in zip(jax.tree.leaves(fitting[1]), jax.tree.leaves(whole[1]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
