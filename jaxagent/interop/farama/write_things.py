"""The objects of a state of ours, as Farama's `minigrid` has them."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxagent.envs import view
from jaxagent.envs.grid import Frame, GridState
from jaxagent.envs.instructions import CARRIED, NOTHING

_IN_HANDS = (-1, -1)  # where what is carried is


class Things:
    """The `WorldObj`s of a state, each of them once.

    Attributes:
      carried: what is in the agent's hands, or will be by its first action; None for nothing.
      task: of the state.
    """

    def __init__(self, frame: Frame, state: GridState) -> None:
        self._frame, self._state = frame, state
        self._rows: dict[int, Any] = {}
        self.task: Any = state.task  # a `Task` wherever it is asked for
        held = NOTHING if state.objects is None else int(state.objects.held)
        self.carried = _thing(int(state.carrying), _IN_HANDS) if held == NOTHING else self.row(held)

    def grid(self) -> Any:
        from minigrid.core.grid import Grid

        frame, state = self._frame, self._state
        positions = [] if state.objects is None else state.objects.position.tolist()
        row_at = {position: row for row, position in enumerate(positions) if position >= 0}
        grid = Grid(frame.width, frame.height)
        for x, y in np.ndindex(frame.width, frame.height):
            index = frame.index(x, y)
            thing = self.row(row_at[index]) if index in row_at else _thing(int(state.cells[index]), (x, y))
            grid.set(x, y, None if thing is self.carried else thing)
        return grid

    def row(self, row: int) -> Any:
        """The object of a row, wherever it is; None where the row stands for an empty cell."""
        if row not in self._rows:
            objects: Any = self._state.objects
            position = int(objects.position[row])
            symbol = int(self._state.cells[position] if position >= 0 else objects.symbol[row])
            self._rows[row] = thing = _thing(symbol, self._place(row, position))
            inside = NOTHING if objects.contents is None else int(objects.contents[row])
            if inside != NOTHING:
                thing.contains = self.row(inside)
        return self._rows[row]

    def _place(self, row: int, position: int) -> Any:
        """The cell of an object, or where it was when it was opened."""
        if position == CARRIED:
            return _IN_HANDS
        return self.xy(position) if position >= 0 or self.task is None else self.known(row)

    def xy(self, index: Any) -> tuple[int, int]:
        y, x = divmod(int(index) - view.PAD, self._frame.stride)
        return x, y - view.PAD

    def known(self, row: int) -> tuple[int, int] | None:
        """Where the verifier last saw an object, if it did."""
        known = int(self.task.known[row])
        return self.xy(known) if known >= 0 else None

    def members(self, bit: int) -> list[int]:
        """Rows that match a description: those that the verifier last saw first, in the order in which it finds them."""
        rows = [row for row, members in enumerate(self.task.members.tolist()) if members & bit]
        return sorted(rows, key=lambda row: self.known(row) or (self._frame.width, 0))


def _thing(symbol: int, place: Any) -> Any:
    """A new `WorldObj` of a symbol, at a place; None for an empty cell."""
    from minigrid.core.world_object import WorldObj

    thing = WorldObj.decode(*_codes()[symbol])
    if thing is not None:
        thing.cur_pos = place
    return thing


@functools.cache
def _codes() -> list[list[int]]:
    """MiniGrid's object index, colour and state of every symbol."""
    return np.stack(view.decode(jnp.arange(256, dtype=jnp.uint8)), axis=1).tolist()
