"""Losses of policies, element by element: mask and average outside. All arrays have one shape, say `[N]` or `[T, B]`."""

import chex
import jax
import jax.numpy as jnp

Scalar = jax.Array | float


def clipped_surrogate(log_ratio: jax.Array, advantage: jax.Array, clip_eps: Scalar) -> jax.Array:
    """PPO's clipped objective (Schulman et al. 2017, eq. 7), negated: `-min(r A, clip(r, 1 - eps, 1 + eps) A)`.

    Args:
      log_ratio: `log pi(a | s) - log pi_old(a | s)`; `r` is its exponential.
      advantage: A, without gradient.
      clip_eps: epsilon, positive.
    """
    chex.assert_equal_shape((log_ratio, advantage))
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def kl_estimate(log_ratio: jax.Array) -> jax.Array:
    """`KL(pi_old || pi)` estimated from samples of `pi_old`: `r - 1 - log r`, never negative (k3 of Schulman 2020).

    For reports and stopping; as a loss its gradient is not that of the divergence.
    """
    return jnp.expm1(log_ratio) - log_ratio


def is_clipped(log_ratio: jax.Array, clip_eps: Scalar) -> jax.Array:
    """Whether the ratio left `[1 - eps, 1 + eps]`, as float32."""
    return (jnp.abs(jnp.exp(log_ratio) - 1.0) > clip_eps).astype(jnp.float32)
