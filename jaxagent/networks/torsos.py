"""From observations to features."""

from collections.abc import Callable
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxagent.networks.layers import Conv, Dense, Embedding
from jaxagent.types import Box, DictSpace, Discrete, MultiDiscrete, PyTree, Space

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "elu": nn.elu,
    "gelu": nn.gelu,
    "relu": nn.relu,
    "silu": nn.silu,
    "tanh": jnp.tanh,
}

# Observation entries that are not inputs.
NOT_INPUTS = ("action_mask",)

_LARGEST_ONE_HOT = 32
_LARGEST_SIDE = 16  # images beyond it are halved by strides


class Torso(nn.Module):
    """Encodes every entry of an observation, concatenates, and applies dense layers.

    Integers become one-hot vectors, or embeddings where there are many. A vector of integers that repeats a record of several
    (the leaves of a mission) goes through one dense layer that the records share; integers of one range (the tokens of a
    mission) share their embedding. Images are embedded if they hold symbols (uint8 [X, Y], or uint8 [X, Y, 3] of type, colour
    and state), scaled if they hold pixels, and go through convolutions if there are `channels`. Anything else is flattened.

    Attributes:
      space: structure of one observation; its entry `action_mask` is left out.
      hidden: widths of the dense layers.
      channels: features of the convolutions; none means that images are flattened.
      activation: name in `ACTIVATIONS`.
      bag: whether vectors of integers of one range become the sum of an embedding for each integer at its place.
      film: whether the other entries scale and shift the features of every cell of an image (FiLM, Perez et al. 2018), so that
        what counts in the image can depend on the mission.
      embedding: length of an embedding vector; of cells, three times that with FiLM.
      record: features of a record.
    """

    space: Space
    hidden: tuple[int, ...]
    channels: tuple[int, ...]
    activation: str
    film: bool = False
    bag: bool = False
    embedding: int = 8
    record: int = 16

    @nn.compact
    def __call__(self, observation: PyTree) -> jax.Array:
        """Observations, leaves [N, ...], to features [N, hidden[-1]]."""
        activation = ACTIVATIONS[self.activation]
        images, others = split_images(inputs_of(self.space, observation))
        features = [self._encode(*entry) for entry in others]
        condition = jnp.concatenate(features, axis=-1) if self.film and features else None
        x = jnp.concatenate([*(self._image(*entry, condition) for entry in images), *features], axis=-1)
        for i, width in enumerate(self.hidden):
            x = activation(Dense(width, name=f"dense_{i}")(x))
        return x

    def _encode(self, name: str, space: Space, x: jax.Array) -> jax.Array:
        """One entry [N, ...] that is no image to [N, features]."""
        if isinstance(space, Discrete):
            return self._integers(name, space.n, x)
        if isinstance(space, MultiDiscrete):
            return self._vector(name, space.nvec, x)
        return x.reshape(x.shape[0], -1).astype(jnp.float32)

    def _vector(self, name: str, sizes: tuple[int, ...], x: jax.Array) -> jax.Array:
        """Integers [N, len(sizes)] to [N, features]."""
        length, count = _repetition(sizes)
        if length == 1 and self.bag:
            places = jnp.arange(len(sizes)) * sizes[0]
            return Embedding(len(sizes) * sizes[0], self.hidden[0], name=f"{name}_embedding")(x + places).sum(axis=-2)
        if length == 1:
            return self._integers(name, sizes[0], x).reshape(x.shape[0], -1)
        repeated = length * count if count > 1 else 0
        parts = [self._integers(f"{name}_{i}", sizes[i], x[:, i]) for i in range(repeated, len(sizes))]
        if repeated:
            records = multi_hot(sizes[:length], x[:, :repeated].reshape(-1, count, length))
            features = ACTIVATIONS[self.activation](Dense(self.record, name=f"{name}_record")(records))
            parts.append(features.reshape(x.shape[0], -1))
        return jnp.concatenate(parts, axis=-1)

    def _integers(self, name: str, num: int, x: jax.Array) -> jax.Array:
        """Integers [...] below `num` to [..., features]."""
        if num <= _LARGEST_ONE_HOT:
            return jax.nn.one_hot(x, num, dtype=jnp.float32)
        return Embedding(num, self.embedding, name=f"{name}_embedding")(x)

    def _image(self, name: str, space: Box, x: jax.Array, condition: jax.Array | None) -> jax.Array:
        """An image [N, ...] to [N, features], given the features [N, C] of the other entries."""
        x = self._cells(name, space, x)
        if condition is not None:
            scale, shift = jnp.split(Dense(2 * x.shape[-1], scale=1.0, name=f"{name}_film")(condition), 2, axis=-1)
            x = ACTIVATIONS[self.activation](x * (1.0 + scale[:, None, None]) + shift[:, None, None])
        for i, features in enumerate(self.channels):
            stride = 2 if max(x.shape[1:3]) > _LARGEST_SIDE else 1
            x = ACTIVATIONS[self.activation](Conv(features, stride, name=f"{name}_conv_{i}")(x))
        return x.reshape(x.shape[0], -1)

    def _cells(self, name: str, space: Box, x: jax.Array) -> jax.Array:
        """Float features [N, X, Y, channels] of every cell."""
        num = _num_symbols(space)
        if num is None:
            scale = 255.0 if space.dtype == "uint8" and space.high == 255 else 1.0
            return x.astype(jnp.float32) / scale
        width = self.embedding * (3 if self.film else 1)
        if len(space.shape) == 2:
            return Embedding(num, width, name=f"{name}_embedding")(x)
        # one table for the three channels, each with its own part
        apart = x.astype(jnp.int32) + jnp.arange(3) * num
        return Embedding(3 * num, width, name=f"{name}_embedding")(apart).sum(axis=-2)


def inputs_of(space: Space, observation: PyTree) -> list[tuple[str, Space, jax.Array]]:
    """Name, space and value of every entry that a network takes in. A space that is no dict is one entry."""
    if not isinstance(space, DictSpace):
        return [("observation", space, observation)]
    return [(name, entry, observation[name]) for name, entry in space.fields if name not in NOT_INPUTS]


def split_images(
    entries: list[tuple[str, Space, jax.Array]],
) -> tuple[list[tuple[str, Box, jax.Array]], list[tuple[str, Space, jax.Array]]]:
    """Entries that are images, and the others."""
    images = [(name, space, x) for name, space, x in entries if is_image(space)]
    return images, [entry for entry in entries if not is_image(entry[1])]


def has_image(space: Space) -> bool:
    """Whether an observation holds something to convolve over."""
    entries = [entry for _, entry in space.fields] if isinstance(space, DictSpace) else [space]
    return any(is_image(entry) for entry in entries)


def is_image(space: Space) -> TypeGuard[Box]:
    """A box [X, Y, channels], or a grid of symbols [X, Y] in uint8."""
    return isinstance(space, Box) and (len(space.shape) == 3 or _num_symbols(space) is not None)


def multi_hot(sizes: tuple[int, ...], x: jax.Array) -> jax.Array:
    """The one-hot vectors of integers [..., len(sizes)] side by side, float32 [..., sum(sizes)]."""
    entries = np.repeat(np.arange(len(sizes)), sizes)
    values = np.concatenate([np.arange(size) for size in sizes]).astype(x.dtype)
    return (x[..., entries] == values).astype(jnp.float32)


def _repetition(sizes: tuple[int, ...]) -> tuple[int, int]:
    """The shortest record that a vector repeats, to its end but for a shorter rest: its length, and how often it comes."""
    for length in range(1, len(sizes) // 2 + 1):
        count = len(sizes) // length
        if sizes[:length] * count == sizes[: length * count]:
            return length, count
    return len(sizes), 1


def _num_symbols(space: Box) -> int | None:
    """How many symbols a grid's cells (or each of their three channels) may hold; None if the cells are no symbols."""
    if space.dtype != "uint8" or not isinstance(space.high, int | float):
        return None
    symbols = len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[-1] == 3 and 1 < space.high < 128)
    return int(space.high) + 1 if symbols else None
