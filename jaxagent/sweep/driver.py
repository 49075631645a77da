"""Runs a sweep to its end in a directory, from wherever the ledger there says that it is.

sweep.toml       the spec with every default, and the base config in it
env.json         what ran: an entry for each start
ledger.parquet   see `ledger`
curves/          metrics of every segment, a file a chunk
states/          of paused lanes, a directory a chunk; deleted when nothing can go on from them
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent import provenance, rundir
from jaxagent.envs.base import Environment
from jaxagent.errors import ConfigError, ResourceError, UsageError
from jaxagent.files import disk_errors, remove_litter, write_atomic, write_json
from jaxagent.loop import Interrupted, deferred_signals
from jaxagent.progress import Progress
from jaxagent.sweep import ledger, optuna_study, scheduling, spec
from jaxagent.sweep.chunks import STATES, forget, group_of
from jaxagent.sweep.executors import SPEC, Executor, InProcess, MakeExecutor, OutOfMemory
from jaxagent.sweep.ledger import Row
from jaxagent.sweep.scheduling import Chunk
from jaxagent.sweep.spec import Plan, Sweep, Trial
from jaxagent.types import PyTree

ENV = "env.json"
_MAY_GROW = {"samples", "seeds", "width", "optuna"}  # of a plan, between two starts in one directory


@contextmanager
def opened(directory: Path, sweep: Sweep, argv: Sequence[str] | None = None) -> Iterator[list[Row]]:
    """The directory of a sweep, new or to go on in, locked while the context lasts. Gives the rows of its ledger.

    Raises:
      UsageError: it holds something else, or a sweep that this one does not continue.
      LockError: another process works there.
      DataError: its ledger is damaged.
      ResourceError: the disk is full or refuses.
    """
    with disk_errors(directory, 0):
        directory.mkdir(parents=True, exist_ok=True)
        foreign = [path.name for path in directory.iterdir() if path.name != "lock" and not path.name.startswith(".")]
    if foreign and not (directory / SPEC).exists():
        raise UsageError(f"{directory} holds no sweep, but {min(foreign)}\nchoose another directory with --out")
    with rundir.lock(directory):
        remove_litter(directory)
        remove_litter(directory / ledger.CURVES)
        if (directory / SPEC).exists():
            _check_continues(sweep, spec.from_resolved((directory / SPEC).read_text(), str(directory / SPEC)), directory)
        rows = ledger.read_rows(directory)
        write_atomic(directory / SPEC, spec.resolved_toml(sweep).encode())  # the first: it makes the directory a sweep's
        write_json(directory / ENV, [*rundir.earlier_starts(directory / ENV), provenance.describe(argv)])
        yield rows


def with_objective(sweep: Sweep) -> Sweep:
    """The sweep with an objective that its environment knows.

    Raises:
      ConfigError: the one it asks for is unknown there.
    """
    first = next(iter(sweep.settings()), {})  # none yet where they are asked for
    env, params = (trainer := sweep.trial(first).trainer).env, trainer.params
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
    if (sweep.document, dict(sweep.fixed)) != (earlier.document, dict(earlier.fixed)):
        raise UsageError(
            f"{sweep.source}: {sweep.base} or the table fixed is not what {directory} was begun with\n"
            "choose another directory with --out"
        )


def run(board: "Board", directory: Path, rows: list[Row], *, make_executor: MakeExecutor = InProcess) -> None:
    """Trains until nothing is left to train; `rows` are those of the ledger so far, and grow.

    Raises:
      Interrupted: SIGINT or SIGTERM. Everything up to the last chunk that ended is in the ledger.
      CheckpointError, ResourceError: see `Runner.run`.
      JaxagentError: a chunk that one worker after another dies of.
    """
    board.rows = rows
    board.grow()
    done, running = sum(board.updates_of(row) for row in rows), list[Chunk]()
    with Progress(board.expected_updates(), start=done, unit="lane updates") as progress, deferred_signals(progress) as signals:

        def report(updates: int) -> None:
            nonlocal done
            done += updates
            progress.report(done, env_steps=done * board.steps_per_update, values=board.headline())
            if signals:
                raise Interrupted(signals[0], "; everything up to the last chunk that ended is in the ledger")

        with closing(make_executor(board.sweep, directory, report)) as executor:
            while True:
                while len(running) < executor.capacity and (chunk := board.next_chunk(running, executor)):
                    executor.submit(chunk)
                    running.append(chunk)
                if not running:
                    break
                try:
                    chunk, found = executor.wait()
                except OutOfMemory as error:
                    running.remove(error.chunk)
                    board.halve(error.chunk, executor.devices, progress)
                    continue
                running.remove(chunk)
                rows += found
                ledger.write(directory, rows, board.setting_names)
                if board.sweep.plan.optuna is not None:
                    optuna_study.mirror(board.sweep, board.told())
                for unneeded in board.unneeded(directory, running):
                    forget(directory, unneeded)
                done = sum(board.updates_of(row) for row in rows)
                report(0)


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
        self._asked = 0
        self.widths: dict[int, int] = {}
        for settings in sweep.settings():
            self._add(settings)

    def _add(self, settings: Mapping[str, Any]) -> None:
        trial = self.sweep.trial(settings)
        self.trials.setdefault(trial.id, trial)
        self.groups[trial.id] = self._signatures.setdefault(group_of(trial), len(self._signatures))

    def grow(self) -> None:
        """Asks a sampler that learns for its next trials, if those before have ended; a draw can repeat an earlier one."""
        if self.sweep.plan.sampler != "tpe":
            return
        while self._asked < self.sweep.plan.samples and len(told := self.told()) == len(self.trials):
            count = min(self.sweep.plan.batch, self.sweep.plan.samples - self._asked)
            for settings in optuna_study.ask(self.sweep, told, count):
                self._add(settings)
            self._asked += count

    def told(self) -> list[optuna_study.Told]:
        """The trials that ended with all their seeds: mean objective, None where a seed failed."""
        last: dict[str, list[Row]] = {name: [] for name in self.trials}
        for row in self.rows:
            if row["trial"] in last and row["status"] != "rung":
                last[row["trial"]].append(row)
        ended = {name: rows for name, rows in last.items() if len(rows) == self.sweep.plan.seeds}
        merits = {name: [row["objective"] for row in rows] for name, rows in ended.items()}
        return [
            (name, self.trials[name].settings, None if None in values else float(np.mean(values)))
            for name, values in merits.items()
        ]

    @property
    def setting_names(self) -> list[str]:
        return [*self.sweep.fixed, *(axis.name for axis in self.sweep.axes)]

    @property
    def steps_per_update(self) -> int:
        return next(iter(self.trials.values())).trainer.steps_per_update

    def next_chunk(self, running: Sequence[Chunk], executor: Executor) -> Chunk | None:
        """What can be started beside the running chunks."""
        self.grow()
        busy = {(job.trial, job.seed) for chunk in running for job in chunk.jobs}
        settings = {name: trial.settings for name, trial in self.trials.items()}
        jobs = scheduling.pending(self.sweep, settings, self.groups, self.rows)
        jobs = [job for job in jobs if (job.trial, job.seed) not in busy]
        for group in {self.groups[job.trial] for job in jobs} - self.widths.keys():
            self.widths[group] = self._width(group, executor)
        return scheduling.next_chunk(jobs, self.groups, self.widths, partial=len(running) < executor.capacity)

    def _width(self, group: int, executor: Executor) -> int:
        """That of the ledger; else the plan's, or what the executor says will fit."""
        members = [trial for name, trial in self.trials.items() if self.groups[name] == group]
        earlier = [row["width"] for row in self.rows if self.groups.get(row["trial"]) == group]
        if earlier:
            return min(earlier)
        if self.sweep.plan.width is not None:
            return -(-self.sweep.plan.width // executor.devices) * executor.devices
        return executor.width(members[0], len(members) * self.sweep.plan.seeds)

    def halve(self, chunk: Chunk, devices: int, progress: Progress) -> None:
        """Narrows the chunks of a group, after one ran out of memory.

        Raises:
          ResourceError: a single lane does not fit.
        """
        if chunk.width <= devices:
            raise ResourceError("out of memory with one lane a device\nfewer environments, steps or episodes at once need less")
        self.widths[chunk.group] = max(devices, chunk.width // 2 // devices * devices)
        progress.note(f"out of memory: group {chunk.group} goes on with {self.widths[chunk.group]} lanes at once")

    def unneeded(self, directory: Path, running: Sequence[Chunk]) -> list[str]:
        """Chunks whose states nothing can go on from: every lane has moved on, or ended."""
        newest: dict[scheduling.Lane, Row] = {}
        for row in self.rows:
            lane = row["trial"], row["seed"]
            if lane not in newest or row["rung"] > newest[lane]["rung"]:
                newest[lane] = row
        needed = {row["chunk"] for row in newest.values() if row["status"] == "rung"}
        for chunk in running:  # its own states are there before its rows are
            needed |= {chunk.id, *(job.origin.chunk for job in chunk.jobs if job.origin)}
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
        totals = []
        for trial in self.trials.values():
            ends = scheduling.stops(self.sweep.plan, trial.num_updates)
            legs = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
            share = 1 / self.sweep.plan.eta if self.sweep.plan.scheduler == "halving" else 1.0
            totals.append(sum(leg * share**rung for rung, leg in enumerate(legs)) * self.sweep.plan.seeds)
        to_be_asked = max(0, self.sweep.plan.samples - self._asked) if self.sweep.plan.sampler == "tpe" else 0
        return max(1, round(sum(totals) + to_be_asked * (totals[0] if totals else 0)))

    def headline(self) -> dict[str, float]:
        """Figures for the progress display."""
        best = [row["objective"] for row in self.rows if row["status"] == "done" and row["objective"] is not None]
        failed = sum(row["status"] == "failed" for row in self.rows)
        ended = sum(row["status"] == "done" for row in self.rows)
        values = {"done": float(ended), "failed": float(failed)}
        choose = max if self.sweep.plan.mode == "max" else min
        return values | ({"best": choose(best)} if best else {})
