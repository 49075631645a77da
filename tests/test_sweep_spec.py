"""What a spec says, and what is refused before anything compiles."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sweeps
import toolplay

from jaxagent import evaluation
from jaxagent.envs import registry
from jaxagent.errors import ConfigError
from jaxagent.sweep import driver, spec

pytestmark = pytest.mark.fast
SPECS = sorted((Path(__file__).parent.parent / "configs").glob("sweep_*.toml"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shipped_specs(path):
    sweep = spec.read(path)
    assert len(driver.Board(sweep).trials) == len(sweep.settings()) >= 40


def test_grids_are_crossed_lists_advance_together_and_each_is_sampled():
    made = sweeps.sweep(
        {"samples": 3},
        {
            "learner.num_epochs": {"grid": [1, 2]},
            "learner.gamma": {"list": [0.9, 0.99]},
            "learner.gae_lambda": {"list": [0.8, 0.95]},
            "learner.lr": {"log_uniform": [1e-4, 1e-1]},
            "learner.num_minibatches": {"int": [1, 3]},
            "network.hidden": {"choice": [[8], [16]]},
        },
    )
    settings = made.settings()
    assert len(settings) == 2 * 2 * 3
    assert {(s["learner.gamma"], s["learner.gae_lambda"]) for s in settings} == {(0.9, 0.8), (0.99, 0.95)}
    assert len({s["learner.lr"] for s in settings}) == 3  # the same draws in every combination
    assert {s["learner.num_minibatches"] for s in settings} <= {1, 2, 3}
    assert all(s["network.hidden"] in ([8], [16]) for s in settings)


def test_ranges_are_covered_evenly():
    axes = [spec.Axis("a", "uniform", (2.0, 4.0)), spec.Axis("b", "log_uniform", (1e-4, 1.0)), spec.Axis("c", "int", (1, 3))]
    quantiles = (np.arange(3000) + 0.5) / 3000
    uniform, log_uniform, integers = (np.array([axis.at(q) for q in quantiles]) for axis in axes)
    assert uniform.mean() == pytest.approx(3.0) and uniform.min() >= 2.0 and uniform.max() <= 4.0
    assert np.log10(log_uniform).mean() == pytest.approx(-2.0) and np.median(log_uniform) == pytest.approx(1e-2, rel=1e-2)
    assert np.bincount(integers).tolist() == [0, 1000, 1000, 1000]
    assert axes[1].at(0.0) == 1e-4 and axes[1].at(np.nextafter(1.0, 0.0)) <= 1.0


@pytest.mark.parametrize("sampler", ["random", "sobol"])
def test_sampled_settings_are_independent(sampler):
    space = {"learner.lr": {"log_uniform": [1e-4, 1e-1]}, "learner.gamma": {"uniform": [0.9, 1.0]}}
    settings = sweeps.sweep({"samples": 1024, "sampler": sampler}, space).settings()
    ranks = [np.argsort(np.argsort([s[name] for s in settings])) for name in space]
    assert abs(np.corrcoef(ranks)[0, 1]) < 0.1
    assert all(len(set(rank)) == 1024 for rank in ranks)


def test_a_new_axis_or_more_samples_change_no_earlier_draw():
    few = sweeps.sweep({"samples": 4}).settings()
    assert sweeps.sweep({"samples": 9}).settings()[:4] == few
    more_axes = sweeps.sweep({"samples": 4}, {**sweeps.LR, "learner.gamma": {"uniform": [0.9, 1.0]}}).settings()
    assert [s["learner.lr"] for s in more_axes] == [s["learner.lr"] for s in few]


def test_a_trial_is_named_by_its_content():
    made = sweeps.sweep({"seeds": 2})
    trial = made.trial({"learner.lr": 0.01})
    assert trial.id == sweeps.sweep({"seeds": 3, "samples": 7}).trial({"learner.lr": 0.01}).id and len(trial.id) == 10
    assert trial.id != made.trial({"learner.lr": 0.02}).id
    assert trial.id != sweeps.sweep({"num_updates": 9}).trial({"learner.lr": 0.01}).id
    assert trial.id == sweeps.sweep(fixed={"train.keep": 1, "train.checkpoint_every": 5}).trial({"learner.lr": 0.01}).id


def test_what_is_written_is_read_back():
    made = sweeps.sweep({"samples": 3, "total_steps": 1000.0}, fixed={"train.segment": 3})
    back = spec.from_resolved(spec.resolved_toml(made), "sweep.toml")
    assert back == made and back.settings() == made.settings()


NO_FLOAT = "space.learner.{}: uniform and log_uniform are for floats that are traced; expected {}, got uniform"
WRONG = [
    ({"sampels": 3}, {}, {}, "sweep.sampels: unknown key; did you mean sweep.samples?"),
    (
        {"zzzzz": 3},
        {},
        {},
        "sweep.zzzzz: unknown key; known: batch, eta, mode, num_updates, objective, optuna and 8 more; docs",
    ),
    ({"seeds": 0}, {}, {}, "sweep.seeds: expected at least 1, got 0"),
    ({"scheduler": "hyperband"}, {}, {}, "sweep.scheduler: expected one of none, halving, pbt, got 'hyperband'"),
    ({"num_updates": 3, "total_steps": 10.0}, {}, {}, "sweep: expected at most one of num_updates and total_steps"),
    ({"num_updates": 3}, {"train.num_updates": {"grid": [1]}}, {}, "space.train.num_updates: expected sweep.num_updates alone"),
    ({"total_steps": 9.0}, {}, {"train.num_updates": 3}, "fixed.train.num_updates: expected sweep.total_steps alone"),
    ({}, {}, {"train.total_steps": 9}, "fixed.train.total_steps: expected sweep.total_steps instead"),
    ({}, {"learner.lrr": {"uniform": [0, 1]}}, {}, "space.learner.lrr: unknown setting; did you mean learner.lr?"),
    ({}, {"learner.num_epochs": {"uniform": [1, 4]}}, {}, NO_FLOAT.format("num_epochs", "int, choice, grid or list")),
    (
        {},
        {"network.hidden": {"log_uniform": [1, 4]}},
        {},
        "floats that are traced; expected choice, grid or list, got log_uniform",
    ),
    ({}, {"learner.lr": {"grid": []}}, {}, "space.learner.lr.grid: empty"),
    ({}, {"learner.lr": {"gird": [1.0]}}, {}, "space.learner.lr.gird: unknown kind; did you mean grid?"),
    ({}, {"learner.lr": {"uniform": [0.2, 0.1]}}, {}, "space.learner.lr.uniform: expected the least before the most"),
    ({}, {"learner.lr": {"log_uniform": [0.0, 0.1]}}, {}, "space.learner.lr.log_uniform: expected positive bounds, got 0.0"),
    (
        {},
        {"learner.lr": {"uniform": [0.1]}},
        {},
        "space.learner.lr.uniform: expected [least, most], two finite numbers, got [0.1]",
    ),
    ({}, {"learner.lr": {"uniform": [0.1, math.inf]}}, {}, "expected [least, most], two finite numbers, got [0.1, inf]"),
    ({}, {"learner.num_epochs": {"int": [1, 2.5]}}, {}, "space.learner.num_epochs.int: expected [least, most], two integers"),
    ({}, {"learner.lr": {"grid": ["fast"]}}, {}, "space.learner.lr.grid: expected a finite number, got 'fast'"),
    ({}, {"learner.target_kl": {"grid": ["none", 0.1]}}, {}, "space.learner.target_kl.grid: got none; what is off needs"),
    ({}, {"learner.lr": 0.001}, {}, "space.learner.lr: expected a table such as { log_uniform = [1e-4, 1e-2] }, got 0.001"),
    ({}, {"learner": {"lr": 0.001, "gamma": {"grid": [1.0]}}}, {}, "space.learner.lr: expected a table such as"),
    (
        {},
        {"learner": {"lr": {"uniform": [0.1, 0.2], "grid": [1.0]}}},
        {},
        "space.learner.lr: expected one kind, got uniform and grid",
    ),
    ({}, {"learner": {"lr": {}}}, {}, "space.learner.lr: expected one kind, got none"),
    ({}, {"env": {"params": {"step_cost": 1.0}}}, {}, "space.env.params.step_cost: expected a table such as"),
    ({}, {"env.name": {"grid": ["Collector-v0"]}}, {}, "space.env.name: cannot be varied"),
    ({}, {"learner.name": {"grid": ["bc"]}}, {}, "space.learner.name: cannot be varied"),
    ({}, {"zzzzz.qqqqq": {"grid": [1]}}, {}, "more; jaxagent train base.toml --help lists them"),
    ({}, {}, {"learner.gamma": "high"}, "sweep.toml: fixed.learner.gamma: expected a finite number, got 'high'"),
    (
        {},
        {"learner.lr": {"list": [0.1]}, "learner.gamma": {"list": [0.9, 1.0]}},
        {},
        "expected equal lengths, got learner.lr 1",
    ),
    ({"samples": 5}, {"learner.lr": {"grid": [0.1]}}, {}, "sweep.samples: nothing to sample"),
    ({"scheduler": "pbt"}, {"learner.lr": {"grid": [0.1]}}, {}, "sweep.scheduler: pbt changes traced floats"),
    ({"scheduler": "pbt"}, {"learner.num_epochs": {"int": [1, 2]}}, {}, "sweep.scheduler: pbt changes traced floats"),
    ({"sampler": "tpe", "scheduler": "halving"}, {}, {}, "sweep.sampler: tpe learns from trials that were trained to the end"),
    ({}, {"seed": {"grid": [1, 2]}}, {}, "seed: cannot be varied; sweep.seeds says how many"),
    ({}, {}, {"learner.lr": 0.1}, "fixed.learner.lr: varied in space as well"),
    ({}, {}, {"train.devices": 2}, "train.devices: not for sweeps"),
    ({}, {"init_from": {"grid": ["runs/a"]}}, {}, "space.init_from: cannot be varied; expected a run in fixed"),
    ({}, {"network.hidden": {"grid": [[8], [9]]}}, {"init_from": "runs/a"}, "network.hidden: cannot be varied with init_from"),
    ({"samples": 100_000, "seeds": 2}, {}, {}, "sweep: expected at most 100000 lanes, got 200000"),
]


@pytest.mark.parametrize(("plan", "space", "fixed", "message"), WRONG, ids=[case[-1][:40] for case in WRONG])
def test_wrong_specs(plan, space, fixed, message):
    with pytest.raises(ConfigError) as error:
        sweeps.sweep(plan, space, fixed)
    assert message in str(error.value) and str(error.value).startswith("sweep.toml: ")
    assert len(str(error.value).splitlines()) <= 5 and len(str(error.value)) < 400
    assert len(set(str(error.value).splitlines())) == len(str(error.value).splitlines())


def test_a_base_that_begins_with_a_run_keeps_its_network():
    base = sweeps.BASE | {"init_from": "runs/a"}
    document = {"base": "base.toml", "space": {"network.hidden": {"grid": [[8], [9]]}}}
    with pytest.raises(ConfigError, match="sweep.toml: space.network.hidden: cannot be varied with init_from"):
        spec.parse(document, "sweep.toml", lambda _: base)
    begun = spec.parse(document | {"space": sweeps.LR}, "sweep.toml", lambda _: base)
    assert begun.trial(begun.settings()[0]).config.init_from == "runs/a"


def test_bases_that_sweeps_cannot_vary():
    base = sweeps.BASE | {"train": sweeps.BASE["train"] | {"devices": 2}}
    with pytest.raises(ConfigError, match="^base.toml: .*not for sweeps"):
        spec.parse({"base": "base.toml", "space": sweeps.LR}, "sweep.toml", lambda _: base)


def test_params_of_gymnax_environments_vary_too():
    base = {**sweeps.BASE, "env": {"name": "CartPole-v1"}}

    def parsed(name: str) -> spec.Sweep:
        document = {"base": "base.toml", "sweep": {"samples": 2}, "space": {f"env.params.{name}": {"uniform": [5.0, 12.0]}}}
        return spec.parse(document, "sweep.toml", lambda _: base)

    gravities = [one["env.params.gravity"] for one in parsed("gravity").settings()]
    assert len(set(gravities)) == 2 and all(5.0 <= gravity <= 12.0 for gravity in gravities)
    with pytest.raises(ConfigError, match="space.env.params.gravty: unknown setting; did you mean env.params.gravity?"):
        parsed("gravty")


def test_a_trial_that_cannot_be_built_names_its_setting():
    made = sweeps.sweep({}, {"learner.num_minibatches": {"grid": [1, 3]}})
    with pytest.raises(ConfigError, match="num_minibatches"):
        made.trial({"learner.num_minibatches": 3})


@pytest.mark.parametrize(
    ("plan", "space", "message"),
    [
        ({}, {"learner.gamma": {"uniform": [0.9, 1.01]}}, "space.learner.gamma: expected a number in [0, 1], got 1.01"),
        ({}, {"learner.gamma": {"uniform": [-0.001, 0.9]}}, "space.learner.gamma: expected a number in [0, 1], got -0.001"),
        ({}, {"learner.gamma": {"choice": [0.9, 0.95, 2.0]}}, "space.learner.gamma: expected a number in [0, 1], got 2.0"),
        ({}, {"learner.num_minibatches": {"int": [1, 99]}}, "space.learner.num_minibatches: expected"),
        (
            {"sampler": "tpe"},
            {"learner.gamma": {"uniform": [0.9, 1.01]}},
            "space.learner.gamma: expected a number in [0, 1], got 1.01",
        ),
        ({}, {"env.params.max_steps": {"uniform": [3, 8]}}, "expected int, choice, grid or list, got uniform"),
        ({"rungs": 10, "scheduler": "halving"}, {}, "sweep.rungs: expected at most 3, since a trial has 8 updates"),
        ({"rungs": 4, "scheduler": "halving"}, {}, "each 4 times as long as the one before, got 4"),
        ({"rungs": 9}, {}, "sweep.rungs: expected at most 8, since a trial has 8 updates to end them at, got 9"),
        ({"rungs": 9, "scheduler": "pbt"}, {}, "sweep.rungs: expected at most 8"),
    ],
)
def test_what_some_trial_would_fail_of_is_refused_whatever_is_drawn(plan, space, message):
    with pytest.raises(ConfigError) as error:
        driver.Board(sweeps.sweep(plan, space))
    assert str(error.value).startswith("sweep.toml: ") and message in str(error.value)


def in_world(objective: str | None) -> spec.Sweep:
    base = sweeps.BASE | {"env": {"name": "ToolSelect-v0"}}
    document = {"base": "base.toml", "sweep": {} if objective is None else {"objective": objective}, "space": sweeps.LR}
    return driver.with_objective(spec.parse(document, "sweep.toml", lambda _: base))


def test_objectives_are_what_an_evaluation_tells():
    assert in_world(None).plan.objective == "success_rate"
    env, params = registry.make("ToolSelect-v0")
    told = evaluation.summarise(toolplay.results(env, params, "sft", num_episodes=4)).keys()
    names = [name for name in told if name != "episodes" and not name.endswith("_ci95")]
    assert {"turns_mean", "turns_per_success", "latency_mean"} <= set(names)
    for name in names:
        assert in_world(name).plan.objective == name


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("turns", "sweep.toml: sweep.objective: ToolSelect-v0 knows no turns; did you mean turns_mean?"),
        ("episodes", "sweep.toml: sweep.objective: ToolSelect-v0 knows no episodes; "),
        ("zzzzz", "more; `jaxagent eval` shows them"),
    ],
)
def test_unknown_objectives(objective, message):
    with pytest.raises(ConfigError) as error:
        in_world(objective)
    assert message in str(error.value)


def test_objectives_that_a_world_does_not_count():
    with pytest.raises(ConfigError, match="sweep.objective: Collector-v0 knows no turns_mean"):
        driver.with_objective(sweeps.sweep({"objective": "turns_mean"}))


def test_the_command_refuses_before_anything_compiles(tmp_path):
    path = sweeps.write(tmp_path, {}, {"learner.lrr": {"uniform": [0.0, 1.0]}})
    done = subprocess.run([sys.executable, "-m", "jaxagent", "sweep", path, "--out", tmp_path / "out"], capture_output=True)
    assert done.returncode == 2 and b"did you mean learner.lr?" in done.stderr
    assert not (tmp_path / "out").exists()
