"""Pieces that level generators are built from.

Grids here are uint8 `[H, W]` symbols indexed `[y, x]`, without padding; positions are int32 `[2]` as `(x, y)`. Where MiniGrid
draws cells until one is allowed, these draw once, uniformly over the allowed cells: the same distribution, no loop. What draws
does so by a uniform uint32 word, so that a generator asks for all its random bits at once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagent.envs import bitboard, symbols
from jaxagent.envs.language import Mission


class Rows(NamedTuple):
    """The objects of a level that need an identity."""

    symbol: jax.Array  # uint8 [K]
    xy: jax.Array  # int32 [K, 2]; (-1, -1) where the row is unused or inside a box
    contents: jax.Array | None = None  # int8 [K], the row inside this box, or -1; None where no box of the level holds anything


class Layout(NamedTuple):
    """One level, as a generator draws it. None stands for what the level does not have, or has the same in every instance."""

    grid: jax.Array  # uint8 [H, W]
    agent: jax.Array  # int32 [2], (x, y)
    direction: jax.Array | int  # int32, 0 - 3
    mission: Mission | None = None
    rows: Rows | None = None
    members: jax.Array | None = None  # uint8 [K], as in `instructions.Task`
    strict: jax.Array | int = 0  # uint8, as in `instructions.Task`
    held: jax.Array | int = -1  # int8, the row in the agent's hands at the start
    max_steps: jax.Array | None = None  # int32
    accepted: jax.Array | bool = True  # False where the level must be drawn again


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


def choose(word: jax.Array, allowed: jax.Array) -> jax.Array:
    """Draws a position uniformly over the cells where `allowed`, bool `[H, W]`, of which there must be one at least."""
    x, y, _ = bitboard.choose(word, bitboard.pack(allowed))
    return point(x, y)


def choose_direction(word: jax.Array) -> jax.Array:
    return bitboard.below(word, 4)


def is_empty(grid: jax.Array) -> jax.Array:
    return grid == symbols.EMPTY_CELL


def is_at(grid: jax.Array, position: jax.Array) -> jax.Array:
    """True in one cell, bool `[H, W]`."""
    height, width = grid.shape
    return (columns(width, height) == position[0]) & (rows(width, height) == position[1])
