"""A sweep's directory, or those of several runs, read into one form: trials, each with its seeds and their curves."""

import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jaxagent import metrics, schema
from jaxagent.errors import DataError, UsageError
from jaxagent.rundir import RunDir

if TYPE_CHECKING:
    import pyarrow as pa

_IDENTITY = {"trial": "string", "seed": "int64"}
_PROGRESS = {"rung": "int32", "updates": "int32", "env_steps": "int64", "status": "string"}
_OUTCOME = {"objective": "float64", "reason": "string", "parent": "string", "curve": "string"}  # null where there is none
_CURVE = {"update": "int32", "env_steps": "int64"}
CURVES = ("return_mean", "success_rate", "length_mean", "entropy", "value_loss", "approx_kl")  # those worth drawing


class Seed(NamedTuple):
    """Where one seed of a trial got to."""

    seed: int
    status: Literal["done", "rung", "failed"]
    score: float | None  # None if it failed
    reason: str | None
    rung: int
    updates: int
    env_steps: int


class Curve(NamedTuple):
    """The log of one seed."""

    update: np.ndarray  # int [n], ascending
    env_steps: np.ndarray  # int [n]
    values: Mapping[str, np.ndarray]  # float [n] each; NaN where nothing was measured


@dataclass(frozen=True)
class Trial:
    """One setting of the hyperparameters.

    Attributes:
      name: of the trial, or the path of the run.
      settings: by dotted path.
      seeds: in order.
      commands: what trains it once more, a command for each stretch of consecutive seeds.
      inherited: whether its settings changed during training (population-based): the commands have the last ones only.
      curves: of its seeds.
    """

    name: str
    settings: Mapping[str, Any]
    seeds: Sequence[Seed]
    commands: Sequence[str]
    inherited: bool = False
    curves: list[Curve] = field(default_factory=list)


@dataclass(frozen=True)
class Study:
    """What a report is about.

    Attributes:
      kind: whether `directories` holds one sweep or several runs.
      objective: what is compared, such as `eval.success_rate`.
      mode: whether more of it is better (`max`) or less (`min`).
      provenance: entries of `env.json`.
    """

    kind: Literal["sweep", "runs"]
    name: str
    directories: Sequence[Path]
    objective: str
    mode: Literal["max", "min"]
    trials: Sequence[Trial]
    provenance: Sequence[Any]


def read(directories: Sequence[Path]) -> Study:
    """Reads one sweep, or several runs to compare.

    Raises:
      UsageError: a directory is neither, or there are several and one is a sweep.
      DataError: something in them cannot be read, or holds no trial yet.
    """
    directories = list(dict.fromkeys(directories))
    sweeps = [path for path in directories if (path / "sweep.toml").is_file()]
    for path in directories:
        if path not in sweeps and not RunDir(path).config.is_file():
            raise UsageError(f"{path}: expected the directory of a sweep (with sweep.toml) or of a run (with config.toml)")
    if not sweeps:
        return _read_runs(directories)
    if len(directories) > 1:
        raise UsageError(f"expected one sweep, or runs; {sweeps[0]} is a sweep, and {len(directories)} directories are given")
    return _read_sweep(sweeps[0])


# a sweep ----------------------------------------------------------------------------------------------------------------------


def _read_sweep(path: Path) -> Study:
    spec = _toml(path / "sweep.toml")
    sweep = spec.get("sweep")
    if not isinstance(sweep, dict) or not isinstance(sweep.get("objective"), str) or sweep.get("mode") not in ("max", "min"):
        raise DataError(f"{path / 'sweep.toml'}: expected a table sweep with an objective, and a mode, max or min")
    ledger = _ledger(path)
    names = _setting_names(ledger, path)
    curves = _sweep_curves(path, ledger)
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    inherited = set()
    for row in sorted(ledger.to_pylist(), key=lambda row: row["rung"]):  # what a seed reached last stays
        seeds = rows.setdefault(row["trial"], {})
        before = seeds.get(row["seed"], row)
        if row["parent"] is not None or any(before[name] != row[name] for name in names):
            inherited.add(row["trial"])
        seeds[row["seed"]] = row
    trials = []
    for trial, seeds in rows.items():
        last = max(seeds.values(), key=lambda row: row["rung"])
        settings = {name: _decoded(last[name]) for name in names if last[name] is not None}
        overrides = {**settings, "train.num_updates": last["updates"]}
        commands = [
            train_command(str(spec.get("base", "CONFIG.toml")), overrides, first, count) for first, count in _stretches(seeds)
        ]
        outcomes = [_seed(seeds[seed], path) for seed in sorted(seeds)]
        trials.append(Trial(trial, settings, outcomes, commands, trial in inherited, curves.get(trial, [])))
    name = str(sweep.get("name") or path.resolve().name)
    return Study("sweep", name, [path], sweep["objective"], sweep["mode"], trials, _provenance(path))


def _seed(row: Mapping[str, Any], path: Path) -> Seed:
    score, status = row["objective"], row["status"]
    if status not in ("done", "rung", "failed"):
        raise DataError(f"{path / 'ledger.parquet'}: status: expected done, rung or failed, found {schema.shown(status)}")
    reason = row["reason"]
    if status != "failed" and (score is None or not np.isfinite(score)):
        status, reason = "failed", reason or f"the objective is {'missing' if score is None else score}"
    if status == "failed":
        score, reason = None, reason or "no reason was recorded"
    return Seed(row["seed"], status, score, reason, row["rung"], row["updates"], row["env_steps"])


def _decoded(value: Any) -> Any:
    """A setting as the ledger has it; lists are JSON text there."""
    if isinstance(value, str) and value.startswith("["):
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return decoded if isinstance(decoded, list) else value
    return value


def train_command(base: str, settings: Mapping[str, Any], seed: int, num_seeds: int = 1) -> str:
    """The command that trains with these settings, for a POSIX shell."""
    words = ["jaxagent", "train", base]
    for name, value in settings.items():
        words += [f"--{name}", schema.written(value)]
    words += ["--seed", str(seed)]
    return shlex.join(words if num_seeds == 1 else [*words, "--seeds", str(num_seeds)])


def _stretches(seeds: Mapping[int, Any]) -> Iterator[tuple[int, int]]:
    """Consecutive seeds: the first, and how many."""
    ordered = sorted(seeds)
    starts = [i for i, seed in enumerate(ordered) if i == 0 or seed != ordered[i - 1] + 1]
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        yield ordered[start], end - start


def _ledger(path: Path) -> "pa.Table":
    file = path / "ledger.parquet"
    if not file.is_file():
        raise DataError(f"{path}: no ledger.parquet: no trial of the sweep has ended yet")
    table = _parquet(file, _IDENTITY | _PROGRESS, nullable=_OUTCOME)
    if table.num_rows == 0:
        raise DataError(f"{file}: holds no row: no trial of the sweep has ended yet")
    return table


def _setting_names(ledger: "pa.Table", path: Path) -> list[str]:
    file = path / "ledger.parquet"
    try:
        names = json.loads((ledger.schema.metadata or {})[b"settings"])
    except (KeyError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: expected a JSON list of the settings' columns in its metadata, under `settings`") from error
    missing = [name for name in names if name not in ledger.column_names] if isinstance(names, list) else [names]
    if missing:
        raise DataError(f"{file}: settings: expected names of columns, found {schema.shown(missing[0])}")
    return names


def _sweep_curves(path: Path, ledger: "pa.Table") -> dict[str, list[Curve]]:
    """The curves of each trial, one a seed."""
    import pyarrow as pa

    files = sorted(name for name in ledger["curve"].unique().to_pylist() if name is not None)
    for name in files:
        if Path(name).name != name:
            raise DataError(f"{path / 'ledger.parquet'}: curve: expected the name of a file, found {schema.shown(name)}")
    if not files:
        return {}
    tables = [_parquet(path / "curves" / name, _IDENTITY | _CURVE) for name in files]
    wanted = {*_IDENTITY, *_CURVE, *CURVES}
    tables = [table.select([name for name in table.column_names if name in wanted]) for table in tables]
    order = [(name, "ascending") for name in (*_IDENTITY, "update")]
    rows = pa.concat_tables(tables, promote_options="permissive").sort_by(order)
    columns = {name: rows[name].to_numpy() for name in rows.column_names}
    owners = list(zip(columns.pop("trial").tolist(), columns.pop("seed").tolist(), strict=True))
    starts = [i for i, owner in enumerate(owners) if i == 0 or owner != owners[i - 1]]
    curves: dict[str, list[Curve]] = {}
    for start, end in zip(starts, [*starts[1:], len(owners)], strict=True):
        part = {name: column[start:end] for name, column in columns.items()}
        curve = Curve(part.pop("update"), part.pop("env_steps"), {name: v.astype(np.float64) for name, v in part.items()})
        curves.setdefault(owners[start][0], []).append(curve)
    return curves


def _parquet(file: Path, required: Mapping[str, str], nullable: Mapping[str, str] = MappingProxyType({})) -> "pa.Table":
    """A table that has at least these columns, each of its type."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(file, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file}: not readable as Parquet: {(str(error).splitlines() or [''])[0][:160]}") from error
    for name, kind in {**required, **nullable}.items():
        if name not in table.column_names:
            raise DataError(f"{file}: no column {name}; found {', '.join(table.column_names[:8])}")
        try:
            column = table[name].cast(kind)
        except pa.ArrowException as error:
            raise DataError(f"{file}: {name}: expected {kind}, found {table[name].type}") from error
        if name in required and column.null_count:
            raise DataError(f"{file}: {name}: expected a value in every row, found {column.null_count} without one")
        table = table.set_column(table.column_names.index(name), name, column)
    return table


# runs -------------------------------------------------------------------------------------------------------------------------


def _read_runs(paths: Sequence[Path]) -> Study:
    evaluations = [_evaluation(RunDir(path)) for path in paths]
    has_success = all(e.get("success_rate") is not None for e in evaluations if e) and any(evaluations)
    name = "success_rate" if has_success else "return_mean"
    trials = [_run_trial(RunDir(path), evaluation, name) for path, evaluation in zip(paths, evaluations, strict=True)]
    provenance = [entry for path in paths for entry in _provenance(path)]
    return Study("runs", f"{len(paths)} run{'s' * (len(paths) > 1)}", paths, f"eval.{name}", "max", trials, provenance)


def _run_trial(run: RunDir, evaluation: Mapping[str, Any], name: str) -> Trial:
    try:
        return _trial_of_run(run, evaluation, name)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{run.path}: config.toml, metrics.jsonl and eval.json do not fit together: {error!r:.160}") from error


def _trial_of_run(run: RunDir, evaluation: Mapping[str, Any], name: str) -> Trial:
    document = _toml(run.config)
    logged = metrics.read(run.metrics) if run.metrics.exists() else []
    first, count = document.get("seed", 0), document.get("num_seeds", 1)
    updates, env_steps = (logged[-1]["update"], np.ravel(logged[-1]["env_steps"])) if logged else (0, np.zeros(1, int))
    results = evaluation.get("seeds") or [evaluation] * count
    seeds = []
    for i, result in enumerate(results):
        score = result.get(name)
        known = isinstance(score, int | float) and bool(np.isfinite(score))
        reason = None if known else "not finished: no eval.json" if not evaluation else f"eval.json has no finite {name}"
        steps = int(env_steps[i % len(env_steps)])
        seeds.append(Seed(first + i, "done" if known else "failed", score if known else None, reason, 0, updates, steps))
    command = shlex.join(["jaxagent", "train", str(run.config)])
    curves = [_run_curve(logged, i, count) for i in range(count)] if logged else []
    settings = {key: value for key, value in _flat(document, "") if key not in ("seed", "num_seeds")}
    return Trial(str(run.path), settings, seeds, [command], curves=curves)


def _run_curve(rows: Sequence[Mapping[str, Any]], lane: int, num_seeds: int) -> Curve:
    def column(name: str) -> np.ndarray:
        return np.array([np.broadcast_to(row.get(name, np.nan), num_seeds)[lane] for row in rows])

    values = {name: column(name).astype(np.float64) for name in CURVES if any(name in row for row in rows)}
    return Curve(column("update"), column("env_steps"), values)


def _evaluation(run: RunDir) -> dict[str, Any]:
    """What `eval.json` holds, nothing if the run has not ended."""
    if not run.evaluation.exists():
        return {}
    from jaxagent.files import non_finite_back

    found = non_finite_back(_json(run.evaluation))
    if not isinstance(found, dict):
        raise DataError(f"{run.evaluation}: expected a JSON object")
    return found


def _flat(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


# files ------------------------------------------------------------------------------------------------------------------------


def _provenance(path: Path) -> list[Any]:
    file = RunDir(path).env
    found = _json(file) if file.exists() else []
    return found if isinstance(found, list) else [found]


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: not readable as JSON: {(str(error).splitlines() or [''])[0][:160]}") from error


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: not readable as TOML: {(str(error).splitlines() or [''])[0][:160]}") from error
