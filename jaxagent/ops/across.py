"""Sums over the mapped axes that a batch is spread over: devices of a mesh, and blocks of rows on one of them.

`axes` are their names, `()` where the whole batch is here.
"""

from typing import TypeVar

import jax

Tree = TypeVar("Tree")
Axes = tuple[str, ...]


def total(tree: Tree, axes: Axes) -> Tree:
    """Each leaf summed over the axes, the same everywhere."""
    return jax.lax.psum(tree, axes) if axes else tree


def largest(x: jax.Array, axes: Axes) -> jax.Array:
    """The largest over the axes, element by element, the same everywhere."""
    return jax.lax.pmax(x, axes) if axes else x


def own_key(key: jax.Array, axes: Axes) -> jax.Array:
    """A key for each place along the axes."""
    return jax.random.fold_in(key, jax.lax.axis_index(axes)) if axes else key
