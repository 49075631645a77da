"""Grid cells as one byte: `symbol = kind << 3 | colour`.

`kind` is MiniGrid's object index (0-10); a door's state is part of its kind, so kinds 11 and 12 are the closed and the locked
door and 4 is the open one. `colour` is MiniGrid's colour index. Everything about a cell is then arithmetic on one `uint8`.
"""

from typing import TypeVar

import jax
import numpy as np

# kinds
UNSEEN, EMPTY, WALL, FLOOR, DOOR_OPEN, KEY, BALL, BOX, GOAL, LAVA, AGENT, DOOR_CLOSED, DOOR_LOCKED = range(13)
KIND_NAMES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")

# colours
RED, GREEN, BLUE, PURPLE, YELLOW, GREY = range(6)
COLOUR_NAMES = ("red", "green", "blue", "purple", "yellow", "grey")

# directions
RIGHT, DOWN, LEFT, UP = range(4)
DIRECTION_XY = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.int32)  # [direction, (x, y)]

Symbols = TypeVar("Symbols", jax.Array, np.ndarray, int)


def symbol(kind: Symbols, colour: Symbols) -> Symbols:
    """Packs a kind and a colour into one symbol."""
    return kind << 3 | colour


def kind_of(symbols: Symbols) -> Symbols:
    return symbols >> 3


def colour_of(symbols: Symbols) -> Symbols:
    return symbols & 7


# cells whose colour is fixed, as MiniGrid encodes them
EMPTY_CELL = symbol(EMPTY, RED)
WALL_CELL = symbol(WALL, GREY)
GOAL_CELL = symbol(GOAL, GREEN)
LAVA_CELL = symbol(LAVA, RED)
