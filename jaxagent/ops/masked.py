"""Means over the entries that count, also of arrays that are spread over mapped `axes` (see `across`)."""

import chex
import jax
import jax.numpy as jnp

from jaxagent.ops.across import Axes, largest, total


def mean_weights(mask: jax.Array, axes: Axes = ()) -> jax.Array:
    """Weights of a mean over the entries where `mask` holds, float32 of the mask's shape; they sum to 1.

    All zero where nothing counts, so that the mean of nothing is zero.
    """
    return mask.astype(jnp.float32) / jnp.maximum(total(mask.sum(dtype=jnp.float32), axes), 1.0)


def weighted_mean(x: jax.Array, weights: jax.Array, axes: Axes = ()) -> jax.Array:
    """`sum(weights * x)`, a scalar. Both have the same shape."""
    chex.assert_equal_shape((x, weights))
    return total(jnp.sum(weights * x), axes)


def weighted_variance(x: jax.Array, weights: jax.Array, axes: Axes = ()) -> jax.Array:
    """`sum(weights * (x - mean) ** 2)`, a scalar."""
    return weighted_mean(jnp.square(x - weighted_mean(x, weights, axes)), weights, axes)


def standardize(x: jax.Array, weights: jax.Array, axes: Axes = (), *, epsilon: float = 1e-8) -> jax.Array:
    """`x` with weighted mean 0 and standard deviation 1.

    Entries that all agree up to float noise become zeros: dividing would blow the noise up to 1.
    """
    mean = weighted_mean(x, weights, axes)
    deviation = jnp.sqrt(weighted_variance(x, weights, axes))
    noise = 1e-6 * largest(jnp.max(jnp.where(weights > 0, jnp.abs(x), 0.0)), axes)
    return jnp.where(deviation > noise, (x - mean) / (deviation + epsilon), 0.0)
