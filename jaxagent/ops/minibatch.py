"""Cutting a batch into minibatches. Letters: `N` items, `M` minibatches, `L` steps a sequence."""

import chex
import jax
import jax.numpy as jnp

from jaxagent.types import PyTree

_ROUNDS = 6


def flatten_steps(tree: PyTree) -> PyTree:
    """`[T, B, ...]` to `[T * B, ...]`: every step is an item."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def split_sequences(tree: PyTree, length: int) -> PyTree:
    """`[T, B, ...]` to `[T / L * B, L, ...]`: every item is `L` consecutive steps of one row.

    The items come in order of time, then row: the first B of them start at time 0, the next B at time L.
    """

    def split(x: jax.Array) -> jax.Array:
        chunks = x.reshape(-1, length, *x.shape[1:])  # [T / L, L, B, ...]
        return jnp.swapaxes(chunks, 1, 2).reshape(-1, length, *x.shape[2:])

    return jax.tree.map(split, tree)


def sequence_length(memory: int, chosen: int | None, num_steps: int) -> int:
    """L in a rollout of `num_steps` steps: 1 without a memory, the whole rollout unless one was `chosen`."""
    return (chosen or num_steps) if memory else 1


def starting_memory(first: PyTree, stored: PyTree, length: int, num_steps: int) -> PyTree:
    """The memory before each sequence, as `split_sequences` orders them.

    Args:
      first: memory [B, ...] before the rollout.
      stored: memory [T, B, ...] before each step; read where sequences start inside the rollout.
      length: L.
      num_steps: T.
    """
    if length == num_steps or not jax.tree.leaves(first):
        return first
    return flatten_steps(jax.tree.map(lambda x: x[::length], stored))


def check_sizes(*, num_steps: int, num_envs: int, length: int, num_minibatches: int) -> None:
    """Raises ValueError if batches `[num_steps, num_envs]` cannot be cut into equal minibatches of whole sequences."""
    if num_steps % length:
        raise ValueError(f"sequence_length: expected a divisor of the {num_steps} steps of a rollout, got {length}")
    num_sequences = num_steps // length * num_envs
    if num_sequences % num_minibatches:
        what = "steps" if length == 1 else "sequences"
        raise ValueError(f"num_minibatches: expected a divisor of the {num_sequences} {what} of a batch, got {num_minibatches}")


def permutation(key: jax.Array, n: int) -> jax.Array:
    """A pseudo-random permutation of `0 .. n - 1`, int32 [n], many times cheaper than one that sorts.

    Rounds of odd multiplication, addition and xor-shift are a bijection of `k`-bit numbers (the mixing steps of integer
    hashes), here with multipliers and offsets from the key. Numbers that land beyond `n` go round again until they do not,
    which keeps it a bijection of `0 .. n - 1` (cycle walking: Black and Rogaway 2002).
    """
    bits = max(2, (n - 1).bit_length())
    last = jnp.uint32((1 << bits) - 1)
    multipliers, offsets = jax.random.bits(key, (2, _ROUNDS), jnp.uint32)

    def mix(x: jax.Array) -> jax.Array:
        for i in range(_ROUNDS):
            x = (x * (multipliers[i] | 1) + offsets[i]) & last
            x = x ^ (x >> (bits // 2))
        return x

    x = mix(jnp.arange(n, dtype=jnp.uint32))
    if n < 1 << bits:
        x = jax.lax.while_loop(lambda x: jnp.any(x >= n), lambda x: jnp.where(x >= n, mix(x), x), x)
    return x.astype(jnp.int32)


def minibatch_indices(key: jax.Array, num_items: int, *, num_epochs: int, num_minibatches: int) -> jax.Array:
    """Which items each minibatch takes, int32 `[num_epochs * M, N / M]`: in every epoch, each item once."""
    if num_items % num_minibatches:
        raise ValueError(f"num_minibatches: expected a divisor of the {num_items} items, got {num_minibatches}")
    epoch_keys = jax.random.split(key, num_epochs)
    order = jax.vmap(lambda epoch_key: permutation(epoch_key, num_items))(epoch_keys)
    return order.reshape(num_epochs * num_minibatches, -1)


def take(tree: PyTree, indices: jax.Array) -> PyTree:
    """The items at `indices`, which must be in range. Leaves are `[N, ...]`."""
    chex.assert_rank(indices, 1)
    return jax.tree.map(lambda x: x.at[indices].get(mode="promise_in_bounds"), tree)
