"""Sets of cells as bit masks: a board is uint32 `[H]`, and bit `x` of word `y` says whether cell `(x, y)` is in the set.

A world of 25 x 25 cells is 25 words, so that set algebra, counting, drawing and flooding cost a few operations a row. Boards
are at most 32 cells wide; what moves beyond an edge is lost. A single word serves as a set of anything else.

Letters: `H`, `W` height and width.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import symbols

_STEPS = (1, 2, 4, 8, 16)  # doubling: together they cross a board
_PLANES = 10  # bits of a distance

Integers = jax.Array | int


# one cell, a rectangle, a grid ------------------------------------------------------------------------------------------------


def cell(x: Integers, y: Integers, height: int) -> jax.Array:
    """The board of one cell; empty where `y` is outside."""
    return jnp.where(jnp.arange(height) == y, jnp.uint32(1) << jnp.asarray(x, jnp.uint32), jnp.uint32(0))


def window(x: Integers, y: Integers, width: Integers, tall: Integers, height: int) -> jax.Array:
    """The board of the `width x tall` rectangle whose upper left cell is `(x, y)`; `width < 32`."""
    columns = ((jnp.uint32(1) << jnp.asarray(width, jnp.uint32)) - 1) << jnp.asarray(x, jnp.uint32)
    row = jnp.arange(height)
    return jnp.where((row >= y) & (row < y + tall), columns, jnp.uint32(0))


def pack(mask: jax.Array) -> jax.Array:
    """bool `[H, W]` to a board."""
    return jnp.sum(mask.astype(jnp.uint32) << jnp.arange(mask.shape[1], dtype=jnp.uint32), axis=1, dtype=jnp.uint32)


def unpack(board: jax.Array, width: int) -> jax.Array:
    """A board to bool `[H, W]`."""
    return (board[:, None] >> jnp.arange(width, dtype=jnp.uint32)) & 1 != 0


def shift(board: jax.Array, direction: int, steps: int = 1) -> jax.Array:
    """Every cell moved by `steps` cells in one of `symbols`' directions."""
    if direction in (symbols.RIGHT, symbols.LEFT):
        return board << steps if direction == symbols.RIGHT else board >> steps
    steps = min(steps, board.shape[0])
    edge = jnp.zeros(steps, board.dtype)
    if direction == symbols.DOWN:
        return jnp.concatenate([edge, board[: board.shape[0] - steps]])
    return jnp.concatenate([board[steps:], edge])


def grow(board: jax.Array) -> jax.Array:
    """The cells of a board and those beside them."""
    return (
        board | shift(board, symbols.RIGHT) | shift(board, symbols.DOWN) | shift(board, symbols.LEFT) | shift(board, symbols.UP)
    )


# counting and drawing ---------------------------------------------------------------------------------------------------------


def below(words: jax.Array, n: Integers) -> jax.Array:
    """Uniform integers in `0 .. n - 1` from uniform uint32 words; 0 where `n` is 0. `n < 2^16`, int32.

    The upper half of the 64-bit product of word and `n`: the bias is `n / 2^32`.
    """
    n = jnp.asarray(n, jnp.uint32)
    high, low = words >> 16, words & 0xFFFF
    return ((high * n + ((low * n) >> 16)) >> 16).astype(jnp.int32)


def happens(words: jax.Array, chance: jax.Array | float) -> jax.Array:
    """True with a chance, bool, by uniform uint32 words; exact for multiples of `2^-24`."""
    return (words >> 8).astype(jnp.float32) < chance * 2.0**24


def ranks(words: jax.Array) -> jax.Array:
    """The place of each of `words` [n] in ascending order, int32; equal ones by index. Of uniform words: a random order."""
    index = jnp.arange(words.size)
    before = (words < words[:, None]) | (words == words[:, None]) & (index < index[:, None])
    return jnp.sum(before, axis=1)


def count(words: jax.Array) -> jax.Array:
    """Set bits of each word, int32."""
    return jax.lax.population_count(words).astype(jnp.int32)


def draw(word: jax.Array, words: jax.Array) -> jax.Array:
    """Index of a set bit of each of `words`, drawn uniformly by uniform uint32 `word`, int32; 31 where there is none."""
    return nth(words, below(word, count(words)))


def nth(words: jax.Array, rank: jax.Array) -> jax.Array:
    """Index of the set bit of each word that has `rank` set bits below it, int32; 31 where there is none."""
    place = jnp.zeros(jnp.broadcast_shapes(words.shape, rank.shape), jnp.int32)
    for half in reversed(_STEPS):
        lower = count((words >> place.astype(jnp.uint32)) & jnp.uint32((1 << half) - 1))
        skipped = rank >= lower
        rank = jnp.where(skipped, rank - lower, rank)
        place = jnp.where(skipped, place + half, place)
    return place


def running_total(counts: jax.Array) -> jax.Array:
    """Sums of `counts` [N] up to and with each, int32; for totals below 2^24."""
    # a product with a triangle: on a CPU half the time of a scan, and exact, as all sums are
    triangle = jnp.asarray(np.tri(counts.size, dtype=np.float32))
    return (triangle @ counts.astype(jnp.float32)).astype(jnp.int32)


def choose(word: jax.Array, board: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws a cell of a board, uniformly, by one uniform uint32 word.

    Returns:
      `(x, y, found)`. Where the board is empty, `found` is False and `y` is H.
    """
    counts = count(board)
    ends = running_total(counts)
    rank = below(word, ends[-1])
    y = jnp.sum(ends <= rank)
    chosen = jnp.arange(board.size) == y
    row = jnp.sum(jnp.where(chosen, board, 0), dtype=jnp.uint32)
    before = jnp.sum(jnp.where(chosen, ends - counts, 0))
    return nth(row, rank - before), y, ends[-1] > 0


# ways -------------------------------------------------------------------------------------------------------------------------


def _swept(board: jax.Array, passable: jax.Array) -> jax.Array:
    """A board spread through passable cells along straight lines, in all four directions (Kogge-Stone fills)."""
    spread = board
    for direction in range(4):
        reached, way = board, passable
        for steps in _STEPS:
            reached = reached | way & shift(reached, direction, steps)
            way = way & shift(way, direction, steps)
        spread = spread | reached
    return spread


def flood(seeds: jax.Array, passable: jax.Array) -> jax.Array:
    """The cells that can be reached from `seeds` by passable cells, with the seeds themselves."""

    def grows(boards: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(boards[0] != boards[1])

    def sweep(boards: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return boards[1], _swept(boards[1], passable)

    return jax.lax.while_loop(grows, sweep, (seeds, _swept(seeds, passable)))[1]


def distances(seeds: jax.Array, passable: jax.Array, width: int) -> jax.Array:
    """Steps from the nearest seed to each cell by passable cells, int16 `[H, W]`; -1 where there is no way."""

    def spreads(carry: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(carry[1] != 0)

    def spread(carry: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        step, front, reached, planes = carry
        bits = (step >> jnp.arange(_PLANES)) & 1 != 0
        planes = planes | jnp.where(bits[:, None], front, jnp.uint32(0))
        front = grow(front) & passable & ~reached
        return step + 1, front, reached | front, planes

    planes = jnp.zeros((_PLANES, seeds.size), jnp.uint32)
    _, _, reached, planes = jax.lax.while_loop(spreads, spread, (jnp.int32(0), seeds, seeds, planes))
    digits = jax.vmap(unpack, in_axes=(0, None))(planes, width).astype(jnp.int16)
    steps = jnp.sum(digits << jnp.arange(_PLANES, dtype=jnp.int16)[:, None, None], axis=0, dtype=jnp.int16)
    return jnp.where(unpack(reached, width), steps, jnp.int16(-1))
