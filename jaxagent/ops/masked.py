"""Means over the entries that count."""

import chex
import jax
import jax.numpy as jnp


def mean_weights(mask: jax.Array) -> jax.Array:
    """Weights of a mean over the entries where `mask` holds, float32 of the mask's shape; they sum to 1.

    All zero where nothing counts, so that the mean of nothing is zero.
    """
    return mask.astype(jnp.float32) / jnp.maximum(mask.sum(dtype=jnp.float32), 1.0)


def weighted_mean(x: jax.Array, weights: jax.Array) -> jax.Array:
    """`sum(weights * x)`, a scalar. Both have the same shape."""
    chex.assert_equal_shape((x, weights))
    return jnp.sum(weights * x)


def weighted_variance(x: jax.Array, weights: jax.Array) -> jax.Array:
    """`sum(weights * (x - mean) ** 2)`, a scalar."""
    return weighted_mean(jnp.square(x - weighted_mean(x, weights)), weights)


def standardize(x: jax.Array, weights: jax.Array, *, epsilon: float = 1e-8) -> jax.Array:
    """`x` with weighted mean 0 and standard deviation 1.

    Entries that all agree up to float noise become zeros: dividing would blow the noise up to 1.
    """
    mean = weighted_mean(x, weights)
    deviation = jnp.sqrt(weighted_variance(x, weights))
    noise = 1e-6 * jnp.max(jnp.where(weights > 0, jnp.abs(x), 0.0))
    return jnp.where(deviation > noise, (x - mean) / (deviation + epsilon), 0.0)
