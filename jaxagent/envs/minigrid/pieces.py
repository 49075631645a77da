"""Pieces that several of MiniGrid's generators share. All draw by uniform uint32 words (see `layout`).

Letters: `H`, `W` height and width of a grid, `n` things.
"""

import jax
import jax.numpy as jnp

from jaxagent.envs import language, symbols
from jaxagent.envs.layout import choose, columns, rows

Number = jax.Array | int

NUM_COLOURS = len(symbols.COLOUR_NAMES)
NUM_THINGS = 3 * NUM_COLOURS  # keys, balls and boxes, in this order


def box(width: int, height: int, left: Number, top: Number, right: Number, bottom: Number) -> jax.Array:
    """Where the four walls of a box from (left, top) to (right, bottom), both corners included, are: bool `[H, W]`."""
    x, y = columns(width, height), rows(width, height)
    inside = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
    return inside & ((x == left) | (x == right) | (y == top) | (y == bottom))


def thing(number: jax.Array) -> jax.Array:
    """The symbol, uint8, of a number below `NUM_THINGS`; below twice `NUM_COLOURS` it is a key or a ball."""
    kind, colour = jnp.divmod(number, NUM_COLOURS)
    return symbols.symbol(symbols.KEY + kind, colour).astype(jnp.uint8)


def place(
    words: jax.Array, grid: jax.Array, things: jax.Array, allowed: jax.Array, *, apart: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Puts things on random cells, one after the other.

    Args:
      words: uint32 `[n]`.
      grid: uint8 `[H, W]`.
      things: their symbols, uint8 `[n]`.
      allowed: cells for the first of them, bool `[H, W]`.
      apart: how far the others stay from those before them, along one axis at least.

    Returns:
      The grid with them, and where they are, int32 `[n, 2]`.
    """
    height, width = grid.shape
    x, y = columns(width, height), rows(width, height)

    def one(allowed: jax.Array, word: jax.Array) -> tuple[jax.Array, jax.Array]:
        xy = choose(word, allowed)
        return allowed & ((jnp.abs(x - xy[0]) >= apart) | (jnp.abs(y - xy[1]) >= apart)), xy

    _, xy = jax.lax.scan(one, allowed, words)
    return grid.at[xy[:, 1], xy[:, 0]].set(things), xy


def colour_word(symbol: jax.Array) -> jax.Array:
    """A symbol's colour in a description."""
    return 1 + symbols.colour_of(symbol)


def kind_word(thing: jax.Array) -> jax.Array:
    """The kind of a key, ball or box in a description, where they come in the opposite order."""
    return symbols.KEY + language.KEY - symbols.kind_of(thing)
