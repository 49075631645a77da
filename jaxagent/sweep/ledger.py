"""The ledger of a sweep: one Parquet table, from which alone a sweep continues, and reports are made.

A row for each rung that a lane, a trial with a seed, came to:

- `trial`, `seed`, `rung`, `group`: which; `group` numbers the static groups.
- `status`: `done` (trained for the whole budget), `rung` (paused at a rung before the end), `failed` (`reason` says why).
- `parent`: the trial whose state the lane took over at the rung before, under population-based training.
- `chunk`, `place`, `width`: the chunk of lanes it was trained in, where in it, and how many lanes had room there.
- `updates`, `env_steps`: done so far.
- `objective`: what trials are compared by; null where it is unknown.
- the settings, by dotted path, lists as JSON (the schema's metadata lists their names under `settings`).
- `train.NAME`, `eval.NAME`: metrics, null where unknown.
- `curve`: the file in `curves/` that holds the lane's metrics, a row for each segment.

Rows are in the order of trial, seed and rung, and hold nothing that a clock has a part in: two runs of a sweep on one kind of
machine leave equal ledgers.
"""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxagent.errors import DataError
from jaxagent.files import write_atomic

if TYPE_CHECKING:
    import pyarrow as pa

LEDGER, CURVES = "ledger.parquet", "curves"
STATUSES = ("done", "rung", "failed")
Row = Mapping[str, Any]
_ADVICE = "\nmove it away and run the sweep again: everything is trained anew, to the same numbers"


def columns() -> dict[str, "pa.DataType"]:
    """The columns that every ledger has, beside settings and metrics."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    return {
        "trial": text,
        "seed": number,
        "rung": pa.int32(),
        "group": pa.int32(),
        "status": text,
        "reason": text,
        "parent": text,
        "chunk": text,
        "place": pa.int32(),
        "width": pa.int32(),
        "updates": pa.int32(),
        "env_steps": number,
        "objective": pa.float64(),
        "curve": text,
    }


def write(directory: Path, rows: Iterable[Row], settings: Sequence[str]) -> None:
    """Replaces the ledger.

    Raises:
      ResourceError: the disk is full or refuses; the old ledger is untouched.
    """
    import pyarrow as pa

    ordered = sorted(rows, key=lambda row: (row["trial"], row["seed"], row["rung"]))
    known = columns()
    metrics = sorted({name for row in ordered for name in row} - known.keys() - set(settings))
    arrays = {name: pa.array([row.get(name) for row in ordered], kind) for name, kind in known.items()}
    arrays |= {name: pa.array([_plain(row.get(name)) for row in ordered]) for name in settings}
    arrays |= {name: pa.array([row.get(name) for row in ordered], pa.float64()) for name in metrics}
    table = pa.table(arrays).replace_schema_metadata({"settings": json.dumps(list(settings))})
    write_atomic(directory / LEDGER, to_bytes(table))


def to_bytes(table: "pa.Table") -> bytes:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def read(directory: Path) -> "pa.Table":
    """The ledger of a sweep's directory.

    Raises:
      DataError: there is none, or it is damaged or of another kind.
    """
    try:
        table = read_parquet(directory / LEDGER)
    except DataError as error:
        raise DataError(f"{error}{_ADVICE}") from error
    missing = [name for name in columns() if name not in table.column_names]
    if missing or b"settings" not in (table.schema.metadata or {}):
        lacking = ", ".join(missing) or "its list of settings"
        raise DataError(f"{directory / LEDGER}: not a sweep's ledger; missing {lacking}{_ADVICE}")
    return table


def export_csv(directory: Path, path: Path) -> None:
    """Writes the ledger as CSV.

    Raises:
      DataError: see `read`.
      ResourceError: the disk is full or refuses.
    """
    import pyarrow as pa
    from pyarrow import csv

    sink = pa.BufferOutputStream()
    csv.write_csv(read(directory), sink)
    write_atomic(path, bytes(sink.getvalue()))


def settings_of(table: "pa.Table") -> list[str]:
    """The names of the columns that are settings."""
    return list(json.loads(table.schema.metadata[b"settings"]))


def read_rows(directory: Path) -> list[Row]:
    """The rows as `write` takes them; none if there is no ledger yet. What a row does not know is left out."""
    if not (directory / LEDGER).exists():
        return []
    required = columns().keys()
    return [
        {name: value for name, value in row.items() if value is not None or name in required}
        for row in read(directory).to_pylist()
    ]


def read_curves(directory: Path, files: Iterable[str]) -> "pa.Table":
    """The curves in these files, long: `trial`, `seed`, `rung`, `update`, `env_steps` and the metrics, a row a segment.

    Raises:
      DataError: one cannot be read.
    """
    import pyarrow as pa

    tables = [read_parquet(directory / CURVES / name) for name in sorted(set(files))]
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def read_parquet(path: Path) -> "pa.Table":
    """A Parquet file.

    Raises:
      DataError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(io.BytesIO(path.read_bytes()))  # at once: a writer may replace the file
    except (OSError, pa.ArrowException) as error:
        known = isinstance(error, OSError) and error.errno is not None
        why = error.strerror if known else "damaged or cut short, or no Parquet file"
        raise DataError(f"cannot read {path}: {why}") from error


def _plain(value: Any) -> Any:
    return json.dumps(list(value)) if isinstance(value, list | tuple) else value
