"""Runs a sweep to its end in a directory, from wherever the ledger there says that it is.

sweep.toml       the spec with every default, and the base config in it
env.json         what ran: an entry for each start
ledger.parquet   see `ledger`
start/           the network that lanes begin with, where the spec names a run: a copy, which stays when the run goes on
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

from jaxagent import checkpoint, evaluation, provenance, rundir, schema
from jaxagent.envs.base import Environment
from jaxagent.errors import ConfigError, ResourceError, UsageError
from jaxagent.evaluation import EpisodeResults
from jaxagent.files import disk_errors, remove_litter, write_atomic, write_json
from jaxagent.loop import Interrupted, deferred_signals
from jaxagent.progress import Progress
from jaxagent.sweep import ledger, optuna_study, scheduling, spec
from jaxagent.sweep.chunks import START, STATES, forget, group_of, has_states, warm_start
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
      UsageError: it holds something else, or a sweep that this one does not continue, or there is no run to begin with.
      LockError: another process works there.
      DataError: its spec or its ledger is damaged.
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
            _check_continues(sweep, spec.read_resolved(directory / SPEC), directory)
        rows = ledger.read_rows(directory)
        begun_with = None if checkpoint.steps(directory / START) else warm_start(sweep)
        write_atomic(directory / SPEC, spec.resolved_toml(sweep).encode())  # the first: it makes the directory a sweep's
        if begun_with is not None:
            checkpoint.save(directory / START, 0, {"params": begun_with}, metadata={})
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
    known = _evaluated(info)
    objective = sweep.plan.objective or ("success_rate" if "success_rate" in known else "return_mean")
    if objective not in known:
        hint = schema.suggestion(objective, known, how="`jaxagent eval` shows them")
        raise ConfigError(f"{sweep.source}: sweep.objective: {env.spec.name} knows no {schema.shown_key(objective)}; {hint}")
    return dataclasses.replace(sweep, plan=dataclasses.replace(sweep.plan, objective=objective))


def _evaluated(info: Mapping[str, PyTree]) -> list[str]:
    """The means and rates that an evaluation gives where steps have such an `info`, of one episode in which all is 1."""
    counted = {name: info[name] for name in ("success", "performance", "totals") if name in info}
    ones = jax.tree.map(lambda leaf: np.ones((1, *leaf.shape), leaf.dtype), counted)
    summary = evaluation.summarise(EpisodeResults(jnp.ones(1), jnp.ones(1), None, None)._replace(**ones))
    return [name for name, value in summary.items() if isinstance(value, float)]


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
    _check_axes(sweep, earlier, directory)
    if (sweep.document, dict(sweep.fixed)) != (earlier.document, dict(earlier.fixed)):
        raise UsageError(
            f"{sweep.source}: {sweep.base} or the table fixed is not what {directory} was begun with\n"
            "choose another directory with --out"
        )


def _check_axes(sweep: Sweep, earlier: Sweep, directory: Path) -> None:
    """Values of grids and lists may change: what is trained already stands beside the new. Draws of other ranges would mix."""
    now, then = ({axis.name: axis for axis in one.axes} for one in (sweep, earlier))
    for name in [*now, *(name for name in then if name not in now)]:
        axes = [axes.get(name) for axes in (now, then)]
        if axes[0] != axes[1] and any(axis is None or axis.kind in spec.SAMPLED for axis in axes):
            told = ["not there" if axis is None else f"{axis.kind} {schema.shown(list(axis.values))}" for axis in axes]
            raise UsageError(
                f"{sweep.source}: space.{name} is {told[0]}, but {told[1]} in {directory}, which was begun so\n"
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
    again, forgotten = board.lost(directory)
    remade = sum(board.updates_in(chunk) for chunk in again)  # of lanes whose states are made again
    done, running = sum(board.updates_of(row) for row in rows), list[Chunk]()
    total = board.expected_updates() + remade
    with Progress(total, start=done, unit="lane updates") as progress, deferred_signals(progress) as signals:

        def report(updates: int) -> None:
            nonlocal done
            done += updates
            progress.report(done, env_steps=done * board.steps_per_update, values=board.headline())
            if signals:
                raise Interrupted(signals[0], "; everything up to the last chunk that ended is in the ledger")

        def tell() -> None:
            for note in board.notes():
                progress.note(note)

        all_known = board.sweep.plan.sampler != "tpe"
        if all_known:
            tell()
        mirror(board)
        with closing(make_executor(board.sweep, directory, report)) as executor:
            if forgotten:
                progress.note(f"states of paused lanes are missing or damaged: {forgotten} lanes are trained anew")
            _make_again(again, directory, executor, progress)
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
                mirror(board)
                for unneeded in board.unneeded(directory, running):
                    forget(directory, unneeded)
                done = sum(board.updates_of(row) for row in rows) + remade
                report(0)
        if not all_known:
            tell()


def mirror(board: "Board") -> None:
    """Brings the plan's Optuna storage, if it names one, to where the ledger is."""
    if board.sweep.plan.optuna is not None:
        optuna_study.mirror(board.sweep, board.told())


def _make_again(chunks: Sequence[Chunk], directory: Path, executor: Executor, progress: Progress) -> None:
    """Trains chunks once more for the states that they leave; their rows are in the ledger.

    Raises:
      ResourceError: one does not fit into memory, though it did.
    """
    if chunks:
        lanes = sum(len(chunk.jobs) for chunk in chunks)
        progress.note(f"states of paused lanes are missing or damaged: {lanes} lanes are trained again to where they were")
    for chunk in chunks:
        forget(directory, chunk.id)
        executor.submit(chunk)
        try:
            executor.wait()
        except OutOfMemory as error:
            raise ResourceError(f"out of memory with the {chunk.width} lanes that chunk {chunk.id} was trained with") from error


class Board:
    """The trials of a sweep, their groups and the ledger's rows: what to do next, and how far it is.

    Making one checks and builds every trial, and those at the ends of ranges (ConfigError).

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
        if sweep.plan.sampler == "tpe" or sweep.plan.optuna is not None:
            optuna_study.imported()  # before anything is written
        for settings in sweep.settings():
            self._add(settings)
        for settings in sweep.extremes():
            sweep.trial(settings)

    def _add(self, settings: Mapping[str, Any]) -> None:
        trial = self.sweep.trial(settings)
        self.trials.setdefault(trial.id, trial)
        self._asked += 1
        self.groups[trial.id] = self._signatures.setdefault(group_of(trial), len(self._signatures))

    def grow(self) -> None:
        """Asks a sampler that learns for its next trials, if those before have ended; a draw can repeat an earlier one."""
        if self.sweep.plan.sampler != "tpe":
            return
        while self._asked < self.sweep.plan.samples and len(told := self.told()) == len(self.trials):
            count = min(self.sweep.plan.batch, self.sweep.plan.samples - self._asked)
            for settings in optuna_study.ask(self.sweep, told, count):
                self._add(settings)

    def told(self) -> list[optuna_study.Told]:
        """The trials that ended with all their seeds: mean objective, None where a seed failed."""
        last: dict[str, list[Row]] = {name: [] for name in self.trials}
        for row in self.own_rows():
            if row["status"] != "rung":
                last[row["trial"]].append(row)
        ended = {name: rows for name, rows in last.items() if len(rows) == self.sweep.plan.seeds}
        merits = {name: [row["objective"] for row in rows] for name, rows in ended.items()}
        return [
            (name, self.trials[name].settings, None if None in values else float(np.mean(values)))
            for name, values in merits.items()
        ]

    def own_rows(self) -> list[Row]:
        """Those of lanes that the spec has: the ledger keeps others, of an earlier start with more seeds, samples or values."""
        return [row for row in self.rows if row["trial"] in self.trials and row["seed"] in self.sweep.seeds]

    def notes(self) -> list[str]:
        """What may surprise, once all trials are known: draws that coincide, lanes of the ledger that the spec has not."""
        found = []
        if len(self.trials) < self._asked:
            asked = "samples" if self.sweep.sampled == self.sweep.axes else "trials"
            found.append(
                f"{self._asked} {asked} asked for, {len(self.trials)} {'is' if len(self.trials) == 1 else 'are'} distinct"
            )
        own = {(row["trial"], row["seed"]) for row in self.own_rows()}
        others = {(row["trial"], row["seed"]) for row in self.rows} - own
        if others:
            found.append(
                f"{len(others)} lanes of the ledger are not in the spec any more; they stay in the ledger and the report"
            )
        return found

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
        jobs = [job for job in self._pending() if (job.trial, job.seed) not in busy]
        for group in {self.groups[job.trial] for job in jobs} - self.widths.keys():
            self.widths[group] = self._width(group, executor)
        halving = self.sweep.plan.scheduler == "halving"
        return scheduling.next_chunk(jobs, self.groups, self.widths, partial=len(running) < executor.capacity, in_order=halving)

    def _pending(self) -> list[scheduling.Job]:
        settings = {name: trial.settings for name, trial in self.trials.items()}
        return scheduling.pending(self.sweep, settings, self.groups, self.rows)

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

    def lost(self, directory: Path) -> tuple[list[Chunk], int]:
        """Chunks to train again, since lanes may go on from their states and these are missing or damaged, the earliest first.

        A chunk is a function of its jobs, so it leaves the same states again. Where it cannot be told any more what its jobs
        were, since the spec has lost a trial of it, lanes are forgotten: their rows are dropped from `rows`, under
        population-based training those of the whole population. Also returns how many lanes those are.
        """
        if not (jobs := self._pending()):
            return [], 0
        settings = {name: trial.settings for name, trial in self.trials.items()}
        found: dict[str, Chunk] = {}

        def look(chunk_id: str) -> bool:
            """Whether the chunk's states are there, or can be made again."""
            if chunk_id in found or has_states(directory, chunk_id):
                return True
            chunk = scheduling.remade(self.rows, chunk_id, self.sweep, settings)
            if chunk is None or not all(look(origin) for origin in {job.origin.chunk for job in chunk.jobs if job.origin}):
                return False
            found[chunk_id] = chunk
            return True

        origins = [(job.origin.chunk, (job.trial, job.seed)) for job in jobs if job.origin]
        origins += [(row["chunk"], lane) for lane, row in _newest(self.own_rows()).items() if row["status"] == "rung"]
        gone = {chunk for chunk in dict.fromkeys(chunk for chunk, _ in origins) if not look(chunk)}
        lanes = {lane for chunk, lane in origins if chunk in gone}
        if self.sweep.plan.scheduler == "pbt":
            populations = {(self.groups[trial], seed) for trial, seed in lanes}
            members = [(trial, seed) for trial in self.trials for seed in self.sweep.seeds]
            lanes = {(trial, seed) for trial, seed in members if (self.groups[trial], seed) in populations}
        self.rows[:] = [row for row in self.rows if (row["trial"], row["seed"]) not in lanes]
        return list(found.values()), len(lanes)

    def unneeded(self, directory: Path, running: Sequence[Chunk]) -> list[str]:
        """Chunks whose states nothing can go on from: every lane has moved on, or ended."""
        needed = {row["chunk"] for row in _newest(self.rows).values() if row["status"] == "rung"}
        if self.sweep.plan.scheduler == "pbt":  # a lane that has moved on may still be taken over as it was
            needed |= {job.origin.chunk for job in self._pending() if job.origin}
        for chunk in running:  # its own states are there before its rows are
            needed |= {chunk.id, *(job.origin.chunk for job in chunk.jobs if job.origin)}
        kept = directory / STATES
        return [path.name for path in kept.iterdir() if path.name not in needed] if kept.is_dir() else []

    def updates_of(self, row: Row) -> int:
        """Updates that a row's lane made since the rung before; none if the spec does not have it."""
        if row["trial"] not in self.trials or row["seed"] not in self.sweep.seeds:
            return 0
        ends = scheduling.stops(self.sweep.plan, self.trials[row["trial"]].num_updates)
        return int(row["updates"] - (ends[row["rung"] - 1] if row["rung"] else 0))

    def updates_in(self, chunk: Chunk) -> int:
        """Updates that a chunk's lanes make together."""
        ends = [0, *scheduling.stops(self.sweep.plan, self.trials[chunk.jobs[0].trial].num_updates)]
        return (ends[chunk.rung + 1] - ends[chunk.start + 1]) * len(chunk.jobs)

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
        own = self.own_rows()
        best = [row["objective"] for row in own if row["status"] == "done" and row["objective"] is not None]
        failed = sum(row["status"] == "failed" for row in own)
        ended = sum(row["status"] == "done" for row in own)
        values = {"done": float(ended), "failed": float(failed)}
        choose = max if self.sweep.plan.mode == "max" else min
        return values | ({"best": choose(best)} if best else {})


def _newest(rows: Sequence[Row]) -> dict[scheduling.Lane, Row]:
    """The row of the last rung of each lane."""
    return {(row["trial"], row["seed"]): row for row in sorted(rows, key=lambda row: row["rung"])}
