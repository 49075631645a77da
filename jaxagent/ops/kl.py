"""Keeping a policy near a reference: estimators of `KL(pi || reference)`, and a coefficient that adapts.

The exact divergence needs the reference's distribution, which few actions make cheap. The estimators of Schulman (2020) take
the log probabilities of one action drawn from `pi`. As losses they differ: the expected gradient of k1 is zero, that of k2 is
the gradient of the divergence, that of k3 the gradient of `KL(reference || pi)`.
"""

from typing import Literal

import chex
import jax
import jax.numpy as jnp

from jaxagent.ops.distributions import Distribution
from jaxagent.types import PyTree

Scalar = jax.Array | float
Estimator = Literal["exact", "k1", "k2", "k3"]
ESTIMATORS = ("exact", "k1", "k2", "k3")
_LARGEST_STEP = 0.2  # of kl / target - 1
_RATE = 0.5  # so that one update changes the coefficient by a tenth at most
_BOUNDS = (1e-4, 10.0)


def divergence(estimator: Estimator, policy: Distribution, reference: Distribution, action: PyTree) -> jax.Array:
    """`KL(policy || reference)` of every state, exact or estimated from the action taken. Shape [...]."""
    if estimator == "exact":
        return policy.kl(reference)  # type: ignore[arg-type]
    return estimate(estimator, policy.log_prob(action) - reference.log_prob(action))


def estimate(estimator: Estimator, log_ratio: jax.Array) -> jax.Array:
    """k1, k2 or k3 of `log_ratio = log pi(a | s) - log reference(a | s)`."""
    match estimator:
        case "k1":
            return log_ratio
        case "k2":
            return 0.5 * jnp.square(log_ratio)
        case "k3":
            return jnp.expm1(-log_ratio) + log_ratio
        case _:
            raise ValueError(f"estimator: expected k1, k2 or k3, got {estimator!r}")


def adapted(coef: jax.Array, kl: jax.Array, target: Scalar) -> jax.Array:
    """The coefficient after an update that had this divergence (Ziegler et al. 2019).

    `coef * (1 + 0.5 * clip(kl / target - 1, -0.2, 0.2))`, within [1e-4, 10].

    Args:
      coef: scalar.
      kl: mean of the divergence over states, in nats a step.
      target: what it is to be, likewise.
    """
    chex.assert_rank((coef, kl), 0)
    step = _RATE * jnp.clip(kl / target - 1.0, -_LARGEST_STEP, _LARGEST_STEP)
    return jnp.clip(coef * (1.0 + step), *_BOUNDS)
