"""Which lanes go on next, and in which company, as a function of the ledger alone: a killed sweep plans the same again.

A lane is a trial with a seed. Between rungs it is paused, its state in a file; a chunk is up to `width` lanes of one static
group that train from one rung to the next. Lanes that were stopped or failed leave their places to others: full chunks first,
those nearest to the end before the rest, and a chunk that is not full only when there is nothing else to do. Under halving the
lowest rung comes before the others, full chunks or not, so that trials are compared with all of their rung as far as can be.
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxagent.sweep.ledger import Row
from jaxagent.sweep.spec import FLOATS, Plan, Sweep

PBT_SHARE = 0.2  # of a population that takes over, and that is taken from (Jaderberg et al. 2017)
PBT_FACTORS = (0.8, 1.2)  # by which a setting that was taken over is changed
Lane = tuple[str, int]  # trial and seed


class Origin(NamedTuple):
    """Where the state of a paused lane is."""

    chunk: str
    place: int
    width: int


class Job(NamedTuple):
    """One lane's part in a chunk.

    Attributes:
      trial, seed: the lane.
      rung: the rung to train to.
      settings: of the trial, by dotted path; under population-based training, those it has now.
      origin: the state to go on from; None to begin at update 0.
      parent: the trial whose state that is, if it is another.
    """

    trial: str
    seed: int
    rung: int
    settings: Mapping[str, Any]
    origin: Origin | None = None
    parent: str | None = None


@dataclass(frozen=True)
class Chunk:
    """Lanes to train together.

    Attributes:
      group: their static group.
      width: places; those beyond the jobs are filled up and not looked at.
      start: rung that they are at, -1 before the first update.
      rung: rung to train to.
      jobs: at most `width`.
    """

    group: int
    width: int
    start: int
    rung: int
    jobs: tuple[Job, ...]

    @property
    def id(self) -> str:
        """Twelve hex digits of a hash of its content."""
        jobs = [[*job[:3], job.origin, job.parent, dict(job.settings)] for job in self.jobs]
        content = [self.width, self.start, self.rung, jobs]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=list).encode()).hexdigest()[:12]


def stops(plan: Plan, num_updates: int) -> list[int]:
    """Updates at which each rung ends: geometric under halving, equal steps otherwise; the last is `num_updates`.

    There are enough updates for so many rungs (`spec.most_rungs`).
    """
    rungs = plan.rungs
    if plan.scheduler == "halving":
        return [math.ceil(num_updates / plan.eta ** (rungs - 1 - rung)) for rung in range(rungs)]
    return [math.ceil(num_updates * (rung + 1) / rungs) for rung in range(rungs)]


def pending(sweep: Sweep, trials: Mapping[str, Mapping[str, Any]], groups: Mapping[str, int], rows: Sequence[Row]) -> list[Job]:
    """Every job that may be started now: those nearest to the end first, under halving last; then in the order of `trials`.

    Args:
      trials: the settings of each trial by its id.
      groups: the static group of each.
      rows: the ledger.
    """
    history: dict[Lane, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["rung"]):
        history[row["trial"], row["seed"]].append(row)
    lanes = [(trial, seed) for trial in trials for seed in sweep.seeds]
    if sweep.plan.scheduler == "pbt":
        jobs = _exploiting(sweep, trials, groups, lanes, history)
    else:
        promoted = _promoted(sweep, lanes, history) if sweep.plan.scheduler == "halving" else None
        jobs = list(_going_on(trials, lanes, history, promoted))
        if not jobs and promoted is not None and not any(row["status"] == "done" for row in rows):  # too few for 1 in `eta`
            jobs = list(_going_on(trials, lanes, history, _promoted(sweep, lanes, history, at_least=1)))
    return sorted(jobs, key=lambda job: job.rung if sweep.plan.scheduler == "halving" else -job.rung)


def remade(rows: Sequence[Row], chunk_id: str, sweep: Sweep, trials: Mapping[str, Mapping[str, Any]]) -> Chunk | None:
    """The chunk of that id, from the rows that came of it and of the rung before; None if they do not tell it any more."""
    own = sorted((row for row in rows if row["chunk"] == chunk_id), key=lambda row: row["place"])
    before = {(row["trial"], row["seed"]): row for row in rows if own and row["rung"] == own[0]["rung"] - 1}
    jobs = []
    for row in own:
        source = before.get((row["parent"] or row["trial"], row["seed"]))
        if row["trial"] not in trials or (row["rung"] > 0 and source is None):
            return None
        settings = {**trials[row["trial"]]}
        if sweep.plan.scheduler == "pbt" and row["rung"] > 0:
            settings |= {axis.name: row[axis.name] for axis in sweep.sampled if axis.kind in FLOATS}
        origin = None if source is None else _origin(source)
        jobs.append(Job(row["trial"], row["seed"], row["rung"], settings, origin, row["parent"]))
    if not own:
        return None
    chunk = Chunk(own[0]["group"], own[0]["width"], own[0]["rung"] - 1, own[0]["rung"], tuple(jobs))
    return chunk if chunk.id == chunk_id else None


def _going_on(
    trials: Mapping[str, Mapping[str, Any]], lanes: Sequence[Lane], history: Mapping[Lane, list[Row]], promoted: set[Any] | None
) -> Iterator[Job]:
    """The next rung of every lane, or with `promoted`, (trial, rung) pairs, of those alone."""
    for trial, seed in lanes:
        past = history.get((trial, seed), [])
        if past and (past[-1]["status"] != "rung" or (promoted is not None and (trial, past[-1]["rung"]) not in promoted)):
            continue
        yield Job(trial, seed, len(past), trials[trial], _origin(past[-1]) if past else None)


def _origin(row: Row) -> Origin:
    return Origin(row["chunk"], row["place"], row["width"])


def _promoted(
    sweep: Sweep, lanes: Sequence[Lane], history: Mapping[Lane, list[Row]], *, at_least: int = 0
) -> set[tuple[str, int]]:
    """Trials that may go on from a rung: the best 1 in `eta` of those that came to it with all their seeds (Li et al. 2020)."""
    reached: dict[int, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for lane in lanes:
        for row in history.get(lane, []):
            reached[row["rung"]][row["trial"]].append(row)
    promoted = set()
    for rung, of_trial in reached.items():
        complete = {trial: rows for trial, rows in of_trial.items() if len(rows) == sweep.plan.seeds}
        merits = {trial: _merit(sweep.plan, rows) for trial, rows in complete.items()}
        ranked = sorted(merits, key=lambda trial: -merits[trial])  # stable: of equals the first
        promoted |= {(trial, rung) for trial in ranked[: max(at_least, len(ranked) // sweep.plan.eta)]}
    return promoted


def _merit(plan: Plan, rows: Sequence[Row]) -> float:
    """The mean objective, larger is better; a failed lane or an unknown objective is the worst."""
    values = [row["objective"] for row in rows]
    if any(value is None or row["status"] == "failed" for value, row in zip(values, rows, strict=True)):
        return -math.inf
    return float(np.mean(values)) * (1 if plan.mode == "max" else -1)


# population-based training ----------------------------------------------------------------------------------------------------


def _exploiting(
    sweep: Sweep,
    trials: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, int],
    lanes: Sequence[Lane],
    history: Mapping[Lane, list[Row]],
) -> list[Job]:
    """A population is the trials of a group under one seed. It goes on once all of it is at the same rung."""
    populations: dict[tuple[int, int], list[str]] = defaultdict(list)
    for trial, seed in lanes:
        populations[groups[trial], seed].append(trial)
    jobs = []
    for (_, seed), members in populations.items():
        past = {trial: history.get((trial, seed), []) for trial in members}
        rung = min(len(rows) for rows in past.values())
        if rung == 0:
            jobs += [Job(trial, seed, 0, trials[trial]) for trial in members if not past[trial]]
            continue
        last = {trial: rows[rung - 1] for trial, rows in past.items()}
        waiting = [trial for trial in members if len(past[trial]) == rung and last[trial]["status"] != "done"]
        jobs += [job for job in _generation(sweep, seed, rung, members, last, trials) if job.trial in waiting]
    return jobs


def _generation(
    sweep: Sweep,
    seed: int,
    rung: int,
    members: Sequence[str],
    last: Mapping[str, Row],
    trials: Mapping[str, Mapping[str, Any]],
) -> list[Job]:
    """What every member does next: most go on; the worst take over from one of the best, failed ones too."""
    ranked = sorted(members, key=lambda trial: _merit(sweep.plan, [last[trial]]), reverse=True)
    num_best = max(1, round(PBT_SHARE * len(ranked)))
    best = [trial for trial in ranked[:num_best] if last[trial]["status"] == "rung"]
    if not best:  # all failed
        return []
    jobs = []
    for place, trial in enumerate(ranked):
        rng = np.random.default_rng([sweep.plan.sampler_seed, seed, rung, *trial.encode()])
        takes_over = place >= max(num_best, len(ranked) - num_best) or last[trial]["status"] == "failed"
        source = best[rng.integers(len(best))] if takes_over else trial
        explored = [axis for axis in sweep.sampled if axis.kind in FLOATS]
        settings = {**trials[trial], **{axis.name: last[source][axis.name] for axis in explored}}
        if source != trial:  # a factor each, within the bounds
            settings |= {a.name: float(np.clip(settings[a.name] * rng.choice(PBT_FACTORS), *a.values)) for a in explored}
        jobs.append(Job(trial, seed, rung, settings, _origin(last[source]), source if source != trial else None))
    return jobs


# chunks -----------------------------------------------------------------------------------------------------------------------


def next_chunk(
    jobs: Sequence[Job], groups: Mapping[str, int], widths: Mapping[int, int], *, partial: bool, in_order: bool = False
) -> Chunk | None:
    """The first full chunk of jobs that can be trained together; with `partial`, one that is not full if there is no other.

    With `in_order` it is of the first job's rung, even where another rung has a full one.
    """
    if in_order:
        jobs = [job for job in jobs if job.rung == jobs[0].rung]
    together: dict[tuple[int, int, bool], list[Job]] = defaultdict(list)
    for job in jobs:
        together[groups[job.trial], job.rung, job.origin is None].append(job)
    for full in (True, False) if partial else (True,):
        for (group, rung, fresh), same in together.items():
            width = widths[group]
            if len(same) >= width or not full:
                return Chunk(group, width, -1 if fresh else rung - 1, rung, tuple(same[:width]))
    return None
