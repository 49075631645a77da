"""Networks: initialisation, layers against plain formulations, and actor-critics over every kind of space."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.envs.language import LEAVES_SPACE, TOKENS_SPACE
from jaxagent.networks.actor_critic import actor_critic
from jaxagent.networks.init import orthogonal
from jaxagent.networks.layers import GRU, Conv, Dense, Embedding, banded_conv, matmul
from jaxagent.networks.torsos import Torso, multi_hot
from jaxagent.ops.distributions import from_action_space
from jaxagent.types import Box, DictSpace, Discrete, EnvSpec, MultiDiscrete

GRID = DictSpace(
    (
        ("image", Box(0, 127, (7, 7), "uint8")),
        ("direction", Discrete(4)),
        ("mission", Discrete(100)),
        ("action_mask", Box(0, 1, (7,), "bool")),
    )
)


def spec(observation=None, action=None):
    return EnvSpec("Test-v0", observation or Box(-1.0, 1.0, (3,)), action or Discrete(2), 10)


def observe(space, *batch):
    """Random observations with the leading axes `batch`."""
    if isinstance(space, DictSpace):
        return {name: observe(entry, *batch) for name, entry in space.fields}
    top = space.n if isinstance(space, Discrete) else max(space.nvec) if isinstance(space, MultiDiscrete) else 2
    return jax.random.randint(jax.random.key(3), (*batch, *space.shape), 0, top).astype(space.dtype)


class TestOrthogonal:
    @pytest.mark.parametrize("shape", [(64, 64), (4, 64), (64, 3), (1, 1), (3, 3, 8, 16)])
    def test_rows_or_columns_are_orthonormal(self, shape):
        matrix = np.asarray(orthogonal(2.0)(jax.random.key(0), shape)).reshape(-1, shape[-1]) / 2.0
        gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-3)

    def test_keeps_the_singular_vectors_of_the_draw(self):
        # the nearest orthogonal matrix of U S V' is U V'
        key = jax.random.key(0)
        u, _, vt = np.linalg.svd(np.asarray(jax.random.normal(key, (12, 12))))
        np.testing.assert_allclose(orthogonal()(key, (12, 12)), u @ vt, atol=1e-3)

    def test_many_lanes_of_many_layers_never_hang(self):
        sizes = [(8, 64), (64, 64), (64, 7), (8, 64), (64, 64), (64, 1)]

        @jax.jit
        @jax.vmap
        def layers(key):
            return [orthogonal()(layer_key, size) for layer_key, size in zip(jax.random.split(key, 6), sizes, strict=True)]

        for i in range(20):
            made = layers(jax.random.split(jax.random.key(i), 8))
        np.testing.assert_allclose(jnp.einsum("nij,nik->njk", made[4], made[4]), np.tile(np.eye(64), (8, 1, 1)), atol=1e-3)


class TestLayers:
    @pytest.mark.parametrize("columns", [2, 16])
    def test_matmul_has_the_usual_gradients(self, columns):
        x, kernel = jax.random.normal(jax.random.key(0), (32, 5)), jax.random.normal(jax.random.key(1), (5, columns))
        ours = jax.grad(lambda x, k: jnp.sum(jnp.sin(matmul(x, k))), argnums=(0, 1))(x, kernel)
        usual = jax.grad(lambda x, k: jnp.sum(jnp.sin(x @ k)), argnums=(0, 1))(x, kernel)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, usual)

    def test_matmul_under_vmap(self):
        x, kernel = jax.random.normal(jax.random.key(0), (3, 32, 5)), jax.random.normal(jax.random.key(1), (3, 5, 16))
        gradient = jax.vmap(jax.grad(lambda k, x: jnp.sum(jnp.sin(matmul(x, k)))))(kernel, x)
        usual = jax.grad(lambda k: jnp.sum(jnp.sin(x @ k)))(kernel)
        np.testing.assert_allclose(gradient, usual, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(("size", "kernel"), [((7, 7, 8), (3, 3)), ((4, 9, 2), (2, 3)), ((3, 3, 1), (3, 1))])
    def test_banded_convolution_equals_a_convolution(self, size, kernel):
        x = jax.random.normal(jax.random.key(0), (5, *size))
        weights = jax.random.normal(jax.random.key(1), (*kernel, size[-1], 6))
        usual = jax.lax.conv_general_dilated(x, weights, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        np.testing.assert_allclose(banded_conv(x, weights), usual, rtol=1e-4, atol=1e-4)

    def test_convolution_of_grids_thinner_than_its_kernel(self):
        x = jnp.ones((2, 2, 20, 3))
        out, _ = Conv(4).init_with_output(jax.random.key(0), x)
        assert out.shape == (2, 1, 18, 4)

    def test_embedding_clamps(self):
        layer = Embedding(3, 2)
        x = jnp.array([0, 2, 9], jnp.uint8)
        out, params = layer.init_with_output(jax.random.key(0), x)
        np.testing.assert_array_equal(out[1], out[2])
        np.testing.assert_array_equal(out[0], params["params"]["table"][0])

    def test_dense_keeps_leading_axes(self):
        out, _ = Dense(4).init_with_output(jax.random.key(0), jnp.ones((2, 3, 5)))
        assert out.shape == (2, 3, 4)

    def test_gru_worked_example(self):
        # H = 1, all of the inputs' part 0 but the candidate's bias 1, recurrent weights 0, bias 0:
        # reset = update = 1/2, candidate = tanh(1); h = (1 - 1/2) tanh(1) + 1/2 h
        layer = GRU(1)
        carry, x, first = jnp.array([[4.0]]), jnp.zeros((2, 1, 3)), jnp.zeros((2, 1), bool)
        params = jax.tree.map(jnp.zeros_like, layer.init(jax.random.key(0), carry, x, first))
        params["params"]["input"]["bias"] = jnp.array([0.0, 0.0, 1.0])
        last, out = layer.apply(params, carry, x, first)
        once = 0.5 * np.tanh(1.0) + 2.0
        np.testing.assert_allclose(out[:, 0, 0], [once, 0.5 * np.tanh(1.0) + 0.5 * once], rtol=1e-6)
        np.testing.assert_array_equal(last, out[-1])


class TestMissions:
    def encode(self, space, x, **settings):
        """Features before the dense layers, and the parameters."""
        return Torso(space, (), (), "tanh", **settings).init_with_output(jax.random.key(0), x)

    def missions(self, num=6):
        sizes = jnp.array(LEAVES_SPACE.nvec)
        return jax.random.randint(jax.random.key(1), (num, len(LEAVES_SPACE.nvec)), 0, sizes).astype(jnp.uint8)

    def test_multi_hot_is_one_hot_vectors_side_by_side(self):
        x = self.missions()
        one_hot = [jax.nn.one_hot(x[:, i], size) for i, size in enumerate(LEAVES_SPACE.nvec)]
        np.testing.assert_array_equal(multi_hot(LEAVES_SPACE.nvec, x), jnp.concatenate(one_hot, axis=-1))

    def test_leaves_share_one_layer_and_keep_their_places(self):
        x = self.missions()
        features, params = self.encode(LEAVES_SPACE, x, record=5)
        assert jax.tree.map(jnp.shape, params["params"]) == {"observation_record": {"kernel": (62, 5), "bias": (5,)}}
        order, leaves = features[:, :3], features[:, 3:].reshape(6, 4, 5)
        np.testing.assert_array_equal(order, jax.nn.one_hot(x[:, 32], 3))
        swapped = x.at[:, :8].set(x[:, 16:24]).at[:, 16:24].set(x[:, :8])
        again, _ = self.encode(LEAVES_SPACE, swapped, record=5)
        np.testing.assert_allclose(again[:, 3:].reshape(6, 4, 5), leaves[:, jnp.array([2, 1, 0, 3])], rtol=1e-6)
        assert np.abs(leaves[:, 0] - leaves[:, 2]).max() > 0.1

    def test_tokens_share_one_table_and_keep_their_order(self):
        x = jnp.zeros((1, 72), jnp.uint8).at[0, :3].set(jnp.array([4, 9, 4], jnp.uint8))
        features, params = self.encode(TOKENS_SPACE, x, embedding=2)
        table = params["params"]["observation_embedding"]["table"]
        assert table.shape == (55, 2)
        np.testing.assert_array_equal(features[0].reshape(72, 2), table[x[0]])

    def test_only_whole_repetitions_are_records(self):
        # no layer but those that count integers one by one: 3 + 40 > 32 is embedded in 8
        features, params = self.encode(MultiDiscrete((3, 40)), jnp.ones((2, 2), jnp.int32))
        assert features.shape == (2, 3 + 8)
        assert params["params"].keys() == {"observation_1_embedding"}


class TestActorCritic:
    @pytest.mark.parametrize("shared", [True, False])
    def test_a_sequence_equals_its_steps_and_clears_memory_at_first_steps(self, shared):
        network = actor_critic(spec(), memory=8, shared=shared)
        params = network.initial_params(jax.random.key(0))
        observation = jax.random.normal(jax.random.key(1), (6, 4, 3))
        is_first = jax.random.bernoulli(jax.random.key(2), 0.3, (6, 4)).at[3, 0].set(True)
        start = jax.tree.map(lambda x: x + 0.5, network.initial_carry(4))
        end, logits, values = network.apply(params, start, observation, is_first, method="sequence")

        carry = start
        for t in range(6):
            carry, step_logits, step_value = network.apply(params, carry, observation[t], is_first[t])
            np.testing.assert_allclose(step_logits, logits[t], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(step_value, values[t], rtol=1e-4, atol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), carry, end)

        # row 0 from its first step at t = 3 on is as if nothing had been before
        fresh = network.initial_carry(4)
        _, _, after = network.apply(params, fresh, observation[3:], is_first[3:], method="sequence")
        np.testing.assert_allclose(after[:, 0], values[3:, 0], rtol=1e-4, atol=1e-6)
        # and memory matters elsewhere
        _, _, other = network.apply(params, fresh, observation, jnp.zeros_like(is_first), method="sequence")
        assert np.abs(other - values).max() > 1e-4

    @pytest.mark.parametrize(
        "observation",
        [
            GRID,
            Box(0, 10, (7, 7, 3), "uint8"),
            Box(0, 255, (24, 24, 3), "uint8"),
            Box(0.0, 1.0, (10, 10, 4)),
            Box(0, 127, (8, 4), "uint8"),
            Box(-1.0, 1.0, ()),
            Discrete(5),
            MultiDiscrete((3, 50)),
            LEAVES_SPACE,
            TOKENS_SPACE,
        ],
    )
    @pytest.mark.parametrize("torso", ["auto", "mlp"])
    def test_takes_every_kind_of_observation(self, observation, torso):
        network = actor_critic(spec(observation, Discrete(7)), torso=torso, hidden=(16,), channels=(4, 4))
        params = network.initial_params(jax.random.key(0))
        _, logits, value = network.apply(params, network.initial_carry(5), observe(observation, 5), jnp.ones(5, bool))
        assert logits.shape == (5, 7)
        assert value.shape == (5,)
        assert logits.dtype == value.dtype == jnp.float32

    @pytest.mark.parametrize("action", [Discrete(3), MultiDiscrete((2, 4)), Box(-1.0, 1.0, (2, 2))])
    def test_its_outputs_make_a_distribution(self, action):
        network = actor_critic(spec(action=action))
        params = network.initial_params(jax.random.key(0))
        _, action_params, _ = network.apply(params, network.initial_carry(5), jnp.ones((5, 3)), jnp.ones(5, bool))
        draws = from_action_space(action, action_params).sample(jax.random.key(1))
        assert draws.shape == (5, *action.shape)

    def test_starts_almost_indifferent(self):
        # the policy's last layer has scale 0.01: logits of a few hundredths
        network = actor_critic(spec(action=Discrete(7)))
        params = network.initial_params(jax.random.key(0))
        _, logits, _ = network.apply(
            params, network.initial_carry(9), jax.random.normal(jax.random.key(1), (9, 3)), jnp.ones(9, bool)
        )
        assert 0.0 < np.abs(logits).max() < 0.1

    def test_the_action_mask_is_not_an_input(self):
        network = actor_critic(spec(GRID, Discrete(7)), hidden=(16,))
        params = network.initial_params(jax.random.key(0))
        observation = observe(GRID, 2)

        def logits(mask):
            masked = observation | {"action_mask": jnp.full((2, 7), mask)}
            return network.apply(params, network.initial_carry(2), masked, jnp.ones(2, bool))[1]

        np.testing.assert_array_equal(logits(True), logits(False))

    def test_an_actor_apart_from_the_critic_shares_no_parameter(self):
        network = actor_critic(spec(), shared=False)
        params = network.initial_params(jax.random.key(0))

        def value(params):
            return network.apply(params, network.initial_carry(1), jnp.ones((1, 3)), jnp.ones(1, bool))[2][0]

        gradient = jax.grad(value)(params)["params"]
        assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient["actor_encoder"]))
        assert any((leaf != 0).any() for leaf in jax.tree.leaves(gradient["critic_encoder"]))

    def test_is_hashable_and_equal_by_settings(self):
        assert actor_critic(spec(GRID)) == actor_critic(spec(GRID))
        assert hash(actor_critic(spec(GRID))) == hash(actor_critic(spec(GRID)))
        assert actor_critic(spec()) != actor_critic(spec(), hidden=(32,))

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"activation": "tahn"}, "activation: expected one of .* got 'tahn'; did you mean 'tanh'"),
            ({"torso": "cnn"}, "torso: expected 'mlp', got 'cnn', but the observations of Test-v0 hold no image"),
            ({"torso": "resnet"}, "torso: expected one of auto, mlp, cnn, bag, transformer, got 'resnet'"),
            ({"hidden": (64, 0)}, r"hidden: expected positive integers, got \(64, 0\)"),
            ({"memory": -1}, "memory: expected a width, or 0 for none, got -1"),
            ({"hidden": (), "torso": "bag"}, "hidden: expected at least one width with torso = 'bag', got none"),
            ({"context": 1.5, "torso": "transformer"}, "context: expected a positive integer, got 1.5"),
        ],
    )
    def test_wrong_settings_are_named(self, settings, message):
        with pytest.raises(ValueError, match=message):
            actor_critic(spec(), **settings)
