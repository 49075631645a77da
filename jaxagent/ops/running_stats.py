"""Running mean and variance of a stream of arrays."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxagent.ops.across import Axes, total
from jaxagent.types import PyTree

# Beyond this many samples the statistics forget old ones exponentially, with this window. Float32 counts exactly up to it.
MAX_SAMPLES = 2.0**24


class RunningStats(NamedTuple):
    """Mean and variance of every element seen so far. Leaves that hold no floats have none."""

    num_samples: jax.Array  # float32 scalar, at most MAX_SAMPLES
    mean: PyTree  # like one sample
    variance: PyTree  # like one sample


def init(sample: PyTree) -> RunningStats:
    """Nothing seen: mean 0 and variance 1. `sample` has the shapes and dtypes of one sample."""

    def full(value: float) -> PyTree:
        return jax.tree.map(lambda x: jnp.full(x.shape if _is_float(x) else (), value, jnp.float32), sample)

    return RunningStats(jnp.zeros((), jnp.float32), full(0.0), full(1.0))


def update(stats: RunningStats, batch: PyTree, weights: jax.Array, num_samples: jax.Array, axes: Axes = ()) -> RunningStats:
    """Adds a batch (Chan, Golub and LeVeque 1979: merging the moments of two sets).

    Args:
      stats: statistics so far.
      batch: leaves [*batch_axes, ...].
      weights: [*batch_axes], weight of each sample in the batch's means; they sum to 1, or are all zero.
      num_samples: how many samples the batch counts for, float32 scalar.
      axes: mapped axes that the batch is spread over; weights and samples are of this part of it.
    """
    num_samples = total(num_samples, axes)
    seen = stats.num_samples + num_samples
    share = jnp.where(num_samples > 0, num_samples / jnp.maximum(seen, 1.0), 0.0)  # of the batch in the result

    def merge(x: jax.Array, mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        if not _is_float(x):
            return mean, variance
        chex.assert_shape(x, (*weights.shape, *mean.shape))
        w = weights.reshape(weights.shape + (1,) * mean.ndim)
        batch_axes = tuple(range(weights.ndim))
        batch_mean = total(jnp.sum(w * x, axis=batch_axes), axes)
        batch_variance = total(jnp.sum(w * jnp.square(x - batch_mean), axis=batch_axes), axes)
        delta = batch_mean - mean
        variance = (1.0 - share) * variance + share * batch_variance + share * (1.0 - share) * jnp.square(delta)
        return mean + share * delta, variance

    leaves, treedef = jax.tree.flatten(batch)
    pairs = [
        merge(*of_leaf) for of_leaf in zip(leaves, jax.tree.leaves(stats.mean), jax.tree.leaves(stats.variance), strict=True)
    ]
    mean, variance = (jax.tree.unflatten(treedef, list(column)) for column in zip(*pairs, strict=True))
    return RunningStats(jnp.minimum(seen, MAX_SAMPLES), mean, variance)


def normalize(stats: RunningStats, tree: PyTree, *, clip: float = 10.0, epsilon: float = 1e-8) -> PyTree:
    """`(x - mean) / std`, clipped to `[-clip, clip]`. Leaves [..., *sample shape]; those that hold no floats pass."""

    def leaf(x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        if not _is_float(x):
            return x
        return jnp.clip((x - mean) * jax.lax.rsqrt(variance + epsilon), -clip, clip)

    return jax.tree.map(leaf, tree, stats.mean, stats.variance)


def _is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
