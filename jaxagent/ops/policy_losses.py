"""Losses of policies, element by element: mask and average outside. All arrays have one shape, say `[N]` or `[T, B]`."""

import chex
import jax
import jax.numpy as jnp

Scalar = jax.Array | float


def clipped_surrogate(
    log_ratio: jax.Array,
    advantage: jax.Array,
    clip_eps: Scalar,
    *,
    clip_eps_high: Scalar | None = None,
    dual_clip: Scalar | None = None,
) -> jax.Array:
    """PPO's clipped objective (Schulman et al. 2017, eq. 7), negated: `-min(r A, clip(r, 1 - eps, 1 + eps) A)`.

    Args:
      log_ratio: `log pi(a | s) - log pi_old(a | s)`; `r` is its exponential.
      advantage: A, without gradient.
      clip_eps: epsilon, positive.
      clip_eps_high: another epsilon for the upper bound (clip-higher, Yu et al. 2025).
      dual_clip: c > 1; where A < 0 the objective is at least `c A`, whatever the ratio (Ye et al. 2020).
    """
    chex.assert_equal_shape((log_ratio, advantage))
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + (clip_eps if clip_eps_high is None else clip_eps_high))
    objective = jnp.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is not None:
        objective = jnp.where(advantage < 0, jnp.maximum(objective, dual_clip * advantage), objective)
    return -objective


def clipped_importance(
    log_ratio: jax.Array, log_prob: jax.Array, advantage: jax.Array, clip_eps: Scalar, *, clip_eps_high: Scalar | None = None
) -> jax.Array:
    """CISPO's objective (MiniMax 2025), negated: `-sg(clip(r)) A log pi(a | s)`, in which no action loses its gradient."""
    chex.assert_equal_shape((log_ratio, log_prob, advantage))
    high = clip_eps if clip_eps_high is None else clip_eps_high
    weight = jnp.clip(jnp.exp(jax.lax.stop_gradient(log_ratio)), 1.0 - clip_eps, 1.0 + high)
    return -weight * advantage * log_prob


def of_sequences(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
    """GSPO's ratio of whole sequences (Zheng et al. 2025), as a log ratio for every step.

    Its value is the mean of the sequence's log ratios, its gradient that of each step's own: summed over the steps and divided
    by their number, the gradient of the mean.

    Args:
      log_ratio: [..., T].
      mask: bool [..., T], the steps of the sequence.
    """
    chex.assert_equal_shape((log_ratio, mask))
    total = jnp.sum(jnp.where(mask, log_ratio, 0.0), axis=-1, keepdims=True)
    mean = total / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    return jax.lax.stop_gradient(mean - log_ratio) + log_ratio


def kl_estimate(log_ratio: jax.Array) -> jax.Array:
    """`KL(pi_old || pi)` estimated from samples of `pi_old`: `r - 1 - log r`, never negative (k3 of Schulman 2020).

    For reports and stopping; as a loss its gradient is not that of the divergence.
    """
    return jnp.expm1(log_ratio) - log_ratio


def is_clipped(log_ratio: jax.Array, clip_eps: Scalar) -> jax.Array:
    """Whether the ratio left `[1 - eps, 1 + eps]`, as float32."""
    return (jnp.abs(jnp.exp(log_ratio) - 1.0) > clip_eps).astype(jnp.float32)
