"""Policy and value networks. Letters: `T` time, `B` batch, `N` rows, `H` memory width."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxagent.networks.layers import GRU, Dense
from jaxagent.networks.torsos import ACTIVATIONS, Torso, has_image
from jaxagent.networks.transformer import Size, Transformer, empty_cache, is_token_stream
from jaxagent.ops.distributions import num_params
from jaxagent.types import ActionSpace, Box, Carry, DictSpace, EnvSpec, PyTree, Space, is_count


class Encoder(nn.Module):
    """A torso, followed by a memory if `memory` is positive."""

    torso: Torso
    memory: int

    def setup(self) -> None:
        if self.memory:
            self.gru = GRU(self.memory)

    def __call__(
        self, carry: Carry, observation: PyTree, is_first: jax.Array, *, num_tokens: int | None = None
    ) -> tuple[Carry, jax.Array]:
        """Observations, leaves [T, B, ...], to features [T, B, ...]. The carry is [B, H], or empty without memory."""
        del num_tokens
        carry = initial_memory(self.memory, is_first.shape[1]) if carry is None else carry
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), observation)
        features = self.torso(rows).reshape(*is_first.shape, -1)
        return self.gru(carry, features, is_first) if self.memory else (carry, features)

    def act(self, carry: Carry, observation: PyTree, is_first: jax.Array) -> tuple[Carry, jax.Array]:
        """One step, leaves [B, ...]."""
        carry, features = self(carry, *jax.tree.map(lambda x: x[None], (observation, is_first)))
        return carry, features[0]


def initial_memory(width: int, num_rows: int) -> Carry:
    """Of a GRU, [N, H]; empty without one."""
    return jnp.zeros((num_rows, width), jnp.float32) if width else ()


class ActorCritic(nn.Module):
    """Parameters of the action distribution and a value, from one encoder or from one each.

    Build it with `actor_critic`.

    Attributes:
      observation: structure of one observation.
      action: structure of one action.
      hidden: widths of the dense layers.
      channels: features of the convolutions; none if images are flattened.
      activation: of the dense layers and convolutions.
      film: whether other entries of an observation modulate its images.
      shared: whether actor and critic share one encoder.
      memory: H, width of the recurrent memory, or context of the transformer; 0 for none.
      bag: whether vectors of integers of one range are summed embeddings.
      transformer: its size, where one encodes.
      episode_tokens: bound of the tokens that an episode shows, where it shows any.
      critic: whether there is one; values are zero without.
    """

    observation: Space
    action: ActionSpace
    hidden: tuple[int, ...]
    channels: tuple[int, ...]
    activation: str
    film: bool
    shared: bool
    memory: int
    bag: bool = False
    transformer: Size | None = None
    episode_tokens: int | None = None
    critic: bool = True

    def setup(self) -> None:
        names = ("encoder",) if self.shared else ("actor_encoder", "critic_encoder")[: 1 + self.critic]
        self.encoders = [self._encoder(name) for name in names]
        self.actor_head = Dense(num_params(self.action), scale=0.01)
        if self.critic:
            self.critic_head = Dense(1, scale=1.0)
        if isinstance(self.action, Box):
            self.log_std = self.param("log_std", nn.initializers.zeros_init(), (self.action.size,))

    def __call__(self, carry: Carry, observation: PyTree, is_first: jax.Array) -> tuple[Carry, PyTree, jax.Array]:
        """One step.

        Args:
          carry: memory before the step, as `initial_carry` makes it; rows are cleared where `is_first`.
          observation: leaves [B, ...].
          is_first: bool [B].

        Returns:
          The next carry, what `ops.distributions.from_action_space` takes, and values [B].
        """
        carries, features = zip(
            *(e.act(c, observation, is_first) for e, c in zip(self.encoders, carry, strict=True)), strict=True
        )
        return carries, *self._heads(features)

    def sequence(
        self, carry: Carry, observation: PyTree, is_first: jax.Array, num_tokens: int | None = None
    ) -> tuple[Carry, PyTree, jax.Array]:
        """The same for consecutive steps [T, B, ...], from the carry before the first of them.

        `num_tokens` bounds the tokens of a row, where a transformer reads them.
        """
        encoded = [e(c, observation, is_first, num_tokens=num_tokens) for e, c in zip(self.encoders, carry, strict=True)]
        carries, features = zip(*encoded, strict=True)
        return carries, *self._heads(features)

    def episodes(self, observation: PyTree, is_first: jax.Array) -> tuple[PyTree, jax.Array]:
        """The same for rows that hold one episode each from its start [T, B, ...], without the carry."""
        features = [e(None, observation, is_first, num_tokens=self.episode_tokens)[1] for e in self.encoders]
        return self._heads(features)

    def initial_carry(self, num_rows: int) -> Carry:
        """An empty memory of `num_rows` rows: one entry an encoder."""
        if self.transformer is not None:
            entry: Carry = empty_cache(self.observation, self.transformer, num_rows)
        else:
            entry = initial_memory(self.memory, num_rows)
        return (entry,) if self.shared or not self.critic else (entry, entry)

    def _heads(self, features: Sequence[jax.Array]) -> tuple[PyTree, jax.Array]:
        action_params: PyTree = self.actor_head(features[0])
        if isinstance(self.action, Box):
            action_params = (action_params, jnp.broadcast_to(self.log_std, action_params.shape))
        value = self.critic_head(features[-1])[..., 0] if self.critic else jnp.zeros(features[0].shape[:-1])
        return action_params, value

    @property
    def reads_tokens(self) -> bool:
        """Whether a transformer reads a stream of tokens."""
        return self.transformer is not None and is_token_stream(self.observation)

    def zero_observation(self) -> PyTree:
        """One observation of zeros: its leaves show shapes and dtypes."""
        return _zeros(self.observation)

    def initial_params(self, key: jax.Array) -> PyTree:
        """Fresh parameters."""
        observation = jax.tree.map(lambda x: x[None], self.zero_observation())
        return self.init(key, self.initial_carry(1), observation, jnp.ones(1, bool))

    def check_spec(self, spec: EnvSpec) -> None:
        """Raises ValueError unless the network is for an environment's observations and actions."""
        if (self.observation, self.action) != (spec.observation, spec.action):
            raise ValueError(f"network: expected one for the observations and actions of {spec.name}, got one for others")

    def checked_params(self, params: PyTree, *, field: str = "params") -> PyTree:
        """Copies of given parameters. Those of a critic that this network does not have are left out.

        Raises:
          ValueError: they do not fit the network; the message begins with `field`.
        """
        expected = jax.eval_shape(self.initial_params, jax.random.key(0))
        if not self.critic and isinstance(params, Mapping) and "params" in params:
            params = {"params": {name: part for name, part in params["params"].items() if not name.startswith("critic")}}
        ours, theirs = _shapes(expected), _shapes(params)
        for name in (*ours, *theirs):
            if ours.get(name) != theirs.get(name):
                wanted, found = (f"an array {list(of[name])}" if name in of else "none" for of in (ours, theirs))
                raise ValueError(f"{field}: expected those of this network; of {name} expected {wanted}, got {found}")
        return jax.tree.map(lambda x, like: jnp.array(x, like.dtype), params, expected)

    def _encoder(self, name: str) -> Encoder | Transformer:
        torso = Torso(self.observation, self.hidden, self.channels, self.activation, self.film, self.bag)
        if self.transformer is not None:
            return Transformer(self.observation, self.transformer, torso, name=name)
        return Encoder(torso, self.memory, name=name)


def actor_critic(
    spec: EnvSpec,
    *,
    torso: Literal["auto", "mlp", "cnn", "bag", "transformer"] = "auto",
    hidden: tuple[int, ...] = (64, 64),
    channels: tuple[int, ...] = (16, 32),
    activation: str = "tanh",
    film: bool = False,
    shared: bool = True,
    memory: int = 0,
    layers: int = 2,
    heads: int = 4,
    width: int = 64,
    context: int = 128,
    bf16: bool = False,
    remat: bool = False,
    critic: bool = True,
) -> ActorCritic:
    """Networks for an environment.

    Args:
      spec: what the environment takes and gives.
      torso: `cnn` convolves over images, `mlp` flattens them, `auto` convolves where there is an image. `bag` adds up an
        embedding for each token at its place. `transformer` attends to all tokens of the episode, or to all its observations.
      hidden: widths of the dense layers.
      channels: features of the convolutions.
      activation: elu, gelu, relu, silu or tanh.
      film: whether the other entries of an observation, such as the mission, scale and shift the features of its images' cells
        (Perez et al. 2018).
      shared: one encoder for actor and critic, or one each.
      memory: width of a recurrent memory (GRU) behind the encoder; 0 for none.
      layers, heads, width: of a transformer.
      context: tokens, or observations, that it looks back on.
      bf16: whether a transformer computes products in bfloat16.
      remat: whether it computes activations once more for the gradient, to need less memory.
      critic: whether there is a critic. PPO needs one; `grpo`, `bc` and `rejection` do without.

    Raises:
      ValueError: a setting has no meaning, or `cnn` was asked for without an image.
    """
    _check_known("torso", torso, ("auto", "mlp", "cnn", "bag", "transformer"))
    _check_known("activation", activation, ACTIVATIONS)
    _check_positive("hidden", hidden)
    if torso == "bag" and not hidden:
        raise ValueError("hidden: expected at least one width with torso = 'bag', got none")
    _check_positive("channels", channels)
    if not is_count(memory, 0):
        raise ValueError(f"memory: expected a width, or 0 for none, got {memory}")
    images = has_image(spec.observation)
    if torso == "cnn" and not images:
        raise ValueError(f"torso: expected 'mlp', got 'cnn', but the observations of {spec.name} hold no image")
    transformer = None
    if torso == "transformer":
        transformer = _transformer_size(layers, heads, width, context, bf16, remat)
        if memory:
            raise ValueError(f"memory: expected 0, since a transformer remembers by itself, got {memory}")
        if is_token_stream(spec.observation) and spec.max_tokens is None:
            raise ValueError("torso: expected no transformer for a window of tokens; it reads what each step adds")
    return ActorCritic(
        observation=spec.observation,
        action=spec.action,
        hidden=tuple(hidden),
        channels=tuple(channels) if images and torso != "mlp" else (),
        activation=activation,
        film=film,
        shared=shared,
        memory=context if transformer else memory,
        bag=torso == "bag",
        transformer=transformer,
        episode_tokens=spec.max_tokens,
        critic=critic,
    )


def _transformer_size(layers: int, heads: int, width: int, context: int, bf16: bool, remat: bool) -> Size:
    for field, value in (("layers", layers), ("heads", heads), ("width", width), ("context", context)):
        if not is_count(value):
            raise ValueError(f"{field}: expected a positive integer, got {value}")
    if width % (2 * heads):
        raise ValueError(f"width: expected a multiple of twice the {heads} heads, got {width}")
    return Size(layers, heads, width, context, bf16, remat)


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """Of every array in a tree, by its path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): jnp.shape(leaf) for path, leaf in leaves}


def _zeros(space: Space) -> PyTree:
    if isinstance(space, DictSpace):
        return {name: _zeros(entry) for name, entry in space.fields}
    return jnp.zeros(space.shape, space.dtype)


def _check_known(field: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        nearest = difflib.get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{field}: expected one of {', '.join(known)}, got {value!r}{hint}")


def _check_positive(field: str, sizes: Iterable[int]) -> None:
    if not all(is_count(size) for size in sizes):
        raise ValueError(f"{field}: expected positive integers, got {sizes}")
