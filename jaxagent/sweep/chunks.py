"""One chunk of lanes, from one rung to the next: a function of the chunk and of the states that it goes on from.

It leaves `curves/CHUNK.parquet` and, where lanes are paused, `states/CHUNK/` in the sweep's directory, and returns the ledger's
rows. Running it again does the same again, so a worker that died costs its chunk and nothing else.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent import checkpoint, evaluation, trained
from jaxagent.errors import CheckpointError, UsageError
from jaxagent.files import disk_errors, write_atomic
from jaxagent.finite import first_nonfinite
from jaxagent.lanes import LaneProgram, signature, stacked
from jaxagent.loop import summarise
from jaxagent.sweep import ledger
from jaxagent.sweep.ledger import Row
from jaxagent.sweep.scheduling import Chunk, stops
from jaxagent.sweep.spec import Sweep, Trial
from jaxagent.train import RunState, Trainer
from jaxagent.types import PyTree

STATES = "states"
START = "start"


def group_of(trial: Trial) -> tuple[Any, ...]:
    """What trials of one static group have in common: they can be lanes of one program."""
    schedule = trial.config.schedule
    return *signature(trial.trainer), schedule.num_updates, schedule.segment, schedule.eval_episodes


def warm_start(sweep: Sweep) -> PyTree:
    """The network of the run that the spec names, which all lanes begin with; None if it names none.

    Raises:
      UsageError: there is no such run, or its network is another.
      CheckpointError: it is damaged.
    """
    settings: Mapping[str, Any] = next(iter(sweep.settings()), {})
    trial = sweep.trial(settings)  # any: they begin with the same
    run = trial.config.init_from
    if run is None:
        return None
    try:
        return trial.trainer.learner.network.checked_params(trained.network_params(Path(run)))
    except ValueError as error:
        raise UsageError(f"{sweep.source}: init_from: {run} does not fit: {error}") from error


class Runner:
    """Runs chunks in this process, and keeps the programs that it compiled for them."""

    def __init__(self, sweep: Sweep, directory: Path) -> None:
        self._sweep, self._directory = sweep, directory
        self._programs: dict[tuple[Any, ...], LaneProgram] = {}

    def program(self, trial: Trial, width: int) -> LaneProgram:
        """The program of a trial's group at this width."""
        key = (*group_of(trial), width)
        if key not in self._programs:
            schedule = trial.config.schedule
            self._programs[key] = LaneProgram(
                trial.trainer, width=width, capacity=schedule.segment, num_episodes=schedule.eval_episodes
            )
        return self._programs[key]

    def run(self, chunk: Chunk, report: Callable[[int], None] = lambda updates: None) -> list[Row]:
        """Trains the chunk's lanes to its rung. Returns a row for each.

        Args:
          report: called after every segment with the lane updates that it made; may raise to stop.

        Raises:
          CheckpointError: a state to go on from is missing or damaged.
          ResourceError: the disk is full or refuses.
        """
        trials = [self._sweep.trial(job.settings) for job in chunk.jobs]
        filled = [*trials, *[trials[0]] * (chunk.width - len(trials))]
        program, trainers = self.program(trials[0], chunk.width), stacked([trial.trainer for trial in filled])
        seeds = np.array([job.seed for job in chunk.jobs] + [chunk.jobs[0].seed] * (chunk.width - len(trials)))
        schedule, plan = trials[0].config.schedule, self._sweep.plan
        ends = stops(plan, schedule.num_updates)
        begin, end = (0 if chunk.start < 0 else ends[chunk.start]), ends[chunk.rung]
        state, env_steps = self._start(program, trainers, seeds, chunk)

        update, failures, curve = begin, dict[int, tuple[int, str]](), list[dict[str, Any]]()
        while update < end and len(failures) < len(trials):
            count = min(end, (update // schedule.segment + 1) * schedule.segment) - update
            state, metrics, failed_at = program.advance(trainers, state, count)
            per_update = {name: np.asarray(values)[: len(trials)] for name, values in metrics.items()}
            update += count
            env_steps = env_steps + per_update["env_steps"].sum(-1, dtype=np.int64)
            curve.append({"update": update, "env_steps": env_steps, **summarise(per_update, count)})
            _note_failures(state, np.asarray(failed_at)[: len(trials)], failures)
            report(count * len(trials))

        is_last = chunk.rung == len(ends) - 1
        looks = is_last or trials[0].trainer.demonstrated  # episodes of demonstrations say nothing of the agents
        evaluated = self._evaluated(program, trainers, state, seeds, len(trials)) if looks else [{}] * len(trials)
        self._save_curve(chunk, curve)
        if not is_last and len(failures) < len(trials):
            checkpoint.save(self._states(chunk.id), 0, {"state": state}, metadata={"env_steps": env_steps.tolist()}, keep=1)
        return [
            {
                "trial": job.trial,
                "seed": job.seed,
                "rung": chunk.rung,
                "group": chunk.group,
                "status": "failed" if place in failures else "done" if is_last else "rung",
                "reason": failures[place][1] if place in failures else None,
                "parent": job.parent,
                "chunk": chunk.id,
                "place": place,
                "width": chunk.width,
                "updates": failures[place][0] if place in failures else update,
                "env_steps": int(env_steps[place]),
                "objective": None if place in failures else self._objective(curve[-1], evaluated[place], place),
                "curve": f"{chunk.id}.parquet",
                **job.settings,
                **_numbers("train", {name: values[place] for name, values in curve[-1].items() if name not in _COUNTS}),
                **_numbers("eval", evaluated[place]),
            }
            for place, job in enumerate(chunk.jobs)
        ]

    def _states(self, chunk_id: str) -> Path:
        return self._directory / STATES / chunk_id

    def _start(self, program: LaneProgram, trainers: Trainer, seeds: np.ndarray, chunk: Chunk) -> tuple[RunState, np.ndarray]:
        """The states to go on from, beyond the jobs' places the first's once more, and the environment steps of the jobs."""
        origins = [job.origin for job in chunk.jobs if job.origin is not None]
        if not origins:
            return program.init(trainers, seeds, self._warm_start(chunk)), np.zeros(len(chunk.jobs), np.int64)
        shapes, found = program.shapes(trainers), dict[str, checkpoint.Restored]()
        for origin in origins:
            if origin.chunk not in found:
                like = jax.tree.map(lambda leaf, w=origin.width: jax.ShapeDtypeStruct((w, *leaf.shape[1:]), leaf.dtype), shapes)
                found[origin.chunk] = checkpoint.restore(self._states(origin.chunk), {"state": like})
        starts = dict(zip(found, np.cumsum([0, *({o.chunk: o.width for o in origins}.values())]), strict=False))
        filled = [*origins, *[origins[0]] * (chunk.width - len(origins))]
        places = np.array([starts[origin.chunk] + origin.place for origin in filled])
        state = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[places], *(one.tree["state"] for one in found.values()))
        return state, np.array([found[o.chunk].metadata["env_steps"][o.place] for o in origins], np.int64)

    def _warm_start(self, chunk: Chunk) -> PyTree:
        """What the sweep's directory holds of the run that its spec names; None if it names none."""
        trial = self._sweep.trial(chunk.jobs[0].settings)
        if trial.config.init_from is None:
            return None
        like = jax.eval_shape(trial.trainer.learner.network.initial_params, jax.random.key(0))
        return checkpoint.restore(self._directory / START, {"params": like}).tree["params"]

    def _evaluated(
        self, program: LaneProgram, trainers: Trainer, state: RunState, seeds: np.ndarray, num_lanes: int
    ) -> list[dict[str, Any]]:
        results = program.evaluate(trainers, state, seeds)
        return [evaluation.summarise(jax.tree.map(lambda leaf, i=i: leaf[i], results)) for i in range(num_lanes)]

    def _objective(self, train: Mapping[str, np.ndarray], evaluated: Mapping[str, Any], place: int) -> float | None:
        """Of the evaluation if there is one, else of the last segment; None if no episode ended in it."""
        name = str(self._sweep.plan.objective)
        value = evaluated[name] if evaluated else train[name][place] if name in train else None
        return None if value is None or not np.isfinite(value) else float(value)

    def _save_curve(self, chunk: Chunk, curve: Sequence[Mapping[str, Any]]) -> None:
        import pyarrow as pa

        lanes = len(chunk.jobs)
        columns: dict[str, Any] = {
            "trial": [job.trial for _ in curve for job in chunk.jobs],
            "seed": [job.seed for _ in curve for job in chunk.jobs],
            "rung": pa.array([chunk.rung] * (lanes * len(curve)), pa.int32()),
            "update": pa.array(np.repeat([row["update"] for row in curve], lanes), pa.int32()),
        }
        columns |= {name: np.concatenate([row[name] for row in curve]) for name in curve[0] if name != "update"}
        path = self._directory / ledger.CURVES / f"{chunk.id}.parquet"
        with disk_errors(path, 0):
            path.parent.mkdir(exist_ok=True)
        write_atomic(path, ledger.to_bytes(pa.table(columns)))


_COUNTS = ("update", "env_steps")


def has_states(directory: Path, chunk_id: str) -> bool:
    """Whether the states of a chunk are in a sweep's directory, and are what was written."""
    try:
        return checkpoint.is_sound(directory / STATES / chunk_id, 0)
    except CheckpointError:  # of another release, or not to be read
        return False


def forget(directory: Path, chunk_id: str) -> None:
    """Deletes the states of a chunk from a sweep's directory."""
    shutil.rmtree(directory / STATES / chunk_id, ignore_errors=True)


def _note_failures(state: RunState, failed_at: np.ndarray, failures: dict[int, tuple[int, str]]) -> None:
    for place in np.flatnonzero(failed_at >= 0):
        if place not in failures:
            lane: PyTree = jax.tree.map(lambda leaf, i=place: leaf[i], state.learner)
            update = int(failed_at[place])
            failures[int(place)] = (update, f"{first_nonfinite(lane)} is not finite after update {update}")


def _numbers(group: str, values: Mapping[str, Any]) -> dict[str, float]:
    """What is one finite number, under `GROUP.NAME`."""
    return {f"{group}.{name}": float(v) for name, v in values.items() if v is not None and np.ndim(v) == 0 and np.isfinite(v)}
