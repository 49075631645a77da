"""Runs a sweep to its end in a directory, from wherever the ledger there says that it is.

sweep.toml       the spec with every default, and the base config in it
env.json         what ran: an entry for each start
ledger.parquet   see `ledger`
curves/          metrics of every segment, a file a chunk
states/          of paused lanes, a directory a chunk; deleted when nothing can go on from them
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxagent import provenance, rundir
from jaxagent.envs.base import Environment
from jaxagent.errors import ConfigError, ResourceError, UsageError
from jaxagent.files import disk_errors, remove_litter, write_atomic, write_json
from jaxagent.loop import Interrupted, deferred_signals
from jaxagent.progress import Progress
from jaxagent.sweep import ledger, scheduling, spec
from jaxagent.sweep.chunks import STATES, Runner, group_of
from jaxagent.sweep.lanes import stacked
from jaxagent.sweep.ledger import Row
from jaxagent.sweep.scheduling import Chunk
from jaxagent.sweep.spec import Plan, Sweep, Trial
from jaxagent.types import PyTree

SPEC, ENV = "sweep.toml", "env.json"
_MAY_GROW = {"samples", "seeds", "width"}  # of a plan, between two starts in one directory
_CPU_WIDTH, _ACCELERATOR_WIDTH = 16, 256  # lanes a device to begin with
_MEMORY_SHARE = 0.8  # of a device's


class Executor(Protocol):
    """Where chunks run."""

    @property
    def capacity(self) -> int:
        """Chunks at once."""

    def submit(self, chunk: Chunk) -> None:
        """Starts a chunk."""

    def wait(self) -> tuple[Chunk, list[Row]]:
        """The next chunk that is finished, and its rows."""


class InProcess:
    """Runs chunks here, one at a time."""

    capacity = 1

    def __init__(self, runner: Runner, report: Callable[[int, Mapping[str, float]], None]) -> None:
        self._runner, self._report = runner, report
        self._waiting: list[Chunk] = []

    def submit(self, chunk: Chunk) -> None:
        self._waiting.append(chunk)

    def wait(self) -> tuple[Chunk, list[Row]]:
        chunk = self._waiting.pop()
        return chunk, self._runner.run(chunk, self._report)


@contextmanager
def opened(directory: Path, sweep: Sweep, argv: Sequence[str] | None = None) -> Iterator[list[Row]]:
    """The directory of a sweep, new or to go on in, locked while the context lasts. Gives the rows of its ledger.

    Raises:
      UsageError: it holds something else, or a sweep that this one does not continue.
      LockError: another process works there.
      DataError: its ledger is damaged.
      ResourceError: the disk is full or refuses.
    """
    if directory.exists() and not (directory / SPEC).exists() and any(name.name != "lock" for name in directory.iterdir()):
        raise UsageError(f"{directory} is not empty, and holds no sweep\nchoose another directory with --out")
    with disk_errors(directory, 0):
        directory.mkdir(parents=True, exist_ok=True)
    with rundir.lock(directory):
        remove_litter(directory)
        remove_litter(directory / ledger.CURVES)
        if (directory / SPEC).exists():
            _check_continues(sweep, spec.from_resolved((directory / SPEC).read_text(), str(directory / SPEC)), directory)
        rows = ledger.read_rows(directory)
        write_json(directory / ENV, [*rundir.earlier_starts(directory / ENV), provenance.describe(argv)])
        write_atomic(directory / SPEC, spec.resolved_toml(sweep).encode())
        yield rows


def with_objective(sweep: Sweep) -> Sweep:
    """The sweep with an objective that its environment knows.

    Raises:
      ConfigError: the one it asks for is unknown there.
    """
    env, params = (trainer := sweep.trial(sweep.settings()[0]).trainer).env, trainer.params
    info = jax.eval_shape(lambda key: _first_info(env, params, key), jax.random.key(0))
    known = {"return_mean", "length_mean", *(f"{name}_{kind}" for name, kind in _OUTCOMES if name in info)}
    objective = sweep.plan.objective or ("success_rate" if "success_rate" in known else "return_mean")
    if objective not in known:
        raise ConfigError(f"{sweep.source}: sweep.objective: {env.spec.name} knows {', '.join(sorted(known))}, not {objective}")
    return dataclasses.replace(sweep, plan=dataclasses.replace(sweep.plan, objective=objective))


_OUTCOMES = (("success", "rate"), ("performance", "mean"))


def _first_info(env: Environment, params: PyTree, key: jax.Array) -> Mapping[str, jax.Array]:
    _, state = env.reset(key, params)
    return env.step(key, state, jnp.zeros(env.spec.action.shape, env.spec.action.dtype), params)[-1]


def _check_continues(sweep: Sweep, earlier: Sweep, directory: Path) -> None:
    for field in dataclasses.fields(Plan):
        now, then = getattr(sweep.plan, field.name), getattr(earlier.plan, field.name)
        if now != then and field.name not in _MAY_GROW:
            raise UsageError(
                f"{sweep.source}: sweep.{field.name} is {now}, but {then} in {directory}, which was begun so\n"
                "choose another directory with --out"
            )


def run(
    board: "Board", directory: Path, rows: list[Row], *, make_executor: Callable[[Runner, Any], Executor] = InProcess
) -> None:
    """Trains until nothing is left to train; `rows` are those of the ledger so far, and grow.

    Raises:
      Interrupted: SIGINT or SIGTERM. Everything up to the last chunk that ended is in the ledger.
      CheckpointError, ResourceError: see `Runner.run`.
    """
    board.rows, runner = rows, Runner(board.sweep, directory)
    total, done = board.expected_updates(), sum(board.updates_of(row) for row in rows)
    with Progress(total, start=done, unit="lane updates") as progress, deferred_signals(progress) as signals:
        steps = [done, sum(row["env_steps"] for row in rows if row["status"] != "rung")]

        def report(updates: int, values: Mapping[str, float]) -> None:
            steps[0] += updates
            steps[1] += updates * board.steps_per_update
            progress.report(steps[0], env_steps=steps[1], values=board.headline())
            if signals:
                raise Interrupted(signals[0], "; everything up to the last chunk that ended is in the ledger")

        executor, running = make_executor(runner, report), list[Chunk]()
        while True:
            while len(running) < executor.capacity and (chunk := board.next_chunk(running, runner)):
                executor.submit(chunk)
                running.append(chunk)
            if not running:
                break
            try:
                chunk, found = executor.wait()
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                board.halve(running.pop().group, progress)
                continue
            running.remove(chunk)
            rows += found
            ledger.write(directory, rows, board.setting_names)
            for unneeded in board.unneeded(directory, running):
                runner.forget(unneeded)


class Board:
    """The trials of a sweep, their groups and the ledger's rows: what to do next, and how far it is.

    Making one checks and builds every trial (ConfigError).

    Attributes:
      rows: the ledger's.
      trials: by id, in the order they are begun.
      groups: number of each trial's static group.
      widths: of each group's chunks.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.rows: list[Row] = []
        self.trials: dict[str, Trial] = {}
        self.groups: dict[str, int] = {}
        self._signatures: dict[Any, int] = {}
        self.widths: dict[int, int] = {}
        for settings in sweep.settings():
            self._add(sweep.trial(settings))

    def _add(self, trial: Trial) -> None:
        self.trials.setdefault(trial.id, trial)
        self.groups[trial.id] = self._signatures.setdefault(group_of(trial), len(self._signatures))

    @property
    def setting_names(self) -> list[str]:
        return [*self.sweep.fixed, *(axis.name for axis in self.sweep.axes)]

    @property
    def steps_per_update(self) -> int:
        return next(iter(self.trials.values())).trainer.steps_per_update

    def next_chunk(self, running: Sequence[Chunk], runner: Runner) -> Chunk | None:
        """What can be started beside the running chunks."""
        busy = {(job.trial, job.seed) for chunk in running for job in chunk.jobs}
        jobs = scheduling.pending(self.sweep, {t: trial.settings for t, trial in self.trials.items()}, self.groups, self.rows)
        jobs = [job for job in jobs if (job.trial, job.seed) not in busy]
        for group in {self.groups[job.trial] for job in jobs} - self.widths.keys():
            self.widths[group] = self._fitting_width(group, runner)
        return scheduling.next_chunk(jobs, self.groups, self.widths, partial=not running)

    def halve(self, group: int, progress: Progress) -> None:
        """After running out of memory.

        Raises:
          ResourceError: a single lane does not fit.
        """
        if self.widths[group] <= jax.local_device_count():
            raise ResourceError("out of memory with one lane a device\nfewer environments, steps or episodes at once need less")
        self.widths[group] //= 2
        progress.note(f"out of memory: group {group} goes on with {self.widths[group]} lanes at once")

    def _fitting_width(self, group: int, runner: Runner) -> int:
        """That of the ledger; else the plan's, or the largest that the compiler says will fit."""
        earlier = [row["width"] for row in self.rows if self.groups.get(row["trial"]) == group]
        if earlier:
            return min(earlier)
        devices = jax.local_devices()
        members = [trial for t, trial in self.trials.items() if self.groups[t] == group]
        lanes = -(-len(members) * self.sweep.plan.seeds // len(devices)) * len(devices)
        if self.sweep.plan.width is not None:
            return -(-self.sweep.plan.width // len(devices)) * len(devices)
        width = len(devices) * (_CPU_WIDTH if devices[0].platform == "cpu" else _ACCELERATOR_WIDTH)
        limit = (devices[0].memory_stats() or {}).get("bytes_limit")
        width = min(width, lanes)
        while limit and width > len(devices):
            needed = runner.program(members[0], width).memory(stacked([members[0].trainer] * width))
            if needed is None or needed <= _MEMORY_SHARE * limit:
                break
            width //= 2
        return width

    def unneeded(self, directory: Path, running: Sequence[Chunk]) -> list[str]:
        """Chunks whose states nothing can go on from: every lane has moved on, or ended."""
        newest: dict[scheduling.Lane, Row] = {}
        for row in self.rows:
            lane = row["trial"], row["seed"]
            if lane not in newest or row["rung"] > newest[lane]["rung"]:
                newest[lane] = row
        needed = {row["chunk"] for row in newest.values() if row["status"] == "rung"}
        needed |= {job.origin.chunk for chunk in running for job in chunk.jobs if job.origin}
        kept = directory / STATES
        return [path.name for path in kept.iterdir() if path.name not in needed] if kept.is_dir() else []

    def updates_of(self, row: Row) -> int:
        """Updates that a row's lane made since the rung before."""
        trial = self.trials.get(row["trial"])
        if trial is None:
            return 0
        ends = scheduling.stops(self.sweep.plan, trial.num_updates)
        return int(row["updates"] - (ends[row["rung"] - 1] if row["rung"] else 0))

    def expected_updates(self) -> int:
        """Updates of all lanes together; under halving about as many."""
        total = 0.0
        for trial in self.trials.values():
            ends = scheduling.stops(self.sweep.plan, trial.num_updates)
            legs = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
            share = 1 / self.sweep.plan.eta if self.sweep.plan.scheduler == "halving" else 1.0
            total += sum(leg * share**rung for rung, leg in enumerate(legs)) * self.sweep.plan.seeds
        return max(1, round(total))

    def headline(self) -> dict[str, float]:
        """Figures for the progress display."""
        best = [row["objective"] for row in self.rows if row["status"] == "done" and row["objective"] is not None]
        failed = sum(row["status"] == "failed" for row in self.rows)
        ended = sum(row["status"] == "done" for row in self.rows)
        values = {"done": float(ended), "failed": float(failed)}
        choose = max if self.sweep.plan.mode == "max" else min
        return values | ({"best": choose(best)} if best else {})
