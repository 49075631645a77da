"""What a person sees of a running job: a bar on a terminal, a line every few seconds elsewhere.

Written to the standard error, so that the standard output stays free for results.
"""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TextIO

_WINDOW = 20  # reports that the rate is measured over


class _Status(NamedTuple):
    update: int
    total: int
    steps_per_s: float | None
    seconds_left: float | None
    values: Mapping[str, float | str]

    def text(self) -> str:
        rate = "-" if self.steps_per_s is None else compact(self.steps_per_s)
        left = "-" if self.seconds_left is None else timedelta(seconds=round(self.seconds_left))
        values = (f"{name} {_told(value)}" for name, value in self.values.items())
        return "  ".join([f"{rate} steps/s", f"eta {left}", *values])


def _told(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return "-" if math.isnan(value) else f"{value:.4g}"


class _Display(Protocol):
    def show(self, status: _Status, *, last: bool) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Progress:
    """Shows how far a run is, its rate, the time left, and chosen values such as the return.

    On a terminal a bar (rich, which honours `NO_COLOR`), elsewhere plain lines, at most one each `interval` seconds beside the
    last. The rate is that of the last reports, so compiling and resuming do not spoil it. Use it as a context.
    """

    def __init__(
        self,
        total: int,
        *,
        start: int = 0,
        unit: str = "update",
        stream: TextIO | None = None,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total` and `start` are updates, or whatever `unit` names; `interval` is in seconds."""
        stream = sys.stderr if stream is None else stream
        self._total = total
        self._clock = clock
        self._marks: deque[tuple[float, int, int]] = deque(maxlen=_WINDOW)  # time, update, env steps
        self._status = _Status(start, total, None, None, {})
        self._display: _Display = (
            _Bar(stream, total, start, unit) if _is_terminal(stream) else _Lines(stream, interval, clock, unit)
        )

    def report(self, update: int, *, env_steps: int, values: Mapping[str, float | str]) -> None:
        """Shows that `update` updates and `env_steps` environment steps are done in all; numbers that are NaN as `-`."""
        self._marks.append((self._clock(), update, env_steps))
        (then, first_update, first_steps), (now, _, _) = self._marks[0], self._marks[-1]
        seconds, updates = now - then, update - first_update
        known = seconds > 0 and updates > 0
        self._status = _Status(
            update,
            self._total,
            (env_steps - first_steps) / seconds if known else None,
            max(0, self._total - update) * seconds / updates if known else None,
            values,
        )
        self._display.show(self._status, last=False)

    def note(self, text: str) -> None:
        """Shows a line that stays."""
        self._display.note(text)

    def close(self) -> None:
        """Shows the last report once more, for good."""
        self._display.show(self._status, last=True)
        self._display.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class _Lines:
    """A stream that is no terminal. One that is closed or full (`| head`) must not stop the run."""

    def __init__(self, stream: TextIO, interval: float, clock: Callable[[], float], unit: str) -> None:
        self._stream = stream
        self._unit = unit
        self._interval = interval
        self._clock = clock
        self._last_time: float | None = None
        self._last_line = ""

    def show(self, status: _Status, *, last: bool) -> None:
        now = self._clock()
        due = self._last_time is None or now - self._last_time >= self._interval
        line = f"{self._unit} {status.update}/{status.total}  {status.text()}"
        if (due or last) and line != self._last_line:
            self.note(line)
            self._last_time, self._last_line = now, line

    def note(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        return


class _Bar:
    """A terminal. Warnings and other writes to the standard error appear above the bar."""

    def __init__(self, stream: TextIO, total: int, start: int, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn(unit), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}", markup=False))
        console = Console(file=stream)
        self._progress = RichProgress(*columns, console=console, refresh_per_second=4, redirect_stdout=False)
        self._task = self._progress.add_task("", total=total, completed=start, text="")
        self._progress.start()

    def show(self, status: _Status, *, last: bool) -> None:
        self._progress.update(self._task, completed=status.update, text=status.text(), refresh=last)

    def note(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()


def compact(number: float) -> str:
    """Three digits and a unit: 1234567 is `1.23M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"
