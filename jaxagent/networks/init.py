"""Orthogonal initialisation from matrix products alone."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Initializer = Callable[..., jax.Array]

# Odd polynomials of the singular values. The coarse one multiplies small ones by 3.4 but only brings them near 1 (coefficients
# of the Muon optimiser, Jordan et al. 2024); from there the fine one converges quadratically.
_COARSE = (3.4445, -4.7750, 2.0315)
_FINE = (1.5, -0.5, 0.0)
_STEPS = (_COARSE,) * 14 + (_FINE,) * 7


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
    """The matrix with orthonormal columns nearest to `x` [m, n], m >= n: all its singular values become 1."""

    def step(x: jax.Array, coefficients: jax.Array) -> tuple[jax.Array, None]:
        linear, cubic, quintic = coefficients
        gram = _dot(x.T, x)
        return linear * x + _dot(x, cubic * gram + quintic * _dot(gram, gram)), None

    # one loop for both polynomials: a network has many layers, and each loop is compiled
    return jax.lax.scan(step, x / jnp.sqrt(jnp.sum(jnp.square(x))), jnp.array(_STEPS))[0]


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, precision=jax.lax.Precision.HIGHEST)


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]
