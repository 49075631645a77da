"""Reports of runs and of a sweep that were trained."""

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from PIL import Image

from jaxagent import cli, config, report
from jaxagent.report import analysis, page, study
from jaxagent.rundir import RunDir

TINY = tiny.toml(seed=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two finished runs of two seeds. Read only."""
    directory = tmp_path_factory.mktemp("runs")
    (directory / "tiny.toml").write_text(TINY)
    paths = [directory / "slow run", directory / "fast run"]
    for path, lr in zip(paths, ("1e-4", "1e-2"), strict=True):
        arguments = ["train", str(directory / "tiny.toml"), "--out", str(path), "--seeds", "2", "--learner.lr", lr]
        assert cli.main(arguments) == 0
    return paths


def test_runs_are_compared_by_their_evaluations(runs: list[Path]) -> None:
    report = analysis.analyse(study.read(runs))
    assert (report["kind"], report["objective"], report["varied"]) == ("runs", "eval.success_rate", ["learner.lr"])
    assert [row["place"] for row in report["leaderboard"]] == [1, 2]
    for row in report["leaderboard"]:
        evaluation = json.loads((Path(row["trial"]) / "eval.json").read_text())
        assert list(row["seed_scores"]) == ["3", "4"]
        assert list(row["seed_scores"].values()) == [seed["success_rate"] for seed in evaluation["seeds"]]
        assert row["updates"] == 4 and row["env_steps"] == 2 * 4 * 4 * 8
        assert row["evaluated"] == {name: evaluation[name] for name in ("return_mean", "length_mean")}
    logged = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    curve = report["curves"][str(runs[0])]
    assert curve["env_steps"].tolist() == [row["env_steps"][0] for row in logged]
    assert curve["entropy"]["mean"].tolist() == pytest.approx([sum(row["entropy"]) / 2 for row in logged])
    assert curve["entropy"]["low"].tolist() == [min(row["entropy"]) for row in logged]


CLONING = """
[env]
name = "ToolSelect-v0"
[learner]
name = "bc"
demonstrator = "sft"
num_minibatches = 1
[network]
torso = "bag"
hidden = [8]
shared = false
[train]
num_envs = 4
num_steps = 24
num_updates = 2
segment = 1
eval_every = 1
eval_episodes = 4
"""


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that clones demonstrations, and what it showed. Read only."""
    directory = tmp_path_factory.mktemp("cloned")
    (directory / "bc.toml").write_text(CLONING)
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        assert cli.main(["train", str(directory / "bc.toml"), "--out", str(directory / "run")]) == 0
    return directory / "run", shown.getvalue()


def test_episodes_of_demonstrations_are_not_taken_for_the_agents(
    runs: list[Path], cloned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, shown = cloned
    (*_, last) = shown.splitlines()
    assert re.search(r"eta \S+  loss \S+  accuracy \S+  eval_success \S+$", last)
    trial, other = study.read([run, runs[0]]).trials
    assert {"loss", "accuracy", "entropy"} == trial.curves[0].values.keys()
    assert {"success_rate", "return_mean"} <= other.curves[0].values.keys()
    figures: list[Any] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    report.save_curves(RunDir(run), demonstrated=True)
    labels = {axis.get_title(): axis.get_legend_handles_labels()[1] for axis in figures[0].axes}
    played = ["return mean", "success rate", "performance mean", "turns mean"]
    assert list(labels) == [*played, "entropy", "loss", "accuracy"]
    assert all(labels[name] == ["demonstrations", "evaluation"] for name in played)
    assert not labels["loss"] and not labels["accuracy"]
    report.save_curves(RunDir(runs[0]))
    labels = {axis.get_title(): axis.get_legend_handles_labels()[1] for axis in figures[1].axes}
    assert list(labels) == ["return mean", "success rate", "length mean", "entropy", "value loss", "approx kl"]
    assert all("demonstrations" not in shown for shown in labels.values())


def test_different_learners_are_told_apart_by_what_they_share() -> None:
    ppo = {"learner.name": "ppo", "learner.lr": 1e-3, "learner.clip_eps": 0.2, "train.num_steps": 8, "network.critic": True}
    cloning = {"learner.name": "bc", "learner.lr": 3e-3, "learner.demonstrator": "sft", "train.num_steps": 8, "init_from": "x"}
    assert varied(ppo, cloning) == ["learner.name", "learner.lr", "network.critic", "init_from"]


def varied(*settings: dict[str, Any]) -> list[str]:
    return analysis.varied_settings([study.Trial(str(i), one, (), ()) for i, one in enumerate(settings)])


def test_curves_of_one_point_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ({"update": i, "env_steps": 8 * i, "success_rate": "NaN" if i == 1 else 0.5, "entropy": 1.0} for i in (1, 2))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    figures: list[Any] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    report.save_curves(RunDir(tmp_path))
    assert [axis.get_lines()[0].get_marker() for axis in figures[0].axes] == ["o", "None"]


def test_how_often_something_is_saved_counts_only_where_nothing_else_differs() -> None:
    one = {"learner.lr": 1e-3, "train.segment": 10, "train.checkpoint_every": 100, "train.num_updates": 4}
    other = one | {"train.segment": 20, "train.checkpoint_every": 50}
    assert varied(one, other) == ["train.segment", "train.checkpoint_every"]
    assert varied(one, other | {"learner.lr": 1e-2, "train.num_updates": 8}) == ["learner.lr", "train.num_updates"]


def test_equal_scores_are_told_apart_by_what_else_was_evaluated(
    cloned: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads((cloned[0] / "eval.json").read_text()) | {"success_rate": 1.0, "latency_mean": None}
    paths = [tmp_path / name for name in ("grpo", "ppo", "sft")]
    for path, turns in zip(paths, (6.0, 8.25, 10.0), strict=True):
        shutil.copytree(cloned[0], path)
        (path / "eval.json").write_text(json.dumps(found | {"turns_mean": turns, "return_mean": -turns}))
    assert cli.main(["report", *map(str, paths)]) == 0
    best, score, sure, titles, *table, _ = capsys.readouterr().out.splitlines()
    assert best == f"best   {paths[0]}, {paths[1]} and {paths[2]}, with the same score"
    assert "success_rate 1 (1 seed)" in score and "Their scores are equal" in sure
    assert titles.split() == ["success_rate", "return_mean", "performance_mean", "turns_mean"]
    assert [line.split()[-1] for line in table] == ["6", "8.25", "10"] and len({len(line) for line in (titles, *table)}) == 1
    html = (paths[0] / "report.html").read_text()
    assert "<th>turns_mean</th>" in html and '<td data-value="8.25">8.25</td>' in html
    rows = analysis.analyse(study.read(paths))["leaderboard"]
    assert [row["evaluated"]["turns_mean"] for row in rows] == [6.0, 8.25, 10.0]
    (paths[1] / "eval.json").write_text(json.dumps(found | {"success_rate": 0.5}))
    assert cli.main(["report", *map(str, paths[:2])]) == 0
    assert capsys.readouterr().out.startswith(f"best   {paths[0]}\n")


def test_the_command_of_a_run_trains_it_once_more(runs: list[Path]) -> None:
    row = analysis.analyse(study.read(runs))["leaderboard"][0]
    (command,) = row["commands"]
    parsed = cli.parse(shlex.split(command)[1:])
    read = config.read(parsed.config, parsed.overrides)
    assert (read.seed, read.num_seeds) == (3, 2) and read.learner.fields["lr"] == row["settings"]["learner.lr"]


def test_report_of_runs(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert cli.main(["report", *map(str, runs), "--out", str(out), "--png", str(tmp_path / "png")]) == 0
    assert "2 seeds" in capsys.readouterr().out
    assert "slow run/config.toml" in out.read_text()
    assert {path.stem for path in (tmp_path / "png").iterdir()} == {"intervals", "curves", "parallel"}
    with Image.open(tmp_path / "png" / "curves.png") as picture:
        assert min(picture.size) > 300


def test_an_unfinished_run_is_a_failure(runs: list[Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    (copy / "eval.json").unlink()
    report = analysis.analyse(read := study.read([copy, runs[1], runs[1]]))
    assert [row["state"] for row in report["leaderboard"]] == ["done", "failed"]
    (failure,) = report["failures"]
    assert failure["trial"] == str(copy) and failure["seeds"] == [3, 4]
    assert failure["reason"] == "not finished: no eval.json"
    assert "There is no other trained as far" in page.answer(report)["why"]
    page.render(read, report)


SPEC = """
base = "tiny.toml"
[sweep]
seeds = 2
total_steps = 192
objective = "return_mean"
scheduler = "halving"
rungs = 2
eta = 2
[fixed]
env.params.step_cost = 0.5
[space]
learner.lr = { grid = [1e-4, 3e-3, 1e-2] }
network.hidden = { grid = [[8]] }
"""


def test_a_sweep_and_the_command_that_trains_its_best_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "tiny.toml").write_text(TINY)
    (tmp_path / "configs" / "sweep.toml").write_text(SPEC)
    command = [sys.executable, "-m", "jaxagent", "sweep", "configs/sweep.toml", "--out", "sweep"]
    subprocess.run(command, check=True, timeout=240, capture_output=True)  # it decides on devices before JAX starts
    assert cli.main(["report", "sweep", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["objective"], report["trials"], report["varied"]) == ("return_mean", 3, ["learner.lr"])
    assert [row["state"] for row in report["leaderboard"]] == ["done", "stopped", "stopped"]
    best = report["leaderboard"][0]
    assert len(report["curves"][best["trial"]]["env_steps"]) >= 2
    (command,) = best["commands"]
    assert cli.main([*shlex.split(command)[1:], "--out", "again"]) == 0
    again = json.loads((tmp_path / "again" / "eval.json").read_text())
    assert again["update"] == best["updates"] == 6
    assert [seed["return_mean"] for seed in again["seeds"]] == pytest.approx(list(best["seed_scores"].values()), abs=1e-4)
    page.render(read := study.read([Path("sweep")]), analysis.analyse(read))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("eval.json", "[", "eval.json: not readable as JSON"),
        ("eval.json", "3", "eval.json: expected a JSON object"),
        ("eval.json", '{"seeds": [3]}', "do not fit together"),
        ("metrics.jsonl", "{}\n", "do not fit together"),
        ("metrics.jsonl", "nonsense\n", "metrics.jsonl, line 1: expected a JSON object"),
        ("config.toml", "seed = ", "config.toml: not readable as TOML"),
    ],
)
def test_damaged_runs(
    name: str, content: str, message: str, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    (copy / name).write_text(content)
    assert cli.main(["report", str(copy)]) == 3
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and message in errors and len(errors.splitlines()) <= 5
