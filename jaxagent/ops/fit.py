"""Work on as much as a batch holds. Arrays have room for the longest episode there can be; most batches need less of it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxagent.ops import across
from jaxagent.ops.lanes import largest

Size = tuple[int, ...]  # how long one or more axes are


def ladder(most: int) -> tuple[int, ...]:
    """Up to three lengths, each twice the one before it, the last one `most`: a quarter, a half, the whole."""
    lengths, length = [], max(8, -(-most // 4))
    while length < most:
        lengths.append(length)
        length *= 2
    return (*lengths, most)


def fitted(
    function: Callable[..., Any], sizes: Sequence[Size], needed: Sequence[jax.Array], *, axes: across.Axes = ()
) -> Callable[..., Any]:
    """`function(size, *arguments)` of the first size that holds what is `needed`, as a function of the arguments.

    A program holds one branch a size. The lanes of a `vmap` and all parts over `axes` run the one that the largest need among
    them asks for.

    Args:
      function: of a size and arrays; what it returns must not depend on the size.
      sizes: in ascending order. The last one has to hold everything.
      needed: int32 scalars, one for each number of a size.
    """
    branches = [partial(function, size) for size in sizes]
    if len(sizes) == 1:
        return branches[0]
    fits = [jnp.stack([n <= most for n, most in zip(needed, size, strict=True)]).all() for size in sizes[:-1]]
    index = largest(jnp.sum(~jnp.stack(fits), dtype=jnp.int32))  # sizes ascend: those that do not fit come first
    return partial(jax.lax.switch, across.largest(index, axes), branches)
