"""Lanes, chunks and the driver, on small agents: what a sweep trains, once each, and to the same bits."""

import csv
import os
import random
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import sweeps

from jaxagent import cli, config, evaluation, lanes, loop, trained
from jaxagent.errors import DataError, ResourceError, UsageError
from jaxagent.finite import first_nonfinite
from jaxagent.report import study
from jaxagent.sweep import driver, executors, ledger, scheduling, spec
from jaxagent.sweep.chunks import Runner
from jaxagent.sweep.scheduling import Chunk

pytestmark = pytest.mark.timeout(600)
WIDTH = 4
LRS = (1e-3, 3e-3, 1e-2, 3e-2)


@pytest.fixture(scope="module")
def program() -> lanes.LaneProgram:
    return lanes.LaneProgram(_trial(LRS[0]).trainer, width=WIDTH, capacity=2, num_episodes=4)


def _trial(lr: float) -> spec.Trial:
    return sweeps.sweep().trial({"learner.lr": lr})


def _trained(program: lanes.LaneProgram, lrs, seeds) -> tuple[lanes.Advanced, np.ndarray]:
    """After four updates, and the evaluation's rewards."""
    trainers, seeds = lanes.stacked([_trial(lr).trainer for lr in lrs]), np.array(seeds)
    state = program.init(trainers, seeds)
    for _ in range(2):
        advanced = program.advance(trainers, state, 2)
        state = advanced.state
    return jax.device_get(advanced), program.evaluate(trainers, state, seeds).total_reward


def _lane(tree, place: int) -> list[bytes]:
    return [np.asarray(leaf)[place].tobytes() for leaf in jax.tree.leaves(_without_keys(tree))]


def _without_keys(tree):
    return jax.tree.map(lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def test_a_lane_is_the_same_bits_wherever_it_stands(program):
    ordered, rewards = _trained(program, LRS, [0, 1, 2, 3])
    places = [2, 0, 3, 1]
    permuted, permuted_rewards = _trained(program, [LRS[p] for p in places], places)
    for place, origin in enumerate(places):
        assert _lane(permuted, place) == _lane(ordered, origin)
    np.testing.assert_array_equal(permuted_rewards, rewards[places])
    assert len({tuple(_lane(ordered.state.learner.params, place)) for place in range(WIDTH)}) == WIDTH


def test_a_lane_that_is_no_longer_finite_changes_no_other(program):
    sound, _ = _trained(program, LRS, [0, 1, 2, 3])
    broken, _ = _trained(program, [LRS[0], 1e38, LRS[2], LRS[3]], [0, 1, 2, 3])
    assert broken.failed_at.tolist()[0] == -1 and 0 < broken.failed_at[1] <= 4
    assert first_nonfinite(jax.tree.map(lambda leaf: leaf[1], broken.state.learner)) is not None
    for place in (0, 2, 3):
        assert _lane(broken, place) == _lane(sound, place)


def test_a_lane_is_the_run_that_train_makes(program):
    advanced, rewards = _trained(program, LRS, [0, 1, 2, 3])
    for place in (1, 3):
        trial = _trial(LRS[place])
        alone = loop.Program(trial.trainer, loop.Schedule(4, segment=2, eval_episodes=4), seed=place)
        state = alone.init()
        for _ in range(2):
            state, metrics = alone.segment(state, 2)
        for ours, theirs in zip(
            jax.tree.leaves(advanced.state.learner.params), jax.tree.leaves(state.learner.params), strict=True
        ):
            np.testing.assert_allclose(ours[place], theirs, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(advanced.metrics["return_sum"][place], metrics["return_sum"], rtol=1e-5)
        np.testing.assert_allclose(rewards[place], alone.evaluate(state).total_reward, rtol=1e-5)


def test_the_compiler_says_how_much_memory_lanes_need(tmp_path, monkeypatch):
    trial = _trial(LRS[0])
    programs = [lanes.LaneProgram(trial.trainer, width=width, capacity=2, num_episodes=4) for width in (2, 8)]
    few, many = (program.memory(lanes.stacked([trial.trainer] * program.width)) for program in programs)
    assert many > 2 * few
    executor = executors.InProcess(sweeps.sweep(), tmp_path, lambda updates: None)
    assert executor.width(trial, 8) == 8
    monkeypatch.setattr(executors, "memory_limit", lambda: 1.3 * few)  # of which 0.8 are used
    assert executor.width(trial, 8) == 2


def test_lanes_over_devices_share_nothing():
    """Two devices, in a process of its own: equal lanes, and no collective in the program."""
    code = """
import jax, numpy as np, sys
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import sweeps
from jaxagent import lanes
trainers = [sweeps.sweep().trial({"learner.lr": lr}).trainer for lr in (1e-3, 3e-3, 1e-2, 3e-2)]
program = lanes.LaneProgram(trainers[0], width=4, capacity=2, num_episodes=4)
stacked, seeds = lanes.stacked(trainers), np.arange(4)
state = program.init(stacked, seeds)
advanced = program.advance(stacked, state, 2)
text = program._compiled_advance.as_text()
assert not [name for name in ("all-reduce", "all-gather", "collective-permute", "all-to-all", "reduce-scatter") if name in text]
assert len(advanced.failed_at.sharding.device_set) == int(sys.argv[1])
lengths = program.evaluate(stacked, advanced.state, seeds).length
print(*np.asarray(advanced.metrics["policy_loss"]).ravel(), *lengths.ravel())
"""
    found = []
    for devices in ("1", "2"):
        done = subprocess.run([sys.executable, "-c", code, devices], capture_output=True, text=True, cwd="tests", timeout=240)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append([float(word) for word in done.stdout.split()])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


# the driver -------------------------------------------------------------------------------------------------------------------


def _run(directory, **plan) -> list[ledger.Row]:
    board = driver.Board(driver.with_objective(sweeps.sweep({"seeds": 2, "samples": 3, "rungs": 2, "width": WIDTH, **plan})))
    with driver.opened(directory, board.sweep) as rows:
        driver.run(board, directory, rows)
    return ledger.read_rows(directory)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweep") / "whole"
    return directory, _run(directory)


def test_every_lane_is_trained_once(whole):
    directory, rows = whole
    lanes_done = [(row["trial"], row["seed"]) for row in rows if row["status"] == "done"]
    assert len(lanes_done) == len(set(lanes_done)) == 6 and len(rows) == 12
    assert {row["updates"] for row in rows if row["status"] == "rung"} == {4}
    assert all(row["updates"] == 8 and row["env_steps"] == 8 * 64 for row in rows if row["status"] == "done")
    assert all(row["objective"] == row["eval.success_rate"] for row in rows if row["status"] == "done")
    table = ledger.read(directory)
    assert ledger.settings_of(table) == ["learner.lr"]
    curves = ledger.read_curves(directory, table.column("curve").to_pylist()).to_pylist()
    assert len(curves) == 6 * 4 and {row["update"] for row in curves} == {2, 4, 6, 8}
    assert not list((directory / "states").iterdir())


def test_demonstrations_are_compared_by_what_the_agents_do(tmp_path):
    base = sweeps.BASE | {
        "env": {"name": "ToolSelect-v0"},
        "learner": {"name": "bc", "demonstrator": "sft", "num_minibatches": 1},
        "network": {"torso": "bag", "hidden": [8], "shared": False},
        "train": {"num_envs": 4, "num_steps": 24, "num_updates": 2, "eval_episodes": 4},
    }
    plan = {"rungs": 2, "width": 1, "objective": "turns_mean", "mode": "min"}
    document = {"base": "base.toml", "sweep": plan, "space": {"learner.lr": {"grid": [1e-6]}}}
    board = driver.Board(driver.with_objective(spec.parse(document, "sweep.toml", lambda _: base)))
    with driver.opened(tmp_path / "bc", board.sweep) as rows:
        driver.run(board, tmp_path / "bc", rows)
    rows = ledger.read_rows(tmp_path / "bc")
    assert [row["status"] for row in rows] == ["rung", "done"]
    for row in rows:
        assert row["objective"] == row["eval.turns_mean"] > row["train.turns_mean"]  # of the script, ten


def test_lanes_begin_with_the_network_of_a_run(tmp_path):
    """Lanes that learn nothing play as the run does. The sweep keeps a copy: the run may go on, or go."""
    run, path = tmp_path / "run", tmp_path / "base.toml"
    path.write_text(config.to_toml(sweeps.BASE))
    assert cli.main(["train", str(path), "--out", str(run)]) == 0
    env, params, policy, agent = trained.load(run)
    seen = evaluation.evaluate(env, params, policy, agent, loop.evaluation_key(np.int32(0)), num_episodes=4)

    def begun(directory, fixed):
        board = driver.Board(driver.with_objective(sweeps.sweep({"width": 2}, {"learner.lr": {"grid": [0.0, 1e-3]}}, fixed)))
        with driver.opened(directory, board.sweep) as rows:
            driver.run(board, directory, rows)
        return {row["learner.lr"]: row for row in ledger.read_rows(directory)}

    rows = begun(tmp_path / "out", {"init_from": str(run)})
    assert rows[0.0]["eval.return_mean"] == pytest.approx(float(seen.total_reward.mean()))
    assert rows[0.0]["eval.return_mean"] != begun(tmp_path / "anew", {})[0.0]["eval.return_mean"]
    other = {"init_from": str(run), "network.hidden": [9]}
    with pytest.raises(UsageError, match="sweep.toml: init_from: .*run does not fit: params: expected those of this network"):
        begun(tmp_path / "other", other)
    shutil.rmtree(run)
    (tmp_path / "out" / ledger.LEDGER).unlink()
    assert begun(tmp_path / "out", {"init_from": str(run)}) == rows
    with pytest.raises(UsageError, match="run"):
        begun(tmp_path / "nothing", {"init_from": str(run)})
    assert not (tmp_path / "nothing" / executors.SPEC).exists()
    (command,) = study.read([tmp_path / "out"]).trials[0].commands
    assert f"--init-from {run}" in command


def test_running_it_again_trains_nothing_and_growing_it_only_what_is_new(whole, monkeypatch, tmp_path):
    rows, directory = whole[1], shutil.copytree(whole[0], tmp_path / "copy")
    before = (directory / ledger.LEDGER).read_bytes()
    trained: list[Chunk] = []
    run = Runner.run
    monkeypatch.setattr(Runner, "run", lambda self, chunk, *rest: trained.append(chunk) or run(self, chunk, *rest))
    _run(directory)
    assert not trained and (directory / ledger.LEDGER).read_bytes() == before
    grown = _run(directory, samples=4)
    assert {job.trial for chunk in trained for job in chunk.jobs}.isdisjoint(row["trial"] for row in rows)
    assert [row for row in grown if row in rows] == rows and len(grown) == 16
    with pytest.raises(UsageError, match="sweep.rungs is 3, but 2 in"):
        _run(directory, rungs=3)
    monkeypatch.setattr(sweeps, "BASE", {**sweeps.BASE, "seed": 9})
    with pytest.raises(UsageError, match="base.toml or the table fixed is not what .* was begun with"):
        _run(directory)


@pytest.mark.fast
def test_what_may_not_change_between_two_starts(tmp_path):
    space = {**sweeps.LR, "learner.num_epochs": {"grid": [1, 2]}, "learner.gamma": {"choice": [0.9, 0.99]}}

    def start(**changed) -> None:
        with driver.opened(tmp_path, sweeps.sweep({}, {name: axis for name, axis in (space | changed).items() if axis})):
            pass

    start()
    refused = {
        "learner.lr": ({"log_uniform": [1e-4, 1.0]}, "is log_uniform .*0.0001, 1.0.*, but log_uniform .*0.0001, 0.1.* in "),
        "learner.gamma": ({"choice": [0.9, 0.5]}, "is choice .*0.9, 0.5.*, but choice .*0.9, 0.99.* in "),
        "learner.num_epochs": ({"int": [1, 2]}, "is int .*1, 2.*, but grid .*1, 2.* in "),
        "learner.gae_lambda": ({"grid": [0.9]}, "is grid .*0.9.*, but not there in "),
    }
    for name, (axis, message) in refused.items():
        with pytest.raises(UsageError, match=f"space.{name} {message}(?s:.*)choose another directory"):
            start(**{name: axis})
    with pytest.raises(UsageError, match="space.learner.num_epochs is not there, but grid"):
        start(**{"learner.num_epochs": None})
    start(**{"learner.num_epochs": {"list": [2, 3]}})


@pytest.mark.fast
def test_only_lanes_of_the_spec_count():
    larger = driver.Board(sweeps.sweep({"seeds": 2, "samples": 4, "rungs": 2}))
    rows = [
        {"trial": trial, "seed": seed, "rung": rung, "updates": 4 * (rung + 1), "status": status, "objective": 1.0}
        for trial in larger.trials
        for seed in (0, 1)
        for rung, status in enumerate(("rung", "done"))
    ]
    smaller = driver.Board(sweeps.sweep({"samples": 3, "rungs": 2}))
    for board, count in ((larger, 8), (smaller, 3)):
        board.rows = rows
        assert sum(map(board.updates_of, rows)) == board.expected_updates() == 8 * count
        assert board.headline()["done"] == count and len(board.told()) == len(board.trials)
    assert not larger.notes()
    (note,) = smaller.notes()
    assert note.startswith("5 lanes of the ledger are not in the spec any more")


@pytest.mark.fast
def test_draws_that_coincide_are_told():
    board = driver.Board(sweeps.sweep({"samples": 16}, {"learner.num_epochs": {"int": [1, 2]}}))
    assert board.notes() == ["16 samples asked for, 2 are distinct"]
    space = {"learner.num_epochs": {"int": [1, 2]}, "learner.lr": {"grid": [0.1, 0.2]}}
    assert driver.Board(sweeps.sweep({"samples": 16}, space)).notes() == ["32 trials asked for, 4 are distinct"]
    assert not driver.Board(sweeps.sweep({"samples": 4})).notes()


def test_one_compilation_for_each_static_group(tmp_path, monkeypatch):
    traced = []
    advance = lanes.advance
    monkeypatch.setattr(lanes, "advance", lambda *arguments: traced.append(1) or advance(*arguments))
    space = {
        **sweeps.LR,
        "learner.num_epochs": {"list": [1, 1, 1, 2, 2, 3]},
        "learner.gamma": {"list": [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]},
    }
    board = driver.Board(driver.with_objective(sweeps.sweep({"samples": 2, "rungs": 2, "width": WIDTH}, space)))
    assert len(set(board.groups.values())) == 3
    with driver.opened(tmp_path, board.sweep) as rows:
        driver.run(board, tmp_path, rows)
    assert len(traced) == 3 and len(rows) == 24


def test_failed_lanes_are_told_and_cost_no_further_rung(tmp_path):
    board = driver.Board(driver.with_objective(sweeps.sweep({"rungs": 2, "width": 2}, {"learner.lr": {"grid": [1e-3, 1e38]}})))
    with driver.opened(tmp_path, board.sweep) as rows:
        driver.run(board, tmp_path, rows)
    by_lr = {lr: [row for row in ledger.read_rows(tmp_path) if row["learner.lr"] == lr] for lr in (1e-3, 1e38)}
    assert [row["status"] for row in by_lr[1e-3]] == ["rung", "done"]
    (failed,) = by_lr[1e38]
    assert failed["status"] == "failed" and "is not finite after update" in failed["reason"] and failed["objective"] is None


def test_population_based_training_goes_on_from_another_member(tmp_path):
    rows = _run(tmp_path, scheduler="pbt", objective="return_mean", seeds=1, samples=5, rungs=3, num_updates=30, width=5)
    last = {row["trial"]: row for row in rows if row["status"] == "done"}
    assert len(rows) == 15 and len(last) == 5
    taken_over = [row for row in rows if row["parent"] is not None]
    assert {row["rung"] for row in taken_over} == {1, 2} and len(taken_over) == 2
    assert not list((tmp_path / "states").iterdir())
    for row in taken_over:
        (source,) = [other for other in rows if other["trial"] == row["parent"] and other["rung"] == row["rung"] - 1]
        factor = row["learner.lr"] / source["learner.lr"]
        assert min(abs(factor - known) for known in (0.8, 1.2)) < 1e-6 or row["learner.lr"] in (1e-4, 1e-1)
        assert source["objective"] == max(other["objective"] for other in rows if other["rung"] == source["rung"])


def test_out_of_memory_halves_the_width(tmp_path, monkeypatch, capsys):
    run = Runner.run

    def short_of_memory(self, chunk, *rest):
        if chunk.width > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")
        return run(self, chunk, *rest)

    monkeypatch.setattr(Runner, "run", short_of_memory)
    rows = _run(tmp_path, samples=2, seeds=1)
    assert {row["width"] for row in rows} == {2} and len(rows) == 4
    assert "goes on with 2 lanes at once" in capsys.readouterr().err
    monkeypatch.setattr(Runner, "run", lambda *_: (_ for _ in ()).throw(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no")))
    with pytest.raises(ResourceError, match="out of memory with one lane a device"):
        _run(tmp_path / "never")


def test_damaged_and_foreign_directories(whole, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds no sweep, but notes.txt"):
        _run(tmp_path)
    directory = shutil.copytree(whole[0], tmp_path / "damaged")
    (directory / ledger.LEDGER).write_bytes((whole[0] / ledger.LEDGER).read_bytes()[:-100])
    with pytest.raises(DataError, match="(?s)ledger.parquet: damaged or cut short, or .*move it away and run the sweep again"):
        _run(directory)
    for content in (b"[sweep", b"\xff", b"", b"base = 3\n[config]"):
        (directory / executors.SPEC).write_bytes(content)
        with pytest.raises(DataError, match="sweep.toml: ") as error:
            _run(directory)
        assert len(str(error.value).splitlines()) <= 5


@pytest.mark.parametrize(
    ("plan", "chunks"),
    [
        ({"rungs": 3}, 4),
        ({"rungs": 3, "scheduler": "halving", "eta": 2, "samples": 7, "seeds": 1}, 3),
        ({"rungs": 4, "scheduler": "pbt", "objective": "return_mean", "samples": 5, "seeds": 1, "num_updates": 32}, 8),
    ],
    ids=["none", "halving", "pbt"],
)
def test_states_that_are_lost_are_made_again(tmp_path, monkeypatch, capsys, plan, chunks):
    """Stopped after some chunks; then all states are gone, or damaged."""
    plan |= {"width": 2}
    _run(tmp_path / "undisturbed", **plan)
    expected = (tmp_path / "undisturbed" / ledger.LEDGER).read_bytes()
    run, trained = Runner.run, []

    def stopping(self, chunk, *rest):
        if len(trained) == chunks:
            raise KeyboardInterrupt
        trained.append(chunk)
        return run(self, chunk, *rest)

    monkeypatch.setattr(Runner, "run", stopping)
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "stopped", **plan)
    monkeypatch.setattr(Runner, "run", run)
    for name in ("missing", "damaged", "forgotten"):
        directory = shutil.copytree(tmp_path / "stopped", tmp_path / name)
        arrays = list((directory / "states").glob("*/0/arrays.safetensors"))
        assert arrays
        for path in arrays:
            path.write_bytes(path.read_bytes()[:-1])
        if name == "missing":
            shutil.rmtree(directory / "states")
        if name == "forgotten":
            monkeypatch.setattr(scheduling, "remade", lambda *_: None)
        capsys.readouterr()
        rows = _run(directory, **plan)
        told = capsys.readouterr().err
        assert "states of paused lanes are missing or damaged: " in told
        if name == "forgotten":
            without = ("chunk", "place", "curve")  # lanes may stand in other company
            ours, theirs = (
                [{k: v for k, v in row.items() if k not in without} for row in found]
                for found in (rows, ledger.read_rows(tmp_path / "undisturbed"))
            )
            assert ours == theirs and "lanes are trained anew" in told
        else:
            assert (directory / ledger.LEDGER).read_bytes() == expected and "again to where they were" in told


def test_states_of_a_finished_sweep_are_not_missed(whole, tmp_path, monkeypatch):
    directory = shutil.copytree(whole[0], tmp_path / "copy")
    shutil.rmtree(directory / "states")
    monkeypatch.setattr(Runner, "run", None)
    assert _run(directory) == whole[1]


def test_a_full_disk_keeps_the_ledger(tmp_path):
    """A limit on the size of files, in a process of its own: the states are larger than the ledger."""
    path = sweeps.write(tmp_path, {"samples": 2, "rungs": 2, "width": 2})
    limited = f"ulimit -f 8; exec {sys.executable} -m jaxagent sweep {path} --out {tmp_path / 'out'}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=240)
    assert done.returncode == 5, done.stderr
    assert "cannot write" in done.stderr and "needs" in done.stderr
    _finish(_sweep(path, tmp_path / "out"))
    assert (tmp_path / "out" / ledger.LEDGER).read_bytes() == _undisturbed(tmp_path, path)


def test_damaged_entries_of_the_compilation_cache_change_nothing(tmp_path):
    path, cache = sweeps.write(tmp_path, {"samples": 2, "rungs": 1, "width": 2}), tmp_path / "cache"
    env = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    _finish(_sweep(path, tmp_path / "first", env))
    entries = [entry for entry in cache.rglob("*-cache") if entry.is_file()]
    assert len(entries) > 3
    for number, entry in enumerate(entries):
        content = entry.read_bytes()
        entry.write_bytes(b"" if number % 2 else content[: len(content) // 2])
    _finish(_sweep(path, tmp_path / "again", env))
    ledgers = [(tmp_path / name / ledger.LEDGER).read_bytes() for name in ("first", "again")]
    assert ledgers[0] == ledgers[1]


def test_export(whole, tmp_path):
    directory, rows = whole
    ledger.export_csv(directory, tmp_path / "ledger.csv")
    with open(tmp_path / "ledger.csv") as file:
        read = list(csv.DictReader(file))
    assert [row["trial"] for row in read] == [row["trial"] for row in rows]
    assert [float(row["learner.lr"]) for row in read] == [row["learner.lr"] for row in rows]


@pytest.mark.timeout(900)
def test_ten_kills_leave_an_equal_ledger(tmp_path):
    halving = {"scheduler": "halving", "rungs": 4, "eta": 2, "num_updates": 64}
    path = sweeps.write(tmp_path, {"seeds": 2, "samples": 16, "width": 4, **halving})
    seed = random.randrange(2**32)
    print("seed", seed)
    rng, out, expected = random.Random(seed), tmp_path / "out", _undisturbed(tmp_path, path)
    for goal in sorted(rng.choices(range(40), k=10)):  # rows of the ledger, which will have 60 or more
        process = _sweep(path, out)
        while process.poll() is None and _num_rows(out) < goal:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        assert process.poll() is None, process.communicate()[1].decode()
        process.kill()
        process.communicate()
    _finish(_sweep(path, out))
    assert (out / ledger.LEDGER).read_bytes() == expected


def _sweep(path, out, env=None) -> subprocess.Popen:
    command = [sys.executable, "-m", "jaxagent", "sweep", path, "--out", out]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)


def _finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors.decode()


def _undisturbed(tmp_path, path) -> bytes:
    _finish(_sweep(path, tmp_path / "undisturbed"))
    return (tmp_path / "undisturbed" / ledger.LEDGER).read_bytes()


def _num_rows(out) -> int:
    return len(ledger.read_rows(out)) if out.exists() else 0
