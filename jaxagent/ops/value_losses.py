"""Losses of value estimates, element by element: mask and average outside."""

import chex
import jax
import jax.numpy as jnp


def squared_error(value: jax.Array, target: jax.Array) -> jax.Array:
    """`(v - target)^2 / 2`."""
    chex.assert_equal_shape((value, target))
    return 0.5 * jnp.square(value - target)


def clipped_squared_error(value: jax.Array, target: jax.Array, old_value: jax.Array, clip_eps: jax.Array | float) -> jax.Array:
    """The larger of the squared errors of `v` and of `v` kept within `clip_eps` of the old estimate.

    The form that PPO implementations use beside the clipped policy objective; `clip_eps` is in units of value.
    """
    chex.assert_equal_shape((value, target, old_value))
    clipped = old_value + jnp.clip(value - old_value, -clip_eps, clip_eps)
    return jnp.maximum(squared_error(value, target), squared_error(clipped, target))
