"""The host loop: what is logged, saved and survived."""

import json
import logging
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagent as ja
from jaxagent import checkpoint, loop, metrics
from jaxagent.errors import CheckpointError, JaxagentError
from jaxagent.loop import Program, Schedule
from jaxagent.rundir import RunDir


def _trainer(**learner) -> ja.Trainer:
    env, params = ja.make("Collector-v0")
    network = ja.actor_critic(env.spec, torso="mlp", hidden=(8,))
    ppo = ja.PPO(network=network, num_epochs=1, num_minibatches=2, **learner)
    return ja.Trainer(env, params, ppo, num_envs=4, num_steps=16)


def _schedule(num_updates: int = 10, **changes) -> Schedule:
    return Schedule(num_updates, **{"segment": 4, "eval_every": 5, "eval_episodes": 6, "checkpoint_every": 3, **changes})


def _fit(path: Path, schedule: Schedule, *, num_seeds: int = 1, trainer: ja.Trainer | None = None) -> RunDir:
    path.mkdir(exist_ok=True)
    loop.fit(Program(trainer or _trainer(), schedule, seed=7, num_seeds=num_seeds), schedule, RunDir(path))
    return RunDir(path)


def _rows(run: RunDir) -> list[dict]:
    rows = metrics.read(run.metrics)
    assert all(set(row.pop("timing")) == {"seconds", "time"} for row in rows)
    return json.loads(json.dumps(rows))  # NaN compares equal as text only


def _final_leaves(run: RunDir, schedule: Schedule, num_seeds: int = 1) -> list[np.ndarray]:
    program = Program(_trainer(), schedule, seed=7, num_seeds=num_seeds)
    tree = checkpoint.restore(run.checkpoints, {"trainer": program.trainer, "state": program.shapes()}).tree
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in jax.tree.leaves(tree)
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> RunDir:
    """A run that nothing disturbed."""
    return _fit(tmp_path_factory.mktemp("whole"), _schedule())


@pytest.mark.fast
def test_the_host_looks_where_segments_evaluations_and_checkpoints_end():
    schedule = _schedule()
    stops = [0]
    while stops[-1] < schedule.num_updates:
        stops.append(schedule.next_stop(stops[-1]))
    assert stops == [0, 3, 4, 5, 6, 8, 9, 10]
    assert [stop for stop in stops if schedule.is_due(schedule.eval_every, stop)] == [0, 5, 10]
    assert [stop for stop in range(1, 11) if schedule.is_due(0, stop)] == [10]  # 0: at the end only


def test_a_row_a_segment_and_all_episodes_are_counted(whole):
    rows = metrics.read(whole.metrics)
    assert [row["update"] for row in rows] == [3, 4, 5, 6, 8, 9, 10]
    assert [row["env_steps"] for row in rows] == [64 * row["update"] for row in rows]
    assert [row["update"] for row in rows if "eval" in row] == [5, 10]
    assert all(np.isfinite(row["value_loss"]) for row in rows)
    evaluation = json.loads(whole.evaluation.read_text())
    assert evaluation["update"] == 10 and evaluation["episodes"] == 6
    assert {"update": 10, **rows[-1]["eval"]} == evaluation
    assert checkpoint.steps(whole.checkpoints) == [6, 9, 10]


def test_a_run_in_two_parts_equals_a_whole_one(whole, tmp_path):
    _fit(tmp_path / "parts", _schedule(6))
    parts = _fit(tmp_path / "parts", _schedule(10))
    for ours, theirs in zip(_final_leaves(parts, _schedule()), _final_leaves(whole, _schedule()), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    ours, theirs = _rows(parts), _rows(whole)
    assert ours.pop(3).pop("eval")  # the first part evaluated at its end
    theirs.pop(3)
    assert str(ours) == str(theirs)


def test_rows_and_checkpoints_beyond_the_one_resumed_from_are_dropped(whole, tmp_path, caplog):
    run = _fit(tmp_path / "run", _schedule())
    (run.checkpoints / "10" / "arrays.safetensors").write_bytes(b"")  # and goes on from 9, with a warning
    with caplog.at_level(logging.WARNING):
        _fit(tmp_path / "run", _schedule())
    assert "arrays.safetensors" in caplog.text
    assert str(_rows(run)) == str(_rows(whole))
    assert checkpoint.steps(run.checkpoints) == [6, 9, 10]


def test_a_run_without_a_checkpoint_starts_again_and_says_so(whole, tmp_path, caplog):
    run = RunDir(tmp_path)
    run.metrics.write_text('{"update": 3, "timing": {}}\n{"upd')
    with caplog.at_level(logging.WARNING):
        _fit(tmp_path, _schedule())
    assert "starts again at update 0" in caplog.text
    assert str(_rows(run)) == str(_rows(whole))


def test_a_run_that_lost_its_checkpoints_is_not_started_again(whole, tmp_path):
    shutil.copytree(whole.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    log = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="came beyond its first"):
        _fit(tmp_path / "run", _schedule())
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == log


def test_numbers_that_are_not_finite_end_the_run_before_they_are_saved(tmp_path):
    with pytest.raises(JaxagentError, match=r"(?s)params/.* is not finite after update 1.*checkpoint is kept"):
        _fit(tmp_path / "run", _schedule(), trainer=_trainer(lr=1e38, max_grad_norm=1e38))
    assert checkpoint.steps(RunDir(tmp_path / "run").checkpoints) == []


def test_seeds_side_by_side_equal_separate_runs(tmp_path):
    schedule = _schedule(3)
    together = Program(_trainer(), schedule, seed=7, num_seeds=3)
    state, rows = together.segment(together.init(), 3)
    for lane in range(3):
        alone = Program(_trainer(), schedule, seed=7 + lane)
        one, one_rows = alone.segment(alone.init(), 3)
        jax.tree.map(lambda a, b, i=lane: np.testing.assert_allclose(a[i], b, rtol=2e-4, atol=2e-5), state.learner, one.learner)
        np.testing.assert_allclose(rows["return_sum"][lane], one_rows["return_sum"], rtol=1e-5)
    run = _fit(tmp_path / "run", schedule, num_seeds=3)
    assert len(json.loads(run.evaluation.read_text())["seeds"]) == 3
    assert len(metrics.read(run.metrics)[0]["return_mean"]) == 3


def test_a_seed_that_fails_leaves_the_others_as_they_were():
    program = Program(_trainer(), _schedule(4), seed=7, num_seeds=2)
    sound, _ = program.segment(program.init(), 4)
    start = program.init()
    broken = jax.tree.map(lambda x: x.at[1].set(jnp.nan), start.learner.params)
    state, _ = program.segment(start._replace(learner=start.learner._replace(params=broken)), 4)
    assert state.update.tolist() == [4, 0]  # the failed one stands still
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), state.learner, sound.learner)


@pytest.mark.fast
def test_a_segment_is_summed_up():
    rows = {
        "episodes": np.array([2, 0, 2, 9]),
        "env_steps": np.array([8, 8, 8, 8]),
        "return_sum": np.array([3.0, 0.0, 5.0, 9.0]),
        "length_sum": np.array([4, 0, 12, 9]),
        "entropy": np.array([0.5, 1.0, 1.5, 9.0]),
    }
    row = loop.summarise(rows, 3)  # the fourth is beyond the segment
    assert row == {"episodes": 4, "return_mean": 2.0, "length_mean": 4.0, "entropy": 1.0}
    assert np.isnan(
        loop.summarise({"episodes": np.zeros(3), "env_steps": np.zeros(3), "return_sum": np.zeros(3)}, 3)["return_mean"]
    )


def test_the_display_leaves_out_seeds_without_episodes():
    shown = loop._headline({"return_mean": np.array([1.0, np.nan, 4.0]), "success_rate": np.array([np.nan, np.nan])})
    assert shown["return"] == 2.5 and np.isnan(shown["success"])
    assert loop._headline({"return_mean": np.float64(3.0)}) == {"return": 3.0}


@pytest.mark.parametrize(("rate", "shown"), [(0.5625, "56%"), (0.004, "<1%"), (0.0, None)])
def test_the_display_tells_of_episodes_that_were_cut(rate, shown):
    row = {"return_mean": np.array([1.0, 3.0]), "unfinished_rate": np.array([rate, rate])}
    assert loop._headline(row) == {"return": 2.0} | ({} if shown is None else {"unfinished": shown})


def test_the_display_of_demonstrations_says_how_well_they_are_predicted():
    row = {
        name: np.float64(value)
        for name, value in {"return_mean": 3.0, "success_rate": 1.0, "loss": 0.5, "accuracy": 0.8}.items()
    }
    row |= {"eval": {"success_rate": 0.6, "return_mean": 1.0}}
    assert loop._headline(row, demonstrated=True) == {"loss": 0.5, "accuracy": 0.8, "eval_success": 0.6}


def test_one_program_serves_every_segment(tmp_path):
    program = Program(_trainer(), _schedule(), seed=0)
    state = program.init()
    for count in (3, 1, 4):
        state, _ = program.segment(state, count)
    assert program._segment._cache_size() == 1
