"""Advantages and returns. Leaves are `[T, B]`; transition `t` leads from time `t - 1` to time `t`."""

import chex
import jax
import jax.numpy as jnp

Scalar = jax.Array | float


def gae(
    r_t: jax.Array,
    v_tm1: jax.Array,
    v_t: jax.Array,
    terminated_t: jax.Array,
    truncated_t: jax.Array,
    *,
    gamma: Scalar,
    lambda_: Scalar,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation (Schulman et al. 2016, eqs. 11-16), right at time limits.

        delta_t = r_t + gamma * (1 - terminated_t) * v_t - v_tm1
        A_t     = delta_t + gamma * lambda * (1 - done_t) * A_{t+1}      done_t = terminated_t or truncated_t

    A termination has no value beyond it. A truncation has: it only ends the sum, and `v_t` bootstraps it.

    Args:
      r_t: rewards [T, B].
      v_tm1: values [T, B] of the observations acted on.
      v_t: values [T, B] of the observations reached, before any reset.
      terminated_t: bool [T, B], the step ended its episode for good.
      truncated_t: bool [T, B], the step hit a time limit.
      gamma: discount in [0, 1].
      lambda_: trace decay in [0, 1].

    Returns:
      Advantages and value targets (advantage plus `v_tm1`), both [T, B] without gradient.
    """
    chex.assert_rank(r_t, 2)
    chex.assert_equal_shape((r_t, v_tm1, v_t, terminated_t, truncated_t))
    delta_t = r_t + gamma * jnp.where(terminated_t, 0.0, v_t) - v_tm1
    decay_t = jnp.where(terminated_t | truncated_t, 0.0, gamma * lambda_)

    def backward(advantage: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, decay = step
        advantage = delta + decay * advantage
        return advantage, advantage

    advantage_t = jax.lax.scan(backward, jnp.zeros_like(delta_t[0]), (delta_t, decay_t), reverse=True)[1]
    return jax.lax.stop_gradient((advantage_t, advantage_t + v_tm1))
