"""A sweep's directory, or those of several runs, read into one form: trials, each with its seeds and their curves."""

import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jaxagent import config, metrics, schema
from jaxagent.errors import DataError, UsageError
from jaxagent.learners import LEARNERS
from jaxagent.rundir import RunDir
from jaxagent.sweep import ledger

if TYPE_CHECKING:
    import pyarrow as pa

_NULLABLE = ("objective", "reason", "parent", "curve")  # columns of a ledger; the others that are read have a value everywhere
_BUDGETS = ("train.num_updates", "train.total_steps")
_EVALUATED = ("success_rate", "return_mean", "performance_mean", "turns_mean", "length_mean", "latency_mean")


class Seed(NamedTuple):
    """Where one seed of a trial got to."""

    seed: int
    status: Literal["done", "rung", "failed"]
    score: float | None  # None if it failed, or nothing is known yet
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
      commands: what trains it once more, a command for each stretch of consecutive seeds; none if `inherited`.
      inherited: whether it took over another's state during training (population-based), and settings, of which `settings` has
        the last: no command trains it once more.
      curves: of its seeds.
      evaluated: what the evaluation of a run found beside the objective, over all seeds.
    """

    name: str
    settings: Mapping[str, Any]
    seeds: Sequence[Seed]
    commands: Sequence[str]
    inherited: bool = False
    curves: list[Curve] = field(default_factory=list)
    evaluated: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """What a report is about.

    Attributes:
      kind: whether `directories` holds one sweep or several runs.
      objective: what is compared, such as `eval.success_rate`.
      mode: whether more of it is better (`max`) or less (`min`).
      provenance: entries of `env.json`.
      warnings: what could not be read, a line each.
    """

    kind: Literal["sweep", "runs"]
    name: str
    directories: Sequence[Path]
    objective: str
    mode: Literal["max", "min"]
    trials: Sequence[Trial]
    provenance: Sequence[Any]
    warnings: Sequence[str] = ()


def read(directories: Sequence[Path]) -> Study:
    """Reads one sweep, or several runs to compare.

    Raises:
      UsageError: a directory is neither, or there are several and one is a sweep.
      DataError: something in them other than curves cannot be read, or holds no trial yet.
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
    spec, provenance = _toml(path / "sweep.toml"), _provenance(path)
    sweep = spec.get("sweep")
    if not isinstance(sweep, dict) or not isinstance(sweep.get("objective"), str) or sweep.get("mode") not in ("max", "min"):
        raise DataError(f"{path / 'sweep.toml'}: expected a table sweep with an objective, and a mode, max or min")
    table = _ledger(path)
    names = _setting_names(table, path)
    curves, warnings = _sweep_curves(path, table, _drawn(spec.get("config")))
    base = str(spec.get("base", "CONFIG.toml"))
    rows: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in sorted(table.to_pylist(), key=lambda row: row["rung"]):
        rows.setdefault(row["trial"], {}).setdefault(row["seed"], []).append(row)
    trials = [_sweep_trial(trial, seeds, names, base, curves.get(trial, [])) for trial, seeds in rows.items()]
    return Study("sweep", path.resolve().name, [path], sweep["objective"], sweep["mode"], trials, provenance, warnings)


def _sweep_trial(
    trial: str, rows: Mapping[int, Sequence[Mapping[str, Any]]], names: Sequence[str], base: str, curves: list[Curve]
) -> Trial:
    """A trial from its rows by seed, in the order of their rungs."""
    last = max((of_seed[-1] for of_seed in rows.values()), key=lambda row: row["rung"])
    settings = {name: _decoded(last[name]) for name in names if last[name] is not None}
    inherited = any(
        row["parent"] is not None or any(row[name] != of_seed[0][name] for name in names)
        for of_seed in rows.values()
        for row in of_seed
    )
    told = {name: value for name, value in settings.items() if name not in _BUDGETS} | {"train.num_updates": last["updates"]}
    commands = [] if inherited else [train_command(base, told, first, count) for first, count in _stretches(rows)]
    return Trial(trial, settings, [_seed(rows[seed][-1]) for seed in sorted(rows)], commands, inherited, curves)


def _seed(row: Mapping[str, Any]) -> Seed:
    known = row["status"] != "failed" and row["objective"] is not None and np.isfinite(row["objective"])
    reason = row["reason"] or ("no reason was recorded" if row["status"] == "failed" else None)
    score = row["objective"] if known else None
    return Seed(row["seed"], row["status"], score, reason, row["rung"], row["updates"], row["env_steps"])


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
        words += [config.option(name), schema.written(value)]
    words += ["--seed", str(seed)]
    return shlex.join(words if num_seeds == 1 else [*words, "--seeds", str(num_seeds)])


def _stretches(seeds: Mapping[int, Any]) -> Iterator[tuple[int, int]]:
    """Consecutive seeds: the first, and how many."""
    ordered = sorted(seeds)
    starts = [i for i, seed in enumerate(ordered) if i == 0 or seed != ordered[i - 1] + 1]
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        yield ordered[start], end - start


def _ledger(path: Path) -> "pa.Table":
    import pyarrow as pa

    file = path / ledger.LEDGER
    if not file.is_file():
        raise DataError(f"{path}: no {file.name}: no trial of the sweep has ended yet")
    table = ledger.read(path)
    if table.num_rows == 0:
        raise DataError(f"{file}: holds no row: no trial of the sweep has ended yet")
    for name in ("trial", "seed", "rung", "status", "updates", "env_steps", *_NULLABLE):
        kind, column = ledger.columns()[name], table[name]
        if column.type not in (kind, pa.null()):
            raise DataError(f"{file}: {name}: expected {kind}, found {column.type}")
        if name not in _NULLABLE and column.null_count:
            raise DataError(f"{file}: {name}: expected a value in every row, found {column.null_count} without one")
    strange = set(table["status"].to_pylist()) - set(ledger.STATUSES)
    if strange:
        raise DataError(f"{file}: status: expected {', '.join(ledger.STATUSES)}, found {schema.shown(min(strange))}")
    return table


def _setting_names(table: "pa.Table", path: Path) -> list[str]:
    try:
        names = ledger.settings_of(table)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path / ledger.LEDGER}: expected a JSON list under `settings` in its metadata") from error
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DataError(f"{path / ledger.LEDGER}: settings: expected names of columns, found {schema.shown(missing[0])}")
    return names


def _sweep_curves(path: Path, table: "pa.Table", names: Sequence[str]) -> tuple[dict[str, list[Curve]], list[str]]:
    """The curves of each trial, one a seed, as far as they can be read; and a warning where that is not all."""
    import pyarrow as pa

    files = sorted(name for name in table["curve"].unique().to_pylist() if name is not None)
    for name in files:
        if Path(name).name != name:
            raise DataError(f"{path / ledger.LEDGER}: curve: expected the name of a file, found {schema.shown(name)}")
    tables, unread = list["pa.Table"](), list[str]()
    for name in files:
        try:
            tables.append(_curve_columns(path / ledger.CURVES / name, names))
        except DataError as error:
            unread.append(str(error))
    some = f", among them {unread[0]}" if len(unread) > 1 else f": {unread[0]}" if unread else ""
    warnings = [f"the curves of {len(unread)} of {len(files)} chunks are left out{some}"] if unread else []
    if not tables:
        return {}, warnings
    rows = pa.concat_tables(tables, promote_options="default")
    rows = rows.sort_by([(name, "ascending") for name in ("trial", "seed", "update")])
    columns = {name: rows[name].to_numpy() for name in rows.column_names}
    owners = list(zip(columns.pop("trial").tolist(), columns.pop("seed").tolist(), strict=True))
    progress = columns.pop("update"), columns.pop("env_steps")
    starts = [i for i, owner in enumerate(owners) if i == 0 or owner != owners[i - 1]]
    curves: dict[str, list[Curve]] = {}
    for start, end in zip(starts, [*starts[1:], len(owners)], strict=True):
        update, env_steps = (column[start:end] for column in progress)
        values = {name: column[start:end] for name, column in columns.items()}
        curves.setdefault(owners[start][0], []).append(Curve(update, env_steps, values))
    return curves, warnings


def _curve_columns(file: Path, names: Sequence[str]) -> "pa.Table":
    """What a report needs of a file of curves.

    Raises:
      DataError: it cannot be read, or holds something else.
    """
    import pyarrow as pa

    table, number = ledger.read_parquet(file), pa.int64()
    kinds = {"trial": pa.string(), "seed": number, "update": number, "env_steps": number}
    optional = {name: pa.float64() for name in names if name in table.column_names}
    try:
        found = table.select([*kinds, *optional]).cast(pa.schema(kinds | optional))
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise DataError(f"{file}: not the curves of a sweep") from error
    if any(found[name].null_count for name in kinds):
        raise DataError(f"{file}: not the curves of a sweep")
    return found


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
    curves = [_run_curve(logged, i, count, _drawn(document)) for i in range(count)] if logged else []
    settings = {key: value for key, value in _flat(document, "") if key not in ("seed", "num_seeds")}
    found = {other: evaluation.get(other) for other in _EVALUATED if other != name}
    evaluated = {other: float(value) for other, value in found.items() if value is not None}
    if "turns_mean" in evaluated:
        evaluated.pop("length_mean", None)
    return Trial(str(run.path), settings, seeds, [command], curves=curves, evaluated=evaluated)


def _run_curve(rows: Sequence[Mapping[str, Any]], lane: int, num_seeds: int, names: Sequence[str]) -> Curve:
    def column(name: str) -> np.ndarray:
        return np.array([np.broadcast_to(row.get(name, np.nan), num_seeds)[lane] for row in rows])

    values = {name: column(name).astype(np.float64) for name in names if any(name in row for row in rows)}
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


def _drawn(config: Any) -> Sequence[str]:
    """The curves of a config's learner that are the agent's own: episodes of demonstrations are not."""
    learner = config.get("learner") if isinstance(config, dict) else None
    name = learner.get("name") if isinstance(learner, dict) else None
    demonstrated = hasattr(LEARNERS.get(str(name)), "teacher")
    return [curve for curve in metrics.CURVES if not demonstrated or curve not in metrics.PLAYED]


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
