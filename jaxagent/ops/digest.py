"""Numbers that tell arrays apart."""

import jax
import jax.numpy as jnp

from jaxagent.types import PyTree


def digest(tree: PyTree) -> jax.Array:
    """A hash of each row of leaves [B, ...], uint32 [B]: equal where all leaves are, different almost surely elsewhere."""
    words = jnp.concatenate([_words(leaf) for leaf in jax.tree.leaves(tree)], axis=1)  # [B, n]
    places = jnp.arange(1, words.shape[1] + 1, dtype=jnp.uint32)
    mixed = _avalanche(words ^ _avalanche(places * jnp.uint32(0x9E3779B9)))
    return _avalanche(jnp.sum(mixed, axis=1, dtype=jnp.uint32))


def _words(leaf: jax.Array) -> jax.Array:
    flat = leaf.reshape(leaf.shape[0], -1)
    if not jnp.issubdtype(flat.dtype, jnp.floating):
        return flat.astype(jnp.uint32)
    wide = jnp.where(flat == 0.0, 0.0, flat).astype(jnp.float32)  # -0.0 is 0.0
    return jax.lax.bitcast_convert_type(wide, jnp.uint32)


def _avalanche(x: jax.Array) -> jax.Array:
    """A bijection in which every bit depends on every other (the finaliser of MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
