"""Work on the few rows of a batch that need it, instead of on all of them."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

Carry = TypeVar("Carry")


_BLOCK = 64  # rows that are searched as one


def chunk_size(num_rows: int) -> int:
    """Rows handled at once: large enough that one chunk usually does, small enough to be cheap beside the whole batch."""
    return max(1, num_rows // 32)


def over_rows(mask: jax.Array, body: Callable[[jax.Array, Carry], Carry], carry: Carry, *, size: int) -> Carry:
    """Calls `carry = body(rows, carry)` until every row where `mask` [B] is True was in one `rows` [size], int32, once.

    Rows come in ascending order; unused places of the last chunk hold B, so gather with `take_rows` and scatter with
    `put_rows`. Nothing runs when no row is masked. Right for any number of rows, and under an outer `vmap`.
    """
    (num_rows,) = mask.shape
    blocks = jnp.pad(mask, (0, -num_rows % _BLOCK)).reshape(-1, _BLOCK)
    ends = jnp.cumsum(blocks.sum(axis=1, dtype=jnp.int32))  # masked rows up to the end of each block
    total = ends[-1]

    def masked_rows(ordinals: jax.Array) -> jax.Array:
        """Index of the n-th masked row, for each n in `ordinals` [size]; B where there is none.

        `jnp.nonzero` would visit every row with a serial scatter; here only the block that holds the row is searched.
        """
        block = jnp.sum(ends <= ordinals[:, None], axis=1)
        before = jnp.where(block > 0, ends.at[block - 1].get(mode="clip"), 0)
        inside = jnp.cumsum(blocks.at[block].get(mode="clip"), axis=1, dtype=jnp.int32)  # [size, block]
        rows = block * _BLOCK + jnp.sum(inside <= (ordinals - before)[:, None], axis=1)
        return jnp.where(ordinals < total, rows, num_rows).astype(jnp.int32)

    def chunk(loop: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
        done, carry = loop
        return done + size, body(masked_rows(done + jnp.arange(size)), carry)

    return jax.lax.while_loop(lambda loop: loop[0] < total, chunk, (jnp.int32(0), carry))[1]


def take_rows(tree: Carry, rows: jax.Array) -> Carry:
    """Rows of every leaf [B, ...]; out-of-range indices give the last row."""
    return jax.tree.map(lambda x: x.at[rows].get(mode="clip"), tree)


def put_rows(tree: Carry, rows: jax.Array, values: Carry) -> Carry:
    """Writes rows of every leaf [B, ...]; out-of-range indices are dropped."""
    return jax.tree.map(lambda x, v: x.at[rows].set(v, mode="drop"), tree, values)
