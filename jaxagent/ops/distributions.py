"""Distributions over actions.

Each has `sample(key)`, `mode()`, `log_prob(action)`, `entropy()` and `kl(other)`. Batch axes `[...]` lead; `A` is the number of
actions. All are pytrees.
"""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from jaxagent.types import ActionSpace, Box, Discrete, MultiDiscrete, PyTree

_LOG_2PI = math.log(2.0 * math.pi)


def mask_logits(logits: jax.Array, mask: jax.Array) -> jax.Array:
    """Makes the actions where `mask` is False impossible; both are [..., A].

    The fill is finite, so that entropies and gradients are too; a row without a legal action becomes uniform.
    """
    chex.assert_equal_shape((logits, mask))
    return jnp.where(mask, logits, jnp.finfo(logits.dtype).min)


class Categorical(NamedTuple):
    """Over `0 .. A - 1`. Actions are int32 [...]."""

    logits: jax.Array  # [..., A], need not be normalised

    def sample(self, key: jax.Array) -> jax.Array:
        noise = jax.random.gumbel(key, self.logits.shape, self.logits.dtype)
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        chex.assert_shape(action, self.logits.shape[:-1])
        # compared, not gathered: the gradient of a gather is a scatter
        chosen = action[..., None] == jnp.arange(self.logits.shape[-1], dtype=action.dtype)
        return jnp.sum(jnp.where(chosen, self._log_probs(), 0.0), axis=-1)

    def entropy(self) -> jax.Array:
        log_p = self._log_probs()
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

    def kl(self, other: "Categorical") -> jax.Array:
        """`KL(self || other)`, exact."""
        log_p = self._log_probs()
        return jnp.sum(jnp.exp(log_p) * (log_p - other._log_probs()), axis=-1)

    def _log_probs(self) -> jax.Array:
        return jax.nn.log_softmax(self.logits, axis=-1)


class MultiCategorical(NamedTuple):
    """Independent categoricals. Actions are int32 [..., n], one entry a part."""

    parts: tuple[Categorical, ...]

    def sample(self, key: jax.Array) -> jax.Array:
        part_keys = jax.random.split(key, len(self.parts))
        return jnp.stack([part.sample(part_key) for part, part_key in zip(self.parts, part_keys, strict=True)], axis=-1)

    def mode(self) -> jax.Array:
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        chex.assert_axis_dimension(action, -1, len(self.parts))
        return _total([part.log_prob(action[..., i]) for i, part in enumerate(self.parts)])

    def entropy(self) -> jax.Array:
        return _total([part.entropy() for part in self.parts])

    def kl(self, other: "MultiCategorical") -> jax.Array:
        """`KL(self || other)`, exact."""
        return _total([mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True)])


@struct.dataclass
class DiagGaussian:
    """Independent normals, one an element of an action [..., *shape].

    Samples are unbounded. Whoever steps the environment clips them to its box; `log_prob` is that of the unclipped action.
    """

    mean: jax.Array  # [..., size]
    log_std: jax.Array  # [size] or [..., size]
    shape: tuple[int, ...] = struct.field(pytree_node=False)

    def sample(self, key: jax.Array) -> jax.Array:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self._action(self.mean + jnp.exp(self.log_std) * noise)

    def mode(self) -> jax.Array:
        return self._action(self.mean)

    def log_prob(self, action: jax.Array) -> jax.Array:
        batch = self.mean.shape[:-1]
        chex.assert_shape(action, (*batch, *self.shape))
        z = (action.reshape(self.mean.shape) - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(0.5 * jnp.square(z) + self.log_std + 0.5 * _LOG_2PI, axis=-1)

    def entropy(self) -> jax.Array:
        per_element = self.log_std + 0.5 * (1.0 + _LOG_2PI)
        return jnp.broadcast_to(per_element, self.mean.shape).sum(axis=-1)

    def kl(self, other: "DiagGaussian") -> jax.Array:
        """`KL(self || other)`, exact."""
        variance_ratio = jnp.exp(2.0 * (self.log_std - other.log_std))
        distance = jnp.square((self.mean - other.mean) * jnp.exp(-other.log_std))
        return jnp.sum(0.5 * (variance_ratio + distance - 1.0) + other.log_std - self.log_std, axis=-1)

    def _action(self, flat: jax.Array) -> jax.Array:
        return flat.reshape(*self.mean.shape[:-1], *self.shape)


Distribution = Categorical | MultiCategorical | DiagGaussian


def _total(of_parts: list[jax.Array]) -> jax.Array:
    return jnp.sum(jnp.stack(of_parts), axis=0)


def num_params(space: ActionSpace) -> int:
    """How many network outputs a distribution over `space` takes an action."""
    match space:
        case Discrete():
            return space.n
        case MultiDiscrete():
            return sum(space.nvec)
        case Box():
            return space.size


def from_action_space(space: ActionSpace, params: PyTree, mask: jax.Array | None = None) -> Distribution:
    """The distribution over `space` that network outputs stand for.

    Args:
      space: the action space.
      params: logits [..., n] (discrete) or [..., sum(nvec)] (multi-discrete); `(mean, log_std)` for a box.
      mask: bool, like the logits; False where an action is illegal. Boxes have none.
    """
    match space:
        case Discrete():
            return Categorical(params if mask is None else mask_logits(params, mask))
        case MultiDiscrete():
            logits = params if mask is None else mask_logits(params, mask)
            ends = [sum(space.nvec[: i + 1]) for i in range(len(space.nvec) - 1)]
            return MultiCategorical(tuple(Categorical(part) for part in jnp.split(logits, ends, axis=-1)))
        case Box():
            mean, log_std = params
            return DiagGaussian(mean, log_std, space.shape)
