"""What an agent knows of its world, as boards (`jaxagent.envs.bitboard`), and what its mission asks for now.

Letters: `H` height of the world, `K` objects with an identity.
"""

from functools import reduce
from operator import and_, or_
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagent.envs import bitboard, language, symbols, view
from jaxagent.envs.grid import Frame, GridState, Level

COLOURS = range(len(symbols.COLOUR_NAMES))
_COLOUR_BITS, _KIND_BITS = 3, 4

# these verbs go by where the verifier knows things to be, the others by where they are
_BY_KNOWN_PLACE = frozenset((language.GO_TO, language.STOP_NEXT_TO, language.FIND_MATCH))


class Scene(NamedTuple):
    """Boards are uint32 `[H]`."""

    planes: tuple[jax.Array, ...]  # a board for each bit of the cells' symbols
    known: jax.Array  # cells whose content is known
    unseen: jax.Array  # cells of the world whose content is not
    here: jax.Array  # the agent's cell
    ahead: jax.Array  # the cell in front of it
    direction: jax.Array  # int32
    carrying: jax.Array  # uint8 symbol, 0 for nothing

    @property
    def hands_full(self) -> jax.Array:
        return self.carrying != 0

    def kinds(self, *kinds: int) -> jax.Array:
        """Cells that are known to be of one of these kinds."""
        return self.known & reduce(or_, [_equal(self.planes[_COLOUR_BITS:], kind) for kind in kinds])

    def colours_of(self, board: jax.Array) -> jax.Array:
        """Which colours there are on a board, bool `[6]`."""
        return jnp.stack([jnp.any(board & self._coloured(colour) != 0) for colour in COLOURS])

    def with_colours(self, colours: jax.Array) -> jax.Array:
        """Cells of any of the colours that are set in bool `[6]`."""
        return reduce(or_, [jnp.where(colours[colour], self._coloured(colour), 0) for colour in COLOURS])

    def _coloured(self, colour: int) -> jax.Array:
        return _equal(self.planes[:_COLOUR_BITS], colour)


def _equal(planes: tuple[jax.Array, ...], number: int) -> jax.Array:
    return reduce(and_, [plane if number >> bit & 1 else ~plane for bit, plane in enumerate(planes)])


def scene(frame: Frame, state: GridState, seen: jax.Array | None) -> Scene:
    """The world as far as it was `seen`, uint32 `[H]`, or all of it."""
    x, y = frame.xy(state.position)
    here = bitboard.cell(x, y, frame.height)
    world = jnp.full(frame.height, (1 << frame.width) - 1, jnp.uint32)
    ahead = [jnp.where(state.direction == direction, bitboard.shift(here, direction), 0) for direction in range(4)]
    return Scene(
        planes=_planes(frame, state.cells),
        known=world if seen is None else seen,
        unseen=jnp.zeros_like(world) if seen is None else world & ~seen,
        here=here,
        ahead=reduce(or_, ahead),
        direction=state.direction,
        carrying=state.carrying,
    )


def _planes(frame: Frame, cells: jax.Array) -> tuple[jax.Array, ...]:
    """A board for each bit of the symbols of a world."""
    grid = frame.unflatten(cells)
    return tuple(bitboard.pack(grid >> bit & 1) for bit in range(_COLOUR_BITS + _KIND_BITS))


def visible(frame: Frame, state: GridState, *, see_through_walls: bool) -> jax.Array:
    """The cells in the agent's view, uint32 `[H]`."""
    shown = view.take(state.cells, view.window(state.position, state.direction, frame.stride))
    lit = jnp.ones_like(shown, bool) if see_through_walls else view.visible(shown)
    # the view as it lies in the world, [direction, y, x], and where its upper left corner is from the agent
    turned = jnp.stack([jnp.rot90(lit.T, quarters) for quarters in (3, 2, 1, 0)])
    ahead, aside = view.SIZE - 1, view.SIZE // 2
    corners = jnp.array([(0, -aside), (-aside, 0), (-ahead, -aside), (-aside, -ahead)])
    rows = view.take(jax.vmap(bitboard.pack)(turned), state.direction)
    left, top = jnp.stack(frame.xy(state.position)) + view.take(corners, state.direction)
    rows = jnp.where(
        left < 0, rows >> jnp.maximum(-left, 0).astype(jnp.uint32), rows << jnp.maximum(left, 0).astype(jnp.uint32)
    )
    row = jnp.arange(frame.height) - top
    inside = (row >= 0) & (row < view.SIZE)
    return jnp.where(inside, view.take(rows, jnp.clip(row, 0, view.SIZE - 1)), 0) & jnp.uint32((1 << frame.width) - 1)


def board(frame: Frame, positions: jax.Array, mask: jax.Array) -> jax.Array:
    """The cells of those objects of a mask, bool `[K]`, that lie somewhere, uint32 `[H]`."""
    x, y = frame.xy(positions.astype(jnp.int32))
    bits = jnp.where(mask & (positions >= 0), jnp.uint32(1) << x.astype(jnp.uint32), jnp.uint32(0))
    return jax.lax.reduce_or(jnp.where(y[:, None] == jnp.arange(frame.height), bits[:, None], 0), axes=(0,))


class Leaf(NamedTuple):
    """One leaf of the mission that is to be fulfilled now, and what belongs to it."""

    verb: jax.Array  # uint8, NO_VERB where nothing remains to be done
    first: jax.Array  # uint32 [H], where the members of the first description are known to be
    second: jax.Array  # uint32 [H], and those of the second
    holds: jax.Array  # bool, whether a member of the first is in the agent's hands
    holds_second: jax.Array  # bool, whether one of the second is
    verified: jax.Array  # bool, whether the verifier looked at the leaf before
    strict: jax.Array  # bool


def leaves(frame: Frame, level: Level, state: GridState, known: jax.Array) -> list[Leaf]:
    """The leaves to be fulfilled now, in any order; only of levels with compound missions there may be two."""
    mission = state.mission
    if mission is None:
        assert level.mission is not None
        mission = language.unflatten(level.mission)
    verbs = mission.leaves[:, language.VERB]
    if state.task is None:
        nowhere, no = jnp.zeros_like(known), jnp.bool_(False)
        return [Leaf(verbs[0], nowhere, nowhere, no, no, no, no)]
    if not level.compound:
        return [_leaf(frame, level, state, known, verbs[0], jnp.uint8(0))]
    done = state.task.done >> jnp.arange(language.NUM_LEAVES, dtype=jnp.uint8) & 1 != 0
    verbs = jnp.where(done, language.NO_VERB, verbs)
    remains = jnp.any((verbs != language.NO_VERB).reshape(2, 2), axis=1)
    lead = (mission.order == language.AFTER).astype(jnp.uint8)
    half = jnp.where(remains[lead], lead, 1 - lead)
    return [_leaf(frame, level, state, known, verbs[i], i) for i in (2 * half, 2 * half + 1)]


def _leaf(frame: Frame, level: Level, state: GridState, known: jax.Array, verb: jax.Array, number: jax.Array) -> Leaf:
    task, objects = state.task, state.objects
    assert task is not None and objects is not None
    members = task.members >> 2 * number
    first, second = members & 1 != 0, members & 2 != 0
    by_known_place = [verb == v for v in sorted(level.verbs & _BY_KNOWN_PLACE)]
    places = jnp.where(reduce(or_, by_known_place), task.known, objects.position) if by_known_place else objects.position
    held = jnp.arange(members.size) == objects.held
    return Leaf(
        verb=verb,
        first=board(frame, places, first) & known,
        second=board(frame, objects.position if language.PUT_NEXT in level.verbs else task.known, second) & known,
        holds=jnp.any(held & first),
        holds_second=jnp.any(held & second),
        verified=task.verified >> number & 1 != 0,
        strict=task.strict >> number & 1 != 0,
    )
