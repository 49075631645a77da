"""Chains of rooms, each entered through a door from the one before.

Letters: `N` rooms of a chain, `H`, `W` height and width of the world.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagent.envs import symbols
from jaxagent.envs.bitboard import below
from jaxagent.envs.layout import Layout, choose_direction, put
from jaxagent.envs.minigrid.pieces import NUM_COLOURS, box

SMALLEST = 4  # cells along a side, the walls included
TRIES = 8  # rooms drawn to follow another one, before the chain is given up


class Chain(NamedTuple):
    """Rooms as they have been placed so far."""

    placed: jax.Array  # int32, how many
    failures: jax.Array  # int32, rooms that did not fit since the last one that did
    top: jax.Array  # int32 [N, 2], the upper left corner, (x, y)
    size: jax.Array  # int32 [N, 2], the walls included
    door: jax.Array  # int32 [N, 2], the door into the room
    wall: jax.Array  # int32 [N], the wall that it is in, by direction


@dataclass(frozen=True)
class MultiRoom:
    """A chain of rooms in random directions, from the agent's room to the one with the goal.

    A room is drawn behind a random cell of a wall of the one before; it fits where it lies inside the world and meets no room
    but that one. After `TRIES` that do not fit, or a first room that does not, all begins anew. (MiniGrid places rooms by
    recursion, but never takes one back that fits, so its tree is this chain; it keeps the longest of those that are too short,
    but only until one is long enough.)

    Attributes:
      count: N.
      largest: cells along the side of a room, at most, the walls included.
    """

    count: int
    largest: int

    def __call__(self, key: jax.Array, width: int, height: int) -> Layout:
        chain_key, key = jax.random.split(key)
        (direction,), agent_cell, goal_cell, colours = jnp.split(jax.random.bits(key, (4 + self.count,)), [1, 3, 5])
        chain = self._chain(chain_key, jnp.array([width, height]))
        bottom = chain.top + chain.size - 1
        walls = jax.vmap(lambda low, high: box(width, height, *low, *high))(chain.top, bottom)
        grid = jnp.where(jnp.any(walls, axis=0), jnp.uint8(symbols.WALL_CELL), jnp.uint8(symbols.EMPTY_CELL))
        doors = symbols.symbol(jnp.uint8(symbols.DOOR_CLOSED), _unlike_neighbours(colours))
        grid = grid.at[chain.door[1:, 1], chain.door[1:, 0]].set(doors)

        def inside(words: jax.Array, room: int) -> jax.Array:
            return chain.top[room] + 1 + below(words, chain.size[room] - 2)

        grid = put(grid, inside(goal_cell, -1), symbols.GOAL_CELL)
        return Layout(grid, inside(agent_cell, 0), choose_direction(direction))

    def _chain(self, key: jax.Array, world: jax.Array) -> Chain:
        """Places all rooms in a world of size `world`, int32 `[2]`."""
        pairs = jnp.zeros((self.count, 2), jnp.int32)
        start = Chain(jnp.int32(0), jnp.int32(0), pairs, pairs, pairs, jnp.zeros(self.count, jnp.int32))

        def draw_next(loop: tuple[jax.Array, Chain]) -> tuple[jax.Array, Chain]:
            number, chain = loop
            return number + 1, self._extended(jax.random.fold_in(key, number), chain, world)

        return jax.lax.while_loop(lambda loop: loop[1].placed < self.count, draw_next, (jnp.int32(0), start))[1]

    def _extended(self, key: jax.Array, chain: Chain, world: jax.Array) -> Chain:
        """Draws the next room, and adds it if it fits."""
        side_word, door_word, along_word, *size_words = jax.random.bits(key, (5,))
        first = chain.placed == 0
        last = chain.placed - 1
        # the door lies in another wall of the last room than its own, away from the corners
        out = below(side_word, 3)
        out += out >= chain.wall[last]
        upright = out % 2 == 0  # whether that wall is, so that the door's y is drawn
        low, high = chain.top[last], chain.top[last] + chain.size[last] - 1
        along = low + 1 + below(door_word, high - low - 1)
        across = jnp.where((out == symbols.RIGHT) | (out == symbols.DOWN), high, low)
        door = jnp.where(jnp.stack([upright, ~upright]), across, along)
        # and somewhere in the opposite wall of the new room
        size = SMALLEST + below(jnp.stack(size_words), self.largest + 1 - SMALLEST)
        before = jnp.where((out == symbols.LEFT) | (out == symbols.UP), size - 1, 0)
        top = door - jnp.where(jnp.stack([upright, ~upright]), before, 1 + below(along_word, size - 2))
        # a first room lies anywhere, and counts as entered from the left
        start = below(jnp.stack([side_word, door_word]), world - 2)
        top, door = jnp.where(first, start, top), jnp.where(first, start, door)
        wall = jnp.where(first, symbols.LEFT, (out + 2) % 4)

        fits = jnp.all(top >= 0) & jnp.all(top + size <= world - jnp.array([0, 1])) & ~self._overlaps(chain, top, size)
        failures = jnp.where(fits, 0, chain.failures + 1)
        begins_anew = ~fits & (first | (failures == TRIES))
        here = (jnp.arange(self.count) == chain.placed) & fits
        return Chain(
            placed=jnp.where(begins_anew, 0, chain.placed + fits),
            failures=jnp.where(begins_anew, 0, failures),
            top=jnp.where(here[:, None], top, chain.top),
            size=jnp.where(here[:, None], size, chain.size),
            door=jnp.where(here[:, None], door, chain.door),
            wall=jnp.where(here, wall, chain.wall),
        )

    def _overlaps(self, chain: Chain, top: jax.Array, size: jax.Array) -> jax.Array:
        """Whether a room at `top` meets any but the last one; it needs a gap to those right of and below it, as in MiniGrid."""
        apart = (top + size < chain.top) | (chain.top + chain.size <= top)
        return jnp.any(~jnp.any(apart, axis=1) & (jnp.arange(self.count) < chain.placed - 1))


def _unlike_neighbours(words: jax.Array) -> jax.Array:
    """Random colours, uint8 `[n]`, no two in succession the same, by as many words."""
    steps = jnp.append(below(words[:1], NUM_COLOURS), 1 + below(words[1:], NUM_COLOURS - 1))
    return (jnp.cumsum(steps) % NUM_COLOURS).astype(jnp.uint8)
