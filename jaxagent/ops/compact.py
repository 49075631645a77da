"""Work on the few rows of a batch that need it, instead of on all of them."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

Carry = TypeVar("Carry")


def chunk_size(num_rows: int) -> int:
    """Rows handled at once: large enough that one chunk usually does, small enough to be cheap beside the whole batch."""
    return max(1, num_rows // 16)


def over_rows(mask: jax.Array, body: Callable[[jax.Array, Carry], Carry], carry: Carry, *, size: int) -> Carry:
    """Calls `carry = body(rows, carry)` until every row where `mask` [B] is True was in one `rows` [size], int32, once.

    Rows come in ascending order; unused places of the last chunk hold B, so gather with `take_rows` and scatter with
    `put_rows`. Nothing runs when no row is masked. Right for any number of rows, and under an outer `vmap`.
    """
    num_rows = mask.shape[0]

    def chunk(loop: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
        left, carry = loop
        (rows,) = jnp.nonzero(left, size=size, fill_value=num_rows)
        rows = rows.astype(jnp.int32)
        left = left.at[rows].set(False, mode="drop")
        return left, body(rows, carry)

    return jax.lax.while_loop(lambda loop: loop[0].any(), chunk, (mask, carry))[1]


def take_rows(tree: Carry, rows: jax.Array) -> Carry:
    """Rows of every leaf [B, ...]; out-of-range indices give the last row."""
    return jax.tree.map(lambda x: x.at[rows].get(mode="clip"), tree)


def put_rows(tree: Carry, rows: jax.Array, values: Carry) -> Carry:
    """Writes rows of every leaf [B, ...]; out-of-range indices are dropped."""
    return jax.tree.map(lambda x, v: x.at[rows].set(v, mode="drop"), tree, values)
