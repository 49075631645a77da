"""What is trained next, on ledgers made up by hand."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import sweeps

from jaxagent.sweep import scheduling, spec
from jaxagent.sweep.scheduling import Origin

pytestmark = pytest.mark.fast


def _row(trial: str, seed: int, rung: int, objective: float | None, status: str = "rung", **more) -> dict:
    place = {"chunk": f"{trial}{rung}", "place": 0, "width": 4}
    return {"trial": trial, "seed": seed, "rung": rung, "objective": objective, "status": status, **place, **more}


def _trials(count: int) -> dict[str, dict]:
    return {f"t{i:02d}": {"learner.lr": 0.001 * (i + 1)} for i in range(count)}


def _pending(sweep, trials, rows):
    return scheduling.pending(sweep, trials, dict.fromkeys(trials, 0), rows)


def test_stops():
    plan = sweeps.sweep({"rungs": 3, "eta": 4, "scheduler": "halving"}).plan
    assert scheduling.stops(plan, 320) == [20, 80, 320]
    assert scheduling.stops(plan, 7) == [1, 2, 7]
    for eta, updates in itertools.product((2, 3, 4), (1, 2, 7, 8, 9, 64, 1000)):
        plan = sweeps.sweep({"eta": eta, "scheduler": "halving"}).plan
        ends = [
            scheduling.stops(dataclasses.replace(plan, rungs=spec.most_rungs(plan, updates) + more), updates) for more in (0, 1)
        ]
        assert [len(set(one)) == len(one) for one in ends] == [True, False]  # one more would end where another does
    assert scheduling.stops(sweeps.sweep({"rungs": 4}).plan, 10) == [3, 5, 8, 10]


def test_every_lane_goes_on_unless_it_ended_or_failed():
    sweep, trials = sweeps.sweep({"seeds": 2, "rungs": 2}), _trials(3)
    assert [job[:3] for job in _pending(sweep, trials, [])] == [(t, s, 0) for t in trials for s in (0, 1)]
    rows = [_row("t00", 0, 0, 0.5), _row("t00", 1, 0, None, "failed"), _row("t01", 0, 0, 0.5), _row("t01", 0, 1, 0.6, "done")]
    jobs = _pending(sweep, trials, rows)
    assert [job[:3] for job in jobs] == [("t00", 0, 1), ("t01", 1, 0), ("t02", 0, 0), ("t02", 1, 0)]  # nearest to the end first
    assert jobs[0].origin == Origin("t000", 0, 4) and jobs[1].origin is None


def test_halving_promotes_the_best_of_those_that_came_so_far():
    """16 trials, eta 4: 4 go on from the first rung, 1 from the second; by the mean over both seeds."""
    sweep, trials = sweeps.sweep({"seeds": 2, "rungs": 3, "eta": 4, "scheduler": "halving"}), _trials(16)
    rows = [_row(t, seed, 0, i + (10 if seed else 0)) for i, t in enumerate(trials) for seed in (0, 1)]
    half = rows[:16]  # of eight trials
    assert {job.trial for job in _pending(sweep, trials, half) if job.rung == 1} == {"t06", "t07"}
    assert {job.trial for job in _pending(sweep, trials, rows[:15]) if job.rung == 1} == {"t06"}  # t07 lacks a seed
    assert {job[:3] for job in _pending(sweep, trials, rows)} == {(f"t{i}", s, 1) for i in (12, 13, 14, 15) for s in (0, 1)}
    rows += [_row(f"t{i}", seed, 1, -i) for i in (12, 13, 14, 15) for seed in (0, 1)]
    assert {job[:3] for job in _pending(sweep, trials, rows)} == {("t12", 0, 2), ("t12", 1, 2)}
    rows += [_row("t12", seed, 2, 1.0, "done") for seed in (0, 1)]
    assert not _pending(sweep, trials, rows)


def test_halving_of_few_trials_still_trains_one_to_the_end():
    sweep, trials = sweeps.sweep({"rungs": 3, "eta": 4, "scheduler": "halving", "mode": "min"}), _trials(3)
    rows: list[dict] = []
    for rung, status in enumerate(("rung", "rung", "done")):
        jobs = _pending(sweep, trials, rows)
        assert [job.rung for job in jobs] == [rung] * (1 if rung else 3)
        rows += [_row(job.trial, 0, rung, job.settings["learner.lr"], status) for job in jobs]
    assert not _pending(sweep, trials, rows) and rows[-1]["trial"] == "t00"  # the smallest


def test_failed_lanes_and_unknown_objectives_come_last():
    sweep, trials = sweeps.sweep({"rungs": 2, "eta": 2, "scheduler": "halving"}), _trials(4)
    rows = [_row("t00", 0, 0, None), _row("t01", 0, 0, None, "failed"), _row("t02", 0, 0, -5.0), _row("t03", 0, 0, -6.0)]
    assert {job.trial for job in _pending(sweep, trials, rows)} == {"t02", "t03"}


def test_population_waits_then_the_worst_take_over_from_the_best():
    """Ten members: two of the best are copied by the two worst, whose settings change by a factor within the bounds."""
    sweep, trials = sweeps.sweep({"rungs": 3, "scheduler": "pbt"}), _trials(10)
    rows = [_row(t, 0, 0, i, **settings) for i, (t, settings) in enumerate(trials.items())]
    assert not _pending(sweep, trials, rows[:9])[1:]  # only the one that is missing
    jobs = {job.trial: job for job in _pending(sweep, trials, rows)}
    assert len(jobs) == 10 and all(job.rung == 1 for job in jobs.values())
    for trial in itertools.islice(trials, 2, None):
        assert jobs[trial].parent is None and jobs[trial].settings == trials[trial]
        assert jobs[trial].origin == Origin(f"{trial}0", 0, 4)
    for trial in ("t00", "t01"):
        parent = jobs[trial].parent
        assert parent in ("t08", "t09") and jobs[trial].origin == Origin(f"{parent}0", 0, 4)
        factor = jobs[trial].settings["learner.lr"] / trials[parent]["learner.lr"]
        assert any(math.isclose(factor, known) for known in scheduling.PBT_FACTORS)
    assert _pending(sweep, trials, rows) == _pending(sweep, trials, rows[::-1])  # the order of rows has no part in it


def test_population_members_that_failed_take_over_too_and_settings_keep_to_their_bounds():
    sweep = sweeps.sweep({"rungs": 2, "scheduler": "pbt"}, {"learner.lr": {"uniform": [0.001, 0.0011]}})
    trials = _trials(5)
    rows = [_row(t, 0, 0, i, "failed" if i == 2 else "rung", **settings) for i, (t, settings) in enumerate(trials.items())]
    jobs = {job.trial: job for job in _pending(sweep, trials, rows)}
    assert {trial: job.parent for trial, job in jobs.items() if job.parent} == {"t02": "t04"}  # the worst fifth
    assert jobs["t02"].settings["learner.lr"] in (0.001, 0.0011)  # 0.005 changed by a factor, cut to the bounds
    assert not _pending(sweep, trials, [{**row, "status": "failed"} for row in rows])


def test_chunks_are_of_one_group_and_rung_and_full_if_they_can_be():
    sweep, trials = sweeps.sweep({"rungs": 2}), _trials(7)
    groups = {trial: i % 2 for i, trial in enumerate(trials)}  # four and three
    jobs = scheduling.pending(sweep, trials, groups, [_row("t01", 0, 0, 1.0)])
    widths = {0: 3, 1: 3}
    chunk = scheduling.next_chunk(jobs, groups, widths, partial=True)
    assert chunk is not None and [job.trial for job in chunk.jobs] == ["t00", "t02", "t04"] and chunk.start == -1
    rest = [job for job in jobs if job not in chunk.jobs]
    assert scheduling.next_chunk(rest, groups, widths, partial=False) is None
    chunk = scheduling.next_chunk(rest, groups, widths, partial=True)
    assert chunk is not None and [(job.trial, job.rung) for job in chunk.jobs] == [("t01", 1)] and chunk.start == 0


def test_a_chunk_is_named_by_its_content():
    sweep, trials = sweeps.sweep({"rungs": 2}), _trials(4)
    groups, widths = dict.fromkeys(trials, 0), {0: 2}
    jobs = _pending(sweep, trials, [])
    chunks = [scheduling.next_chunk(part, groups, widths, partial=True) for part in (jobs, jobs[1:], jobs)]
    assert chunks[0].id == chunks[2].id != chunks[1].id and len(chunks[0].id) == 12
    assert scheduling.next_chunk(jobs, groups, {0: 3}, partial=True).id != chunks[0].id


def test_halving_costs_what_arithmetic_says():
    """64 trials, eta 4, three rungs: 64 * 1/16 + 16 * 3/16 + 4 * 3/4 = 10 full trainings, where all are compared at once."""
    sweep, trials = sweeps.sweep({"rungs": 3, "eta": 4, "scheduler": "halving"}), _trials(64)
    rng, rows, cost = np.random.default_rng(0), [], 0.0
    ends = np.array(scheduling.stops(sweep.plan, 64)) / 64
    while jobs := _pending(sweep, trials, rows):
        rung = max(job.rung for job in jobs)
        for job in [job for job in jobs if job.rung == rung]:
            cost += ends[rung] - (ends[rung - 1] if rung else 0)
            rows.append(_row(job.trial, 0, rung, rng.random(), "done" if rung == 2 else "rung"))
    assert cost == pytest.approx(10.0)


def _simulated(sweep, trials, groups, width: int) -> list[dict]:
    """The rows of a sweep in one process, whose scores are random."""
    rng, rows = np.random.default_rng(0), []
    last = sweep.plan.rungs - 1
    while jobs := scheduling.pending(sweep, trials, groups, rows):
        in_order = sweep.plan.scheduler == "halving"
        chunk = scheduling.next_chunk(jobs, groups, dict.fromkeys(groups.values(), width), partial=True, in_order=in_order)
        told = {"chunk": chunk.id, "width": width, "group": chunk.group}
        for place, job in enumerate(chunk.jobs):
            status = "done" if job.rung == last else "rung"
            row = _row(job.trial, job.seed, job.rung, rng.random(), status, parent=job.parent, **job.settings)
            rows.append(row | told | {"place": place})
    return rows


def test_halving_compares_all_trials_of_a_rung_whatever_their_groups():
    sweep, trials = sweeps.sweep({"rungs": 3, "eta": 2, "num_updates": 8, "scheduler": "halving"}), _trials(20)
    groups = {trial: min(i // 6, 2) for i, trial in enumerate(trials)}
    rows = _simulated(sweep, trials, groups, 4)
    assert [sum(row["rung"] == rung for row in rows) for rung in range(3)] == [20, 10, 5]


@pytest.mark.parametrize("scheduler", ["none", "halving", "pbt"])
def test_a_chunk_is_told_by_the_rows_that_came_of_it(scheduler):
    sweep, trials = sweeps.sweep({"rungs": 3, "eta": 2, "seeds": 2, "num_updates": 8, "scheduler": scheduler}), _trials(7)
    rows = _simulated(sweep, trials, dict.fromkeys(trials, 0), 4)
    assert any(row["parent"] for row in rows) is (scheduler == "pbt")
    for chunk_id in {row["chunk"] for row in rows}:
        chunk = scheduling.remade(rows, chunk_id, sweep, trials)
        assert chunk is not None and chunk.id == chunk_id
        assert scheduling.remade(rows, chunk_id, sweep, {}) is None
    assert scheduling.remade(rows, "nothing", sweep, trials) is None
