"""Gradient steps whose every setting is traced: changing one compiles nothing."""

import jax
import jax.numpy as jnp
import optax

from jaxagent.types import PyTree

Scalar = jax.Array | float


def adam_init(params: PyTree) -> optax.OptState:
    """State of `adam_step`: zero moments of every parameter, and a count."""
    return optax.scale_by_adam().init(params)


def adam_step(
    params: PyTree,
    gradients: PyTree,
    state: optax.OptState,
    *,
    lr: Scalar,
    max_norm: Scalar,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
) -> tuple[PyTree, optax.OptState, jax.Array]:
    """One step of Adam (Kingma and Ba 2015) on gradients scaled down to a global norm of at most `max_norm`.

    Returns:
      Parameters, state, and the gradients' global norm before scaling.
    """
    norm = optax.tree.norm(gradients)
    scale = max_norm / jnp.maximum(norm, max_norm)
    scaled = jax.tree.map(lambda g: g * scale, gradients)
    directions, state = optax.scale_by_adam(b1, b2, eps).update(scaled, state)
    params = jax.tree.map(lambda p, d: p - (lr * d).astype(p.dtype), params, directions)
    return params, state, norm


def anneal(initial: Scalar, final: Scalar | None, update: jax.Array, num_updates: Scalar | None) -> Scalar:
    """Linear in the index of the update: `initial` at 0, `final` at `num_updates` and later; constant without a final."""
    if final is None or num_updates is None:
        return initial
    progress = jnp.clip(update.astype(jnp.float32) / num_updates, 0.0, 1.0)
    return initial + progress * (final - initial)
