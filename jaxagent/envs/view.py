"""The agent's egocentric 7x7 view, with MiniGrid's occlusion.

View cell `[x, y]` shows the world cell `agent + forward * (6 - y) + right * (x - 3)`: the agent stands at `[3, 6]` and looks
towards `y = 0`. Light starts at the agent's cell and climbs row by row. Inside a row it floods left and right through
transparent cells, up to and including the first opaque cell on each side; every lit transparent cell lights the three cells
above it. A row is seven bits, so its flood and the seed of the row above are integer arithmetic on one small number.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.envs import symbols
from jaxagent.render import atlas

SIZE = 7
PAD = SIZE - 1  # how far the view reaches beyond the agent
AGENT_XY = (SIZE // 2, SIZE - 1)
TILE_SIZE = 8  # pixels, of `rgb`

_FULL_ROW = (1 << SIZE) - 1


def offsets(stride: int) -> np.ndarray:
    """Flat index of each view cell relative to the agent's, int32 `[direction, x, y]`, in a grid of `stride` cells a row."""
    forward = symbols.DIRECTION_XY @ np.array([1, stride])
    right = np.roll(forward, -1)
    x, y = np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij")
    ahead, aside = AGENT_XY[1] - y, x - AGENT_XY[0]
    return (forward[:, None, None] * ahead + right[:, None, None] * aside).astype(np.int32)


def light_row(transparent: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Floods one row. Arguments and results are bit rows, bit `x` for column `x`.

    Returns:
      The lit cells of this row, and the cells of the row above that they light.
    """
    seen_through = seeds & transparent
    for _ in range(SIZE - 1):
        seen_through = seen_through | (seen_through << 1 | seen_through >> 1) & transparent
    spread = (seen_through | seen_through << 1 | seen_through >> 1) & _FULL_ROW
    return seeds | spread, spread


def _row_table() -> np.ndarray:
    """`light_row` for all inputs, uint16 `[transparent << 7 | seeds]`: lit cells, then the next seeds shifted left by 7."""
    transparent, seeds = np.divmod(np.arange(1 << 2 * SIZE), 1 << SIZE)
    lit, above = light_row(transparent, seeds)
    return (lit | above << SIZE).astype(np.uint16)


_ROWS = _row_table()


def opaque(view: jax.Array) -> jax.Array:
    """Whether symbols block sight: walls, closed and locked doors. bool, of the shape of `view`."""
    return (view >> 3 == symbols.WALL) | (view >= symbols.DOOR_CLOSED << 3)


def visible(view: jax.Array) -> jax.Array:
    """Which cells of a view are lit, bool `[7, 7]` as `[x, y]`, given its symbols, uint8 `[7, 7]`."""
    bit = jnp.uint16(1) << jnp.arange(SIZE, dtype=jnp.uint16)
    transparent = jnp.sum(jnp.where(opaque(view), jnp.uint16(0), bit[:, None]), axis=0, dtype=jnp.uint16)  # [y]
    seeds = jnp.uint16(1 << AGENT_XY[0])
    lit = [seeds] * SIZE
    for y in reversed(range(SIZE)):
        row = take(jnp.asarray(_ROWS), transparent[y] << SIZE | seeds)
        lit[y], seeds = row & _FULL_ROW, row >> SIZE
    return (jnp.stack(lit)[None, :] & bit[:, None]) != 0


def take(array: jax.Array, index: jax.Array) -> jax.Array:
    """`array[index]` without the arithmetic for negative and out-of-range indices, which there must not be."""
    return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def window(position: jax.Array, direction: jax.Array, stride: int) -> jax.Array:
    """Flat indices of the cells in view, int32 `[7, 7]` as `[x, y]`, in a padded grid of `stride` cells a row."""
    return position + take(jnp.asarray(offsets(stride)), direction)


def look(cells: jax.Array, indices: jax.Array, hands: jax.Array, *, see_through_walls: bool) -> jax.Array:
    """What the agent sees.

    Args:
      cells: uint8 `[P]` symbols.
      indices: of the cells in view, from `window`.
      hands: uint8 symbol to show where the agent stands, whatever it stands on: what it carries, or an empty cell.
      see_through_walls: whether the view has no occlusion.

    Returns:
      uint8 `[7, 7]` symbols as `[x, y]`, 0 where nothing is seen.
    """
    # without the barrier XLA would gather again for each use of the view
    seen = jax.lax.optimization_barrier(take(cells, indices))
    # occlusion looks at what the agent stands on, the observation does not; the cell itself is always lit
    shown = jax.lax.dynamic_update_slice(seen, hands[None, None], AGENT_XY)
    return shown if see_through_walls else jnp.where(visible(seen), shown, jnp.uint8(0))


# encodings --------------------------------------------------------------------------------------------------------------------


def decode(symbol: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """MiniGrid's object index, colour and state of symbols, uint8 each."""
    kind = symbols.kind_of(symbol)
    state = jnp.where(kind >= symbols.DOOR_CLOSED, kind - (symbols.DOOR_CLOSED - 1), jnp.uint8(0))
    return jnp.where(state > 0, jnp.uint8(symbols.DOOR_OPEN), kind), symbols.colour_of(symbol), state


def _packed(view: jax.Array) -> jax.Array:
    return view


def _symbolic(view: jax.Array) -> jax.Array:
    # stacked channels first and turned after: interleaving bytes costs more than the rest of a step, and a consumer that
    # XLA can fuse with the transpose never pays for it
    return jnp.moveaxis(jnp.stack(decode(view)), 0, -1)


def _onehot(view: jax.Array) -> jax.Array:
    sizes = (11, 6, 3)  # kinds, colours, states
    planes = [channel == jnp.arange(n)[:, None, None] for channel, n in zip(decode(view), sizes, strict=True)]
    return jnp.moveaxis(jnp.concatenate(planes), 0, -1).astype(jnp.uint8)


def _rgb(view: jax.Array) -> jax.Array:
    lit = atlas(TILE_SIZE, highlight=True).copy()
    lit[0] = atlas(TILE_SIZE)[symbols.EMPTY_CELL]  # what is not seen is drawn as empty and dark
    tiles = take(jnp.asarray(lit), view)  # [x, y, t, t, 3]
    tiles = tiles.at[AGENT_XY].set(take(jnp.asarray(atlas(TILE_SIZE, agent_dir=symbols.UP, highlight=True)), view[AGENT_XY]))
    return tiles.transpose(1, 2, 0, 3, 4).reshape(SIZE * TILE_SIZE, SIZE * TILE_SIZE, 3)


class Encoding(NamedTuple):
    """How an observation shows the view.

    Attributes:
      encode: from symbols, uint8 `[7, 7]`.
      shape: of the result, uint8.
      high: its highest value.
    """

    encode: Callable[[jax.Array], jax.Array]
    shape: tuple[int, ...]
    high: int


ENCODINGS: dict[str, Encoding] = {
    "packed": Encoding(_packed, (SIZE, SIZE), symbols.symbol(symbols.DOOR_LOCKED, symbols.GREY)),
    "symbolic": Encoding(_symbolic, (SIZE, SIZE, 3), symbols.LAVA),
    "onehot": Encoding(_onehot, (SIZE, SIZE, 20), 1),
    "rgb": Encoding(_rgb, (SIZE * TILE_SIZE, SIZE * TILE_SIZE, 3), 255),
}


def world(cells: jax.Array, x: jax.Array, y: jax.Array, direction: jax.Array) -> jax.Array:
    """The whole world in MiniGrid's encoding with the agent in it, uint8 `[W, H, 3]`, from uint8 `[W, H]` symbols."""
    channels = jnp.moveaxis(jnp.stack(decode(cells)), 0, -1)
    return channels.at[x, y].set(jnp.stack([symbols.AGENT, symbols.RED, direction]).astype(jnp.uint8))
