"""The objects of a live environment of Farama's `minigrid`, as rows of ours."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxagent.envs import symbols
from jaxagent.envs.grid import Frame
from jaxagent.envs.instructions import CARRIED, GONE

PORTABLE = ("key", "ball", "box")
COLOUR_NUMBERS = {name: number for number, name in enumerate(symbols.COLOUR_NAMES)}
_KIND_NUMBERS = {name: number for number, name in enumerate(symbols.KIND_NAMES)}
_DOOR_KINDS = (symbols.DOOR_OPEN, symbols.DOOR_CLOSED, symbols.DOOR_LOCKED)  # by MiniGrid's state


@dataclass(eq=False)
class Row:
    """An object, as it becomes a row of `Objects` and `Task`, in the order of ranks. Those up to rank 0 are needed."""

    symbol: int
    position: int = GONE
    inside: "Row | None" = None
    rank: int = 0
    members: int = 0
    known: int = GONE


class Things:
    """Keys, balls, boxes and doors of an environment, on the grid, in hands and in boxes."""

    def __init__(self, source: Any) -> None:
        self.frame = Frame(source.width, source.height)
        self.cells = {(i % source.width, i // source.width): thing for i, thing in enumerate(source.grid.grid)}
        self._rows: dict[Any, Row] = {}  # by the identity of the `WorldObj`
        self.carried = None if source.carrying is None else self._add(source.carrying, CARRIED)
        for xy, thing in self.cells.items():
            if thing is not None and thing.type in (*PORTABLE, "door"):
                self._add(thing, self.frame.index(*xy))

    def _add(self, thing: Any, position: int) -> Row:
        if id(thing) in self._rows:
            raise ValueError(f"grid: one and the same {thing.color} {thing.type} is in two places")
        row = self._rows[id(thing)] = Row(symbol_of(thing), position, rank=2 if thing.type == "door" else 1)
        if thing.contains is not None:
            row.inside = self._add(thing.contains, GONE)
            row.rank = row.inside.rank = 0
        return row

    def needed(self, thing: Any) -> Row:
        """The row of an object that the rules are about, wherever it is now."""
        row = self._rows.setdefault(id(thing), Row(symbol_of(thing)))
        row.rank = min(row.rank, 0)
        return row

    def like(self, kind: str, colour: str) -> Iterator[Row]:
        """Rows of all objects of a kind and colour, needed from now on."""
        symbol = _symbol_named(kind, colour)
        for row in self._rows.values():
            if row.symbol == symbol:
                row.rank = min(row.rank, 0)
                yield row

    def gone(self, kind: str, colour: str) -> Row:
        """A row for a key, ball or box that is nowhere any more."""
        return self._new(Row(_symbol_named(kind, colour)))

    def place(self, xy: Any) -> Row:
        """A row for an empty cell."""
        return self._new(Row(symbols.EMPTY_CELL, self.index(xy), known=self.index(xy)))

    def _new(self, row: Row) -> Row:
        self._rows["new", len(self._rows)] = row
        return row

    def index(self, xy: Any) -> int:
        return int(self.frame.index(*map(int, xy)))

    def rows(self, size: int | None, *, all_objects: bool) -> list[Row]:
        """Those needed, with `all_objects` all that are portable; or as many as there is room for, if a `size` is given."""
        rows = sorted(self._rows.values(), key=lambda row: row.rank)
        return rows[:size] if size is not None else [row for row in rows if row.rank <= int(all_objects)]


def _symbol_named(kind: str, colour: str) -> int:
    return symbols.symbol(_KIND_NUMBERS[kind], COLOUR_NUMBERS[colour])


def symbol_of(thing: Any) -> int:
    """The symbol of a `WorldObj`, or of None."""
    if thing is None:
        return symbols.EMPTY_CELL
    kind, colour, state = thing.encode()
    return symbols.symbol(_DOOR_KINDS[state] if kind == symbols.DOOR_OPEN else kind, colour)
