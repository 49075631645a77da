"""The host's side of training: compiled segments, and between them the log, evaluation, checkpoints, the NaN guard, signals.

All that a run does is a function of its trainer, its seed and the number of updates; the loop only looks. So a run that is
killed goes on from its last checkpoint as if nothing had happened.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxagent import checkpoint, distributed, evaluation, metrics
from jaxagent.errors import CheckpointError, JaxagentError
from jaxagent.files import write_json
from jaxagent.finite import first_nonfinite
from jaxagent.progress import Progress
from jaxagent.rundir import RunDir
from jaxagent.trackers import Track
from jaxagent.train import RunState, Trainer, strong
from jaxagent.types import Metrics, PyTree

_log = logging.getLogger(__name__)
_EVALUATION_STREAM = 0x5EED  # keeps evaluation levels apart from all that training draws


@dataclass(frozen=True)
class Schedule:
    """How long, and how often what. All but `eval_episodes` and `keep` count updates.

    Attributes:
      num_updates: when to stop.
      segment: updates a compiled call; a metrics row each.
      eval_every: 0 evaluates at the end only.
      eval_episodes: episodes an evaluation.
      checkpoint_every: 0 saves at the end only.
      keep: checkpoints kept.
    """

    num_updates: int
    segment: int = 10
    eval_every: int = 0
    eval_episodes: int = 512
    checkpoint_every: int = 100
    keep: int = 3

    def next_stop(self, update: int) -> int:
        """The update at which the host looks again: the end of the segment, or an evaluation or checkpoint before it."""
        periods = [period for period in (self.segment, self.eval_every, self.checkpoint_every) if period]
        return min(self.num_updates, *((update // period + 1) * period for period in periods))

    def is_due(self, period: int, update: int) -> bool:
        """Whether what happens every `period` updates, and at the end, happens after `update`."""
        return update == self.num_updates or (period > 0 and update % period == 0)


class Interrupted(BaseException):
    """A signal ended the work. `exit_code` is 130 for SIGINT and 143 for SIGTERM."""

    def __init__(self, signal_number: int, left: str) -> None:
        """`left` says where it stopped and what is saved."""
        super().__init__(f"stopped by {signal.Signals(signal_number).name}{left}")
        self.exit_code = 128 + signal_number


class Program:
    """The compiled parts of a run, for one seed or several side by side.

    With several seeds every leaf of the state and of what is returned has a leading axis, one entry a seed; on a mesh there is
    one seed.
    """

    def __init__(self, trainer: Trainer, schedule: Schedule, *, seed: int, num_seeds: int = 1) -> None:
        self.trainer = strong(trainer)
        if trainer.mesh is not None:
            self.trainer = jax.device_get(self.trainer)  # to go to any device
            everywhere = NamedSharding(trainer.mesh, PartitionSpec())
            self._gather = jax.jit(lambda state: state, out_shardings=everywhere)
        self._capacity, self._num_episodes = schedule.segment, schedule.eval_episodes
        self._seeds = jnp.arange(seed, seed + num_seeds) if num_seeds > 1 else np.int32(seed)
        self._over_seeds = jax.vmap if num_seeds > 1 else lambda function: function
        self._init = jax.jit(self._init_all)
        self._segment = jax.jit(self._segment_all, donate_argnums=1)
        self._evaluate = jax.jit(self._evaluate_all)

    def init(self, warm_start: PyTree | None = None) -> RunState:
        """Before the first update; `warm_start` holds network parameters, the same for all seeds."""
        return self._init(self.trainer, warm_start)

    def shapes(self) -> RunState:
        """The structure of a state, without making one."""
        shapes = jax.eval_shape(self._init_all, self.trainer, None)
        if self.trainer.mesh is None:
            return shapes

        def placed(sharding: NamedSharding, part: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: leaf.update(sharding=sharding), part)

        return jax.tree.map(placed, self.trainer.shardings(), shapes)

    def segment(self, state: RunState, count: int) -> tuple[RunState, Metrics]:
        """Up to `count` updates (see `Trainer.run`). The state given is used up; metrics are `[..., capacity]` on the host."""
        state, rows = self._segment(self.trainer, state, np.int32(count))
        return state, jax.device_get(rows)

    def whole(self, state: RunState) -> RunState:
        """A state that this process can read all of. All processes must call it."""
        return state if jax.process_count() == 1 else self._gather(state)

    def evaluate(self, state: RunState) -> evaluation.EpisodeResults:
        """Greedy episodes on levels that training does not draw: the same ones every time, on one device."""
        learner = state.learner
        if self.trainer.mesh is not None:
            learner = jax.tree.map(lambda leaf: leaf.addressable_data(0), learner)
        return jax.device_get(self._evaluate(self.trainer, learner))

    def _init_all(self, trainer: Trainer, warm_start: PyTree | None) -> RunState:
        return self._over_seeds(lambda seed: trainer.init(jax.random.key(seed), warm_start=warm_start))(self._seeds)

    def _segment_all(self, trainer: Trainer, state: RunState, count: jax.Array) -> tuple[RunState, Metrics]:
        return self._over_seeds(lambda one: trainer.run(one, count, capacity=self._capacity))(state)

    def _evaluate_all(self, trainer: Trainer, learner: PyTree) -> evaluation.EpisodeResults:
        policy = trainer.learner.policy(greedy=True)

        def play(learner: PyTree, seed: jax.Array) -> evaluation.EpisodeResults:
            agent, key = trainer.learner.agent(learner), evaluation_key(seed)
            return evaluation.evaluate(trainer.env, trainer.params, policy, agent, key, num_episodes=self._num_episodes)

        return self._over_seeds(play)(learner, self._seeds)


def evaluation_key(seed: jax.Array | int) -> jax.Array:
    """Decides on which levels a run of this seed is evaluated."""
    return jax.random.fold_in(jax.random.key(seed), _EVALUATION_STREAM)


def fit(
    program: Program, schedule: Schedule, run: RunDir, *, warm_start: PyTree | None = None, track: Track | None = None
) -> dict[str, Any]:
    """Trains to `schedule.num_updates`, from the newest checkpoint in the run's directory if there is one.

    The caller holds the directory's lock. `track` is called with each update that ends a segment, and its metrics row. Returns
    the last evaluation, which is in `eval.json` too. Of several processes the leader alone evaluates and writes; to the others
    an empty one is returned.

    Raises:
      Interrupted: SIGINT or SIGTERM; the checkpoint is saved.
      JaxagentError: the numbers of a seed were no longer finite. The last sound checkpoint is kept.
      CheckpointError, ResourceError: see `checkpoint`.
    """
    leads = distributed.leads()
    state, env_steps = _start(program, schedule, run, warm_start)
    update, result, failures = int(np.max(state.update)), None, dict[int, str]()
    if len(set(distributed.from_all(update))) > 1:
        raise CheckpointError(f"{run.checkpoints}: the processes do not see the same checkpoints")
    with (
        open(os.devnull, "w") as nowhere,
        Progress(schedule.num_updates, start=update, stream=None if leads else nowhere) as progress,
        deferred_signals(progress) as received,
        metrics.MetricsLog(run.metrics if leads else Path(os.devnull)) as log,
    ):
        while update < schedule.num_updates:
            began, count = time.monotonic(), schedule.next_stop(update) - update
            state, rows = program.segment(state, count)
            update += count
            _note_failures(state, update, failures, progress)
            row = summarise(rows, count)
            env_steps = env_steps + rows["env_steps"].sum(-1, dtype=np.int64)
            if leads and schedule.is_due(schedule.eval_every, update):
                row["eval"] = result = _evaluation(program, state)
            timing = {"seconds": time.monotonic() - began, "time": time.time()}
            log.append(update, {"env_steps": env_steps, **row}, timing=timing)
            if track is not None:
                track(update, {"env_steps": env_steps, **row})
            progress.report(
                update, env_steps=int(np.sum(env_steps)), values=_headline(row, demonstrated=program.trainer.demonstrated)
            )
            signal_number = max(distributed.from_all(received[0] if received else 0))
            if schedule.is_due(schedule.checkpoint_every, update) or signal_number:
                whole = program.whole(state)
                if leads:
                    log.sync()
                    checkpoint.save(
                        run.checkpoints,
                        update,
                        {"trainer": program.trainer, "state": whole},
                        metadata={"env_steps": np.asarray(env_steps).tolist()},
                        keep=schedule.keep,
                    )
            if signal_number:
                raise Interrupted(signal_number, f" after update {update}; the checkpoint is saved")
    if not leads:
        return {}
    result = result or _evaluation(program, state)
    write_json(run.evaluation, {"update": update, **result})
    if failures:
        raise JaxagentError("\n".join(list(failures.values())[:5]))
    return result


def _start(program: Program, schedule: Schedule, run: RunDir, warm_start: PyTree | None) -> tuple[RunState, np.ndarray]:
    """The state to go on from and the environment steps that led to it; cuts off what lies beyond it in the run's directory."""
    leads = distributed.leads()
    if not checkpoint.steps(run.checkpoints):
        logged = metrics.read(run.metrics) if run.metrics.exists() else []
        first = schedule.checkpoint_every or schedule.num_updates
        if run.evaluation.exists() or (logged and logged[-1]["update"] > first):
            raise CheckpointError(f"no checkpoint in {run.checkpoints}, although the run came beyond its first")
        if run.metrics.exists():
            _log.warning("%s has no checkpoint yet: it starts again at update 0", run.path)
        if leads:
            metrics.truncate_after(run.metrics, 0)
        return program.init(warm_start), np.zeros((), np.int64)
    restored = checkpoint.restore(run.checkpoints, {"trainer": program.trainer, "state": program.shapes()})
    if leads:
        metrics.truncate_after(run.metrics, restored.step)
        checkpoint.discard_after(run.checkpoints, restored.step)
    program.trainer = restored.tree["trainer"]
    return restored.tree["state"], np.asarray(restored.metadata["env_steps"], np.int64)


def summarise(rows: Mapping[str, Any], count: int) -> dict[str, Any]:
    """One row for a segment from the metrics of its first `count` updates, `[..., capacity]`; leading axes stay.

    Sums over episodes become means over the episodes that ended (NaN if none did), and ratios of two of them; everything else
    is averaged over updates.
    """
    left = {name: np.asarray(values, np.float64)[..., :count] for name, values in rows.items() if name != "env_steps"}
    episodes = left.pop("episodes").sum(-1)
    sums = {name.removesuffix("_sum"): left.pop(name).sum(-1) for name in list(left) if name.endswith("_sum")}
    with np.errstate(invalid="ignore"):
        means = {
            name + _MEANS.get(name, "_mean"): total / episodes
            for name, total in sums.items()
            if name not in metrics.ONLY_IN_RATIOS
        }
    if "performance" in sums:
        means["reward_gap"] = means["return_mean"] - means["performance_mean"]
    averages = {name: values.mean(-1) for name, values in left.items()}
    return {"episodes": episodes.astype(np.int64), **means, **metrics.ratios(sums), **averages}


_MEANS = {"success": "_rate", "truncated": "_rate"}  # what they are called, where that is not the mean


def _headline(row: Mapping[str, Any], *, demonstrated: bool = False) -> dict[str, float | str]:
    """What the progress display shows of a row: means over the seeds with episodes that ended, NaN where there are none.

    Of demonstrations, whose episodes are not the agent's, how well they are predicted; and how many episodes were cut, if any.
    """
    names = ("loss", "accuracy") if demonstrated else ("return_mean", "success_rate")
    shown: dict[str, float | str] = {name.partition("_")[0]: _mean(row[name]) for name in names if name in row}
    if (unfinished := _mean(row.get("unfinished_rate", 0.0))) > 0:
        shown["unfinished"] = "<1%" if unfinished < 0.01 else f"{unfinished:.0%}"
    if "eval" in row:
        name = "success_rate" if row["eval"]["success_rate"] is not None else "return_mean"
        shown[f"eval_{name.partition('_')[0]}"] = row["eval"][name]
    return shown


def _mean(values: Any) -> float:
    known = [value for value in np.ravel(values) if not np.isnan(value)]
    return float(np.mean(known)) if known else np.nan


def _evaluation(program: Program, state: RunState) -> dict[str, Any]:
    """The summary over all episodes; with several seeds, that of each beside it."""
    results = program.evaluate(state)
    pooled = evaluation.summarise(results)
    if np.ndim(results.length) == 1:
        return pooled
    lanes = [jax.tree.map(lambda leaf, i=i: leaf[i], results) for i in range(len(results.length))]
    return pooled | {"seeds": [evaluation.summarise(lane) for lane in lanes]}


def _note_failures(state: RunState, expected: int, failures: dict[int, str], progress: Progress) -> None:
    """Records the seeds that stopped short of update `expected`: their numbers are not finite. The others go on.

    Raises:
      JaxagentError: no seed is left.
    """
    done = np.atleast_1d(jax.device_get(state.update))
    for lane in np.flatnonzero(done < expected):
        if lane not in failures:
            learner = jax.tree.map(lambda leaf, i=lane: leaf[i], state.learner) if state.update.ndim else state.learner
            where = f"seed lane {lane}: " if len(done) > 1 else ""
            failures[int(lane)] = f"{where}{first_nonfinite(learner)} is not finite after update {done[lane]}"
            progress.note(failures[int(lane)])
    if len(failures) == len(done):
        raise JaxagentError("\n".join([*list(failures.values())[:4], "the last sound checkpoint is kept"]))


@contextmanager
def deferred_signals(progress: Progress) -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in a list instead of acting on them; a second one acts at once."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        progress.note(f"{signal.Signals(number).name}: finishing the segment, then saving; once more stops at once")
        for handled in previous:
            signal.signal(handled, signal.SIG_DFL)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield received
        return
    previous = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
