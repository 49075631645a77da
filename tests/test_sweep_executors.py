"""Sweeps beyond one process: equal ledgers wherever lanes are trained, and workers that are killed."""

import os
import random
import signal
import sys

import pytest
import sweeps

from jaxagent.errors import JaxagentError, UsageError
from jaxagent.sweep import driver, executors, ledger, optuna_study
from jaxagent.sweep.scheduling import Chunk, Job, Origin

PLAN = {"seeds": 2, "samples": 8, "rungs": 2, "width": 2, "num_updates": 256}


def _run(directory, make_executor=executors.InProcess, **plan) -> bytes:
    board = driver.Board(driver.with_objective(sweeps.sweep({**PLAN, **plan})))
    with driver.opened(directory, board.sweep) as rows:
        driver.run(board, directory, rows, make_executor=make_executor)
    return (directory / ledger.LEDGER).read_bytes()


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> bytes:
    return _run(tmp_path_factory.mktemp("alone") / "sweep")


@pytest.mark.timeout(900)
def test_four_workers_and_ten_kills_train_every_lane_once(tmp_path, expected, monkeypatch):
    monkeypatch.setattr(executors, "_ATTEMPTS", 20)  # ten kills may fall on one chunk
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    goals = sorted(rng.choices(range(17), k=10))  # rows of the ledger, which will have 32

    def make(sweep, directory, report):
        def report_and_kill(updates: int) -> None:
            report(updates)
            if goals and executor.pids and len(ledger.read_rows(directory)) >= goals[0]:
                os.kill(rng.choice(executor.pids), signal.SIGKILL)
                goals.pop(0)

        executor = executors.LocalWorkers(directory, report_and_kill, 4)
        return executor

    assert _run(tmp_path / "sweep", make) == expected
    assert not goals


def test_states_of_a_chunk_whose_rows_are_still_to_come_are_kept(tmp_path, expected):
    class Eager(executors.InProcess):
        capacity = 2

        def submit(self, chunk):
            self._waiting.append((chunk, self._runner.run(chunk, self._report)))

        def wait(self):
            return self._waiting.pop(0)

    assert _run(tmp_path / "sweep", Eager) == expected


def test_a_chunk_that_every_worker_dies_of_is_an_error(tmp_path):
    chunk = Chunk(0, 1, -1, 0, (Job("t", 0, 0, {"learner.lr": -1.0}),))  # refused by the learner
    (tmp_path / executors.SPEC).write_text("no spec")
    executor = executors.LocalWorkers(tmp_path, lambda updates: None, 1)
    executor.submit(chunk)
    with pytest.raises(JaxagentError, match=r"(?s)its worker died 3 times.*sweep.toml: not readable as TOML"):
        executor.wait()
    executor.close()


@pytest.mark.timeout(600)
def test_ray_actors_and_one_that_is_killed(tmp_path, expected):
    pytest.importorskip("ray", reason="Ray is not installed")
    killed = []

    class Killing(executors.Ray):
        def submit(self, chunk):
            super().submit(chunk)
            if chunk.rung == 1 and not killed:
                ((actor, _),) = [pair for pair in self._busy.values() if pair[1] is chunk]
                killed.append(chunk.id)
                self._ray.kill(actor)

    make = lambda sweep, directory, report: Killing(directory, report, 2)  # noqa: E731
    assert _run(tmp_path / "sweep", make) == expected
    assert len(killed) == 1


def test_a_remote_ray_cluster_has_to_ask_for_tokens(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(UsageError, match="RAY_AUTH_MODE=token"):
        executors.Ray(tmp_path, lambda updates: None, None, "ray://example.invalid:10001")


@pytest.mark.timeout(600)
def test_slurm_jobs_through_submitit(tmp_path):
    """Submitit's local executor stands in for Slurm, which cannot be had here; the jobs are the same."""
    pytest.importorskip("submitit", reason="submitit is not installed")
    make = lambda sweep, directory, report: executors.Slurm(directory, report, 2, {}, cluster="local")  # noqa: E731
    few = {"samples": 2, "seeds": 1, "num_updates": 8}
    assert _run(tmp_path / "jobs", make, **few) == _run(tmp_path / "alone", **few)


@pytest.mark.fast
def test_chunks_go_through_json():
    jobs = (
        Job("a", 0, 1, {"learner.lr": 0.1, "network.hidden": [8]}, Origin("c", 2, 4), "b"),
        Job("b", 1, 1, {"learner.lr": 1e-7}),
    )
    chunk = Chunk(3, 4, 0, 1, jobs)
    assert (
        executors.from_json(executors.to_json(chunk)) == chunk and executors.from_json(executors.to_json(chunk)).id == chunk.id
    )


@pytest.mark.fast
def test_options_that_an_executor_does_not_take():
    with pytest.raises(UsageError, match="--address: not an option of --executor workers, which takes workers"):
        executors.chosen("workers", workers=None, address="here", devices=None)


@pytest.mark.fast
def test_executors_that_cannot_be_had_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    choose = lambda name: executors.chosen(name, workers=None, address=None, devices=None)  # noqa: E731
    with pytest.raises(UsageError, match="--executor slurm: expected a machine from which .* found no command srun here"):
        choose("slurm")
    monkeypatch.setitem(sys.modules, "optuna", None)
    for plan in ({"sampler": "tpe"}, {"optuna": "study.log"}):
        with pytest.raises(UsageError, match="Optuna is needed: pip install"):
            driver.Board(sweeps.sweep(plan))
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    for name, package in (("slurm", "submitit"), ("ray", "Ray")):
        with pytest.raises(UsageError, match=f"--executor {name} needs {package}: pip install"):
            choose(name)


# Optuna -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.fast
def test_tpe_draws_near_what_was_good_and_the_same_again():
    pytest.importorskip("optuna", reason="Optuna is not installed")
    sweep = sweeps.sweep({"sampler": "tpe", "samples": 64}, {"learner.lr": {"log_uniform": [1e-4, 1.0]}})
    told = [(f"t{i}", {"learner.lr": 10 ** (-4 + i / 8)}, -abs(i - 16.0)) for i in range(32)]  # best at 1e-2
    asked = optuna_study.ask(sweep, told, 16)
    assert asked == optuna_study.ask(sweep, told, 16) and len({one["learner.lr"] for one in asked}) == 16
    assert sum(1e-3 < one["learner.lr"] < 1e-1 for one in asked) >= 12  # half the space, if drawn evenly


def test_a_tpe_sweep_and_its_mirror(tmp_path):
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
    journal = tmp_path / "study.log"
    plan = {"sampler": "tpe", "samples": 6, "batch": 3, "seeds": 1, "num_updates": 4, "rungs": 1, "optuna": str(journal)}
    whole = _run(tmp_path / "whole", **plan)
    rows = ledger.read_rows(tmp_path / "whole")
    assert len(rows) == 6 and len({row["learner.lr"] for row in rows}) == 6

    def trials():
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
        return optuna.load_study(study_name="sweep", storage=storage).get_trials()

    mirrored = {trial.user_attrs["trial"]: trial for trial in trials()}
    assert {trial: one.value for trial, one in mirrored.items()} == {row["trial"]: row["objective"] for row in rows}
    assert all(mirrored[row["trial"]].params["learner.lr"] == pytest.approx(row["learner.lr"]) for row in rows)
    journal.unlink()
    assert _run(tmp_path / "whole", **plan) == whole  # nothing to train
    assert len(trials()) == 6  # rebuilt from the ledger
    journal.write_text("{ torn")
    assert _run(tmp_path / "whole", **plan) == whole  # a warning, and no more
