"""Pieces that level generators are built from.

Grids here are uint8 `[H, W]` symbols indexed `[y, x]`, without padding; positions are int32 `[2]` as `(x, y)`. Where MiniGrid
draws cells until one is allowed, these draw once, uniformly over the allowed cells: the same distribution, no loop.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagent.envs import symbols


class Layout(NamedTuple):
    """One level, as a generator draws it."""

    grid: jax.Array  # uint8 [H, W]
    agent: jax.Array  # int32 [2], (x, y)
    direction: jax.Array | int  # int32, 0 - 3
    mission: jax.Array | int = 0  # int32, index into the level's mission texts


def columns(width: int, height: int) -> jax.Array:
    """The x of every cell, int32 `[H, W]`."""
    return jax.lax.broadcasted_iota(jnp.int32, (height, width), 1)


def rows(width: int, height: int) -> jax.Array:
    """The y of every cell, int32 `[H, W]`."""
    return jax.lax.broadcasted_iota(jnp.int32, (height, width), 0)


def walled(width: int, height: int) -> jax.Array:
    """An empty grid inside a wall one cell thick."""
    inside = jnp.full((height - 2, width - 2), symbols.EMPTY_CELL, jnp.uint8)
    return jnp.pad(inside, 1, constant_values=symbols.WALL_CELL)


def put(grid: jax.Array, position: jax.Array, symbol: int) -> jax.Array:
    """Sets one cell, wherever it is."""
    return grid.at[position[1], position[0]].set(symbol)


def point(x: jax.Array | int, y: jax.Array | int) -> jax.Array:
    return jnp.stack([jnp.asarray(x, jnp.int32), jnp.asarray(y, jnp.int32)])


def choose(key: jax.Array, allowed: jax.Array) -> jax.Array:
    """Draws a position uniformly over the cells where `allowed`, bool `[H, W]`, of which there must be one at least."""
    # the row first, then the column in it: two short sums instead of one over the whole grid; the barrier keeps XLA from
    # working out the mask anew for each of them
    allowed = jax.lax.optimization_barrier(allowed)
    row_ends = jnp.cumsum(jnp.sum(allowed, axis=1, dtype=jnp.int32))
    rank = jax.random.randint(key, (), 0, row_ends[-1])
    y = jnp.sum(row_ends <= rank)
    row = allowed[y]
    x = jnp.sum(row_ends[y] - jnp.sum(row) + jnp.cumsum(row) <= rank)
    return point(x, y)


def choose_direction(key: jax.Array) -> jax.Array:
    return jax.random.randint(key, (), 0, 4)


def is_empty(grid: jax.Array) -> jax.Array:
    return grid == symbols.EMPTY_CELL


def is_at(grid: jax.Array, position: jax.Array) -> jax.Array:
    """True in one cell, bool `[H, W]`."""
    height, width = grid.shape
    return (columns(width, height) == position[0]) & (rows(width, height) == position[1])
