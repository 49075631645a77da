"""The log of a run, one JSON object a line, and the intervals that averages are reported with.

A row holds numbers that a resumed run repeats exactly, and one key, `timing`, with all that a clock has a part in.
Non-finite numbers are the strings `"NaN"`, `"Infinity"` and `"-Infinity"` (see `jaxagent.files.jsonable`).
"""

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from jaxagent.errors import DataError
from jaxagent.files import disk_errors, jsonable, non_finite_back

_log = logging.getLogger(__name__)


# Of totals over episodes (`info["totals"]` and success), what is told as a ratio of two.
RATIOS = {
    "turns_per_success": ("success_turns", "success"),
    "tool_error_rate": ("errors", "turns"),
    "invalid_rate": ("invalid", "turns"),
    "recovery_rate": ("recoveries", "episodes_with_error"),
}
ONLY_IN_RATIOS = ("success_turns", "episodes_with_error", "recoveries")


# What is worth drawing of a run, the most telling first: what became of the episodes played, and how learning went.
PLAYED = ("return_mean", "success_rate", "performance_mean", "turns_mean", "length_mean")
CURVES = (
    *PLAYED,
    "entropy",
    "kl",
    "loss",
    "accuracy",
    "held_out_loss",
    "value_loss",
    "approx_kl",
    "zero_variance_rate",
    "unfinished_rate",
)
_MOST_CURVES = 9


def worth_drawing(measured: Mapping[str, Any]) -> list[str]:
    """Those of `CURVES` with a finite value in their arrays, at most nine.

    Turns are shown instead of steps where both are counted, and `unfinished_rate` if any episode was cut.
    """
    known = {name: values[np.isfinite(values)] for name, values in measured.items()}
    shown = [name for name in CURVES if name in known and known[name].size]
    idle = {"length_mean"} if "turns_mean" in shown else set()
    if "unfinished_rate" in shown and not np.any(known["unfinished_rate"]):
        idle.add("unfinished_rate")
    return [name for name in shown if name not in idle][:_MOST_CURVES]


def ratios(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `RATIOS` that can be told from sums over episodes; NaN where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            name: np.where(sums[below] > 0, np.divide(sums[above], sums[below]), np.nan)
            for name, (above, below) in RATIOS.items()
            if above in sums and below in sums
        }


class MetricsLog:
    """Appends rows to a file. After a kill, at most the line that was being written is torn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors(path, 0):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, update: int, row: Mapping[str, Any], *, timing: Mapping[str, Any]) -> None:
        """Writes one row and hands it to the operating system.

        Args:
          update: updates done so far; grows from row to row.
          row: numbers or arrays, which become lists.
          timing: the wall-clock part.

        Raises:
          ResourceError: the disk is full or refuses.
        """
        content = jsonable({"update": update, **row, "timing": timing})
        line = json.dumps(content, allow_nan=False).encode() + b"\n"
        with disk_errors(self._path, len(line)):
            while line:  # a nearly full disk takes a part first, then raises
                line = line[os.write(self._descriptor, line) :]

    def sync(self) -> None:
        """Waits until all rows are on the disk. Call it before a checkpoint that they lead up to."""
        with disk_errors(self._path, 0):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read(path: Path) -> list[dict[str, Any]]:
    """All rows, in order; the torn last line of a killed writer is left out.

    Raises:
      DataError: the file cannot be read, or a line before the last is no row.
    """
    rows = []
    for number, (line, row) in enumerate(_lines(path), start=1):
        if row is not None:
            rows.append(row)
        elif line.endswith(b"\n"):
            raise DataError(f"{path}, line {number}: expected a JSON object, got {line[:40]!r}")
    return rows


def truncate_after(path: Path, update: int) -> None:
    """Cuts the rows beyond `update` off, and a torn line, so that a run that goes on from there logs every update once.

    From a damaged line on everything is cut; if that loses rows up to `update`, a warning says so. No file is no rows.

    Raises:
      ResourceError: the disk refuses.
    """
    if not path.exists():
        return
    end = 0
    for number, (line, row) in enumerate(_lines(path), start=1):
        if row is None or not isinstance(row.get("update"), int):
            if line.endswith(b"\n"):
                _log.warning("%s, line %d is damaged: the log is cut there", path, number)
            break
        if row["update"] > update:
            break
        end += len(line)
    with disk_errors(path, 0), open(path, "r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line with the row it holds, or None where it is torn or no JSON object."""
    try:
        with open(path, "rb") as file:
            for line in file:
                yield line, _parse(line)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return non_finite_back(row) if isinstance(row, dict) else None


class Estimate(NamedTuple):
    """An average and its confidence interval."""

    value: float
    interval: tuple[float, float]


def mean_interval(values: Sequence[float] | np.ndarray, *, confidence: float = 0.95) -> Estimate:
    """The mean of independent values with Student's t interval.

    One value says nothing about its spread: the interval is then the whole line.

    Raises:
      ValueError: there are no values.
    """
    from scipy.special import stdtrit

    sample = np.asarray(values, np.float64).ravel()
    if sample.size == 0:
        raise ValueError("expected at least one value, got none")
    mean = float(sample.mean())
    if sample.size == 1:
        return Estimate(mean, (-np.inf, np.inf))
    half = float(stdtrit(sample.size - 1, (1 + confidence) / 2) * sample.std(ddof=1) / np.sqrt(sample.size))
    return Estimate(mean, (mean - half, mean + half))


def proportion_interval(successes: int, trials: int, *, confidence: float = 0.95) -> Estimate:
    """A success rate with Wilson's score interval (Wilson 1927), which stays within `[0, 1]` and is sound at both ends.

    Raises:
      ValueError: unless `0 <= successes <= trials` and `trials >= 1`.
    """
    from scipy.special import ndtri

    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"expected 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    rate = successes / trials
    z2 = float(ndtri((1 + confidence) / 2)) ** 2
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = math.sqrt(z2 * (rate * (1 - rate) / trials + z2 / (4 * trials**2))) / (1 + z2 / trials)
    return Estimate(rate, (min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))))  # despite rounding
