"""Orthogonal initialisation from matrix products alone."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Initializer = Callable[..., jax.Array]

_COARSE_STEPS = 14
_FINE_STEPS = 7


def orthogonal(scale: float = 1.0) -> Initializer:
    """Matrices `[fan_in, fan_out]` with orthonormal rows or columns, whichever are fewer, times `scale` (Saxe et al. 2014).

    The usual QR factorisation is a LAPACK call, and programs with many batched ones deadlock some versions of jaxlib on few
    cores. Here a normal draw is brought to the nearest orthogonal matrix by Newton-Schulz iterations (Bjorck and Bowie 1971).
    Leading axes of the shape count as input.
    """

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        rows, columns = _matrix_shape(shape)
        draw = jax.random.normal(key, (rows, columns), jnp.float32)
        wide = rows < columns
        x = nearest_orthogonal(draw.T if wide else draw)
        return (scale * (x.T if wide else x)).reshape(shape).astype(dtype)

    return init


def nearest_orthogonal(x: jax.Array) -> jax.Array:
    """The matrix with orthonormal columns nearest to `x` [m, n], m >= n: all its singular values become 1.

    The coarse polynomial multiplies small singular values by 3.4 a step but only brings them near 1 (coefficients of the Muon
    optimiser, Jordan et al. 2024); the fine one converges quadratically from there.
    """

    def coarse(_: int, x: jax.Array) -> jax.Array:
        gram = _dot(x.T, x)
        return 3.4445 * x + _dot(x, -4.7750 * gram + 2.0315 * _dot(gram, gram))

    def fine(_: int, x: jax.Array) -> jax.Array:
        return 1.5 * x - 0.5 * _dot(x, _dot(x.T, x))

    x = x / jnp.sqrt(jnp.sum(jnp.square(x)))
    x = jax.lax.fori_loop(0, _COARSE_STEPS, coarse, x)
    return jax.lax.fori_loop(0, _FINE_STEPS, fine, x)


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, precision=jax.lax.Precision.HIGHEST)


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]
