"""Advantages from comparing the episodes of a group, which all began alike.

Letters: `B` episodes, `G` a group; the first G rows are the first group. `T` steps.
"""

from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxagent.ops.across import Axes
from jaxagent.ops.masked import mean_weights, weighted_mean

Scalar = jax.Array | float
Scale = Literal["none", "group", "batch"]
SCALES = ("none", "group", "batch")
_NOISE = 1e-6  # of the largest return: what equal sums of rewards differ by in float32


class Compared(NamedTuple):
    """Leaves are `[B]`."""

    advantage: jax.Array  # zero where `varies` is not
    varies: jax.Array  # bool, the episodes of the group did not all earn the same


def compare(
    returns: jax.Array,
    group_size: int,
    *,
    scale: Scale,
    floor: Scalar,
    leave_one_out: bool = False,
    counted: jax.Array | None = None,
    axes: Axes = (),
) -> Compared:
    """Return minus the group's mean (GRPO, Shao et al. 2024).

    Args:
      returns: [B].
      group_size: G, at least 2.
      scale: what to divide by: the standard deviation of the `group`, that of the `batch` (over the groups that vary), or
        `none` (Dr. GRPO, Liu et al. 2025).
      floor: the least standard deviation to divide by.
      leave_one_out: compares with the mean of the other episodes (RLOO, Ahmadian et al. 2024): `G / (G - 1)` times as much.
      counted: bool [B], groups left out of the batch's standard deviation are False; those that do not vary are always.
      axes: mapped axes that the batch is spread over.
    """
    chex.assert_rank(returns, 1)
    grouped = returns.reshape(-1, group_size)
    noise = _NOISE * jnp.maximum(jnp.max(jnp.abs(grouped), axis=1), 1.0)
    varies = jnp.repeat(jnp.max(grouped, axis=1) - jnp.min(grouped, axis=1) > noise, group_size)
    centred = (grouped - grouped.mean(axis=1, keepdims=True)).reshape(-1)
    advantage = centred * (group_size / (group_size - 1) if leave_one_out else 1.0)
    if scale == "group":
        advantage = advantage / jnp.maximum(jnp.repeat(grouped.std(axis=1), group_size), floor)
    elif scale == "batch":
        weights = mean_weights(varies if counted is None else varies & counted, axes)
        variance = weighted_mean(jnp.square(centred), weights, axes)
        advantage = advantage / jnp.maximum(jnp.sqrt(variance), floor)
    return Compared(jnp.where(varies, advantage, 0.0), varies)


def compare_steps(
    returns_to_go: jax.Array, situations: jax.Array, mask: jax.Array, group_size: int, *, scale: Scale, floor: Scalar
) -> jax.Array:
    """Step-level advantages [T, B]: return to go minus its mean over the group's steps in the same situation.

    The second half of GiGPO (Feng et al. 2025). A step in a situation of its own has none.

    Args:
      returns_to_go: discounted, [T, B].
      situations: uint32 [T, B], equal where the situation is; compared within a group only.
      mask: bool [T, B], steps that count.
      group_size: G.
      scale: `none`, or any other to divide by the standard deviation among these steps.
      floor: the least to divide by.
    """
    chex.assert_equal_shape((returns_to_go, situations, mask))
    num_steps, num_rows = mask.shape
    group = jnp.broadcast_to(jnp.arange(num_rows) // group_size, mask.shape)
    group = jnp.where(mask, group, num_rows).reshape(-1).astype(jnp.uint32)  # what does not count comes last
    _, _, place = jax.lax.sort((group, situations.reshape(-1), jnp.arange(mask.size)), num_keys=2)
    keys = jnp.stack([group[place], situations.reshape(-1)[place]])
    is_new = jnp.concatenate([jnp.ones(1, bool), jnp.any(keys[:, 1:] != keys[:, :-1], axis=0)])
    segment = jnp.zeros(mask.size, jnp.int32).at[place].set(jnp.cumsum(is_new) - 1)

    def mean(x: jax.Array) -> jax.Array:
        """Of the steps in the same situation, [T * B]."""
        counted = jnp.where(mask.reshape(-1), x, 0.0)
        sums = jax.ops.segment_sum(
            jnp.stack([counted, mask.reshape(-1).astype(jnp.float32)], -1), segment, num_segments=mask.size
        )
        return (sums[:, 0] / jnp.maximum(sums[:, 1], 1.0))[segment]

    flat = returns_to_go.reshape(-1)
    centred = flat - mean(flat)
    sizes = jnp.where(mask, jnp.abs(returns_to_go), 0.0).reshape(num_steps, -1, group_size)
    noise = _NOISE * jnp.maximum(jnp.max(sizes, axis=(0, 2)), 1.0)
    noise = jnp.broadcast_to(jnp.repeat(noise, group_size), mask.shape).reshape(-1)
    centred = jnp.where(jnp.abs(centred) > noise, centred, 0.0)
    if scale != "none":
        centred = centred / jnp.maximum(jnp.sqrt(mean(jnp.square(centred))), floor)
    return jnp.where(mask, centred.reshape(num_steps, num_rows), 0.0)


def returns_to_go(reward: jax.Array, mask: jax.Array, *, gamma: Scalar) -> jax.Array:
    """Discounted sums of the rewards from each step to the end of the row, [T, B]."""
    chex.assert_equal_shape((reward, mask))

    def backward(following: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = step + gamma * following
        return total, total

    return jax.lax.scan(backward, jnp.zeros_like(reward[0]), jnp.where(mask, reward, 0.0), reverse=True)[1]
