"""Reports of sweeps and runs: what they say, and what they make of strange and of damaged input."""

import html
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from ledgers import settings, success, write_sweep
from PIL import Image
from pyarrow import parquet

from jaxagent import cli, config, files, statistics
from jaxagent.report import analysis, page, study

pytestmark = pytest.mark.fast


def too_fast(setting: Any, seed: int) -> str | None:
    return "params.torso.kernel is not finite after update 37" if setting["learner.lr"] > 2e-2 else None


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return write_sweep(tmp_path_factory.mktemp("report") / "sweep", settings(48), num_seeds=5, fails=too_fast)


@pytest.fixture(scope="module")
def report(sweep: Path) -> dict[str, Any]:
    return analysis.analyse(study.read([sweep]))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return write_sweep(tmp_path_factory.mktemp("report") / "small", settings(9), points=4)


def analysed(path: Path) -> dict[str, Any]:
    return analysis.analyse(study.read([path]))


def rendered(path: Path) -> str:
    read = study.read([path])
    return page.render(read, analysis.analyse(read))


def one_lr(lr: float, **others: Any) -> dict[str, Any]:
    return {"learner.lr": lr, **others}


# what it says -----------------------------------------------------------------------------------------------------------------


def test_leaderboard(sweep: Path, report: dict[str, Any]) -> None:
    rows = report["leaderboard"]
    assert [row["place"] for row in rows] == list(range(1, 49))
    assert report["states"] == {"done": sum(row["state"] == "done" for row in rows), "failed": len(failed := rows[-8:])}
    assert all(row["state"] == "failed" and row["score"] is None and row["settings"]["learner.lr"] > 2e-2 for row in failed)
    scores = [row["score"] for row in rows[:-8]]
    assert scores == sorted(scores, reverse=True)
    ledger = parquet.read_table(sweep / "ledger.parquet").to_pylist()
    for row in rows[:3]:
        own = [one["objective"] for one in ledger if one["trial"] == row["trial"]]
        assert row["score"] == pytest.approx(np.mean(sorted(own)[1:-1]))  # 3 of 5 seeds
        assert row["interval"] == list(statistics.stratified_bootstrap([own]))
        assert list(row["seed_scores"].values()) == own
    assert 10**-3.5 < rows[0]["settings"]["learner.lr"] < 10**-2.5


def test_settings_that_do_not_vary_are_left_out(tmp_path: Path) -> None:
    trials = [one_lr(10.0**-i, **{"learner.gamma": 0.99, "train.num_envs": 8 * i}) for i in range(1, 5)]
    assert analysed(write_sweep(tmp_path / "s", trials))["varied"] == ["learner.lr", "train.num_envs"]


def test_less_may_be_better(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s", settings(12), mode="min", num_rungs=2)
    rows = analysed(path)["leaderboard"]
    scores = [row["score"] for row in rows if row["state"] == "done"]
    assert len(scores) == 6 and scores == sorted(scores)
    assert min(row["score"] for row in rows) == pytest.approx(scores[0], abs=0.1)


def test_who_was_stopped_early_comes_behind_at_the_rung_it_reached(tmp_path: Path) -> None:
    report = analysed(write_sweep(tmp_path / "s", settings(16), num_rungs=3))
    assert [(row["state"], row["rung"]) for row in report["leaderboard"]] == (
        [("done", 2)] * 4 + [("stopped", 1)] * 4 + [("stopped", 0)] * 8
    )
    for rung in range(3):
        scores = [row["score"] for row in report["leaderboard"] if row["rung"] == rung]
        assert scores == sorted(scores, reverse=True)
    assert set(report["verdict"]["within_reach"]) <= {row["trial"] for row in report["leaderboard"][1:4]}


def test_a_failed_seed_puts_a_setting_behind_whole_ones(tmp_path: Path) -> None:
    def fails(setting: Any, seed: int) -> str | None:
        return "not finite" if setting["learner.lr"] == 1e-3 and seed == 1 else None

    path = write_sweep(tmp_path / "s", [one_lr(1e-3), one_lr(5e-3), one_lr(2e-2)], fails=fails)
    report = analysed(path)
    assert [row["settings"]["learner.lr"] for row in report["leaderboard"]] == [5e-3, 2e-2, 1e-3]
    last = report["leaderboard"][-1]
    assert last["state"] == "done" and last["failed_seeds"] == 1 and last["score"] > report["leaderboard"][0]["score"]
    assert last["score"] == pytest.approx(np.mean([s for s in last["seed_scores"].values() if s is not None]))


@pytest.mark.parametrize(("spread", "sure"), [(0.001, True), (0.3, False)])
def test_it_says_whether_the_best_is_sure(tmp_path: Path, spread: float, sure: bool) -> None:
    def score(setting: Any, noise: float) -> float:
        return setting["learner.lr"] + spread * noise

    path = write_sweep(tmp_path / "s", [one_lr(i / 10) for i in range(1, 7)], score=score, num_seeds=5)
    verdict = (report := analysed(path))["verdict"]
    first, second = report["leaderboard"][:2]
    assert verdict["best"] == first["trial"] and verdict["second"] == second["trial"]
    assert verdict["sure"] is sure is (first["interval"][0] > second["interval"][1])
    assert (second["trial"] in verdict["within_reach"]) is not sure
    said = page.answer(report)
    assert said["sure"] == ("yes" if sure else "no")
    assert ("apart from the second's" if sure else "overlaps") in said["why"]


def test_importance_of_settings(report: dict[str, Any]) -> None:
    found = {row["setting"]: row for row in report["importance"]}
    assert found.keys() == set(report["varied"])
    assert report["importance"][0]["setting"] == "learner.lr"
    assert found["learner.lr"]["share"] > 0.7 and found["learner.lr"]["matters"]
    low, high = found["learner.lr"]["best_values"]
    assert low < 1e-3 < high
    assert max(found[name]["share"] for name in ("learner.gamma", "train.num_envs", "network.torso")) < 0.15
    assert analysis.decisive(report)[0] == "learner.lr"


def test_failures(report: dict[str, Any]) -> None:
    assert len(report["failures"]) == 8
    for failure in report["failures"]:
        assert failure["seeds"] == [0, 1, 2, 3, 4] and failure["settings"]["learner.lr"] > 2e-2
        assert failure["reason"] == "params.torso.kernel is not finite after update 37"


def test_curves_are_means_over_seeds(sweep: Path, report: dict[str, Any]) -> None:
    first = report["leaderboard"][0]["trial"]
    rows = [row for row in parquet.read_table(sweep / "curves" / "00000.parquet").to_pylist() if row["trial"] == first]
    curve = report["curves"][first]
    assert list(report["curves"]) == [row["trial"] for row in report["leaderboard"][:5]]
    for i, update in enumerate(sorted({row["update"] for row in rows})):
        values = [row["success_rate"] for row in rows if row["update"] == update]
        assert len(values) == 5 and curve["env_steps"][i] == 512 * update
        assert curve["success_rate"]["mean"][i] == pytest.approx(np.mean(values))
        assert (curve["success_rate"]["low"][i], curve["success_rate"]["high"][i]) == (min(values), max(values))


def test_curves_of_rungs_are_joined(tmp_path: Path) -> None:
    report = analysed(write_sweep(tmp_path / "s", settings(8), num_rungs=3, points=10))
    steps = report["curves"][report["leaderboard"][0]["trial"]]["env_steps"]
    assert len(steps) == 30 and (np.diff(steps) > 0).all() and steps[-1] == 400 * 512


# the command that reproduces a setting ----------------------------------------------------------------------------------------

CONFIG = """
seed = 9
[env]
name = "Collector-v0"
[learner]
name = "ppo"
[network]
torso = "mlp"
[train]
num_updates = 7
"""


def test_reproduce_commands_give_the_settings_of_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ppo collector.toml").write_text(CONFIG)
    trials = [
        {
            "learner.lr": lr,
            "learner.gamma": 1 / 3,
            "learner.normalize_reward": True,
            "env.params.step_cost": 0.1 + 0.2,
            "train.num_envs": 48,
            "network.hidden": "[32]",
            "network.activation": "tanh",
        }
        for lr in (1e-3, 0.1)
    ]
    row = analysed(write_sweep(tmp_path / "s", trials))["leaderboard"][0]
    (command,) = row["commands"]
    words = shlex.split(command)
    assert words[:3] == ["jaxagent", "train", "configs/ppo collector.toml"]
    parsed = cli.parse(words[1:])
    assert (parsed.seed, parsed.seeds) == (0, 3)
    read = config.read(parsed.config, parsed.overrides)
    assert read.learner.fields["lr"] == 1e-3 and read.learner.fields["gamma"] == 1 / 3
    assert read.env.params["step_cost"] == 0.1 + 0.2
    assert read.learner.fields["normalize_reward"] is True
    assert read.rollout.num_envs == 48 and read.network["hidden"] == (32,) and read.network["activation"] == "tanh"
    assert read.schedule.num_updates == row["updates"] == 100


def test_seeds_with_gaps_take_a_command_a_stretch(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s", settings(2), num_seeds=4)
    ledger = parquet.read_table(path / "ledger.parquet")
    seeds = pa.array([{0: 3, 1: 4, 2: 9, 3: 10}[seed] for seed in ledger["seed"].to_pylist()], pa.int64())
    parquet.write_table(ledger.set_column(1, "seed", seeds), path / "ledger.parquet")
    commands = analysed(path)["leaderboard"][0]["commands"]
    assert [command[command.index("--seed ") :] for command in commands] == ["--seed 3 --seeds 2", "--seed 9 --seeds 2"]


def test_words_are_quoted_for_a_shell() -> None:
    command = study.train_command("a b.toml", {"env.level": "x; rm -rf '$HOME' \"`id`\"", "network.hidden": [64, 64]}, 3)
    assert shlex.split(command)[4:] == ["x; rm -rf '$HOME' \"`id`\"", "--network.hidden", "[64,64]", "--seed", "3"]


def test_settings_inherited_during_training_are_said_to_be(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s", settings(4), num_rungs=2)
    ledger = parquet.read_table(path / "ledger.parquet")
    parents = ["0000000001" if rung == 1 else None for rung in ledger["rung"].to_pylist()]
    at = ledger.column_names.index("parent")
    parquet.write_table(ledger.set_column(at, "parent", pa.array(parents, pa.string())), path / "ledger.parquet")
    rows = (report := analysed(path))["leaderboard"]
    assert [row["inherited"] for row in rows] == [True, True, False, False]
    assert [len(row["commands"]) for row in rows] == [0, 0, 1, 1]
    assert "its settings changed during training" in rendered(path)
    why = "No command trains it once more: during training it took over another trial's state"
    assert html.unescape(rendered(path)).count(why) == 2 and f"again  {why}" in page.text(report)


# the page ---------------------------------------------------------------------------------------------------------------------


class Parsed(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_needs_nothing_from_elsewhere(small: Path) -> None:
    text = rendered(small)
    assert rendered(small) == text
    parsed = Parsed(text)
    assert not {"iframe", "object", "embed", "base"} & set(parsed.tags)
    for name, value in parsed.attributes:
        assert name not in ("src", "srcset", "action", "formaction")
        if name in ("href", "xlink:href"):
            assert value.startswith(("#", "data:"))
    assert not re.search(r"@import|url\((?!#)", text)
    assert set(re.findall(r"https?://[^\"' <)]+", text)) <= {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}
    assert parsed.tags.count("svg") == 4 and parsed.tags.count("script") == 1


HOSTILE = [
    "<script>alert(1)</script>",
    "</style></svg><img src=x onerror=alert(1)>",
    "$\\frac{1}{",
    "a'b\"c; rm -rf /",
    "日本語 🎉",
    "--seed",
    "\x01\n\x00",
    "x" * 500,
    "{{ 7 * 7 }}",
    "[1",
    "",
]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    trials = [one_lr(1e-3 * (i + 1), **{"env.level": text, "env.<b>": f"]]>{i}"}) for i, text in enumerate(HOSTILE)]
    path = write_sweep(
        tmp_path / "<script>alert('name')",
        trials,
        fails=lambda setting, seed: "<img src=x onerror=alert(2)>" if setting["learner.lr"] > 9e-3 else None,
    )
    text = rendered(path)
    parsed = Parsed(text)
    assert parsed.tags.count("script") == 1 and "img" not in parsed.tags
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    shown = "".join(parsed.texts)
    for given in ("<script>alert('name')", "<script>alert(1)</script>", "{{ 7 * 7 }}", "$\\frac{1}{", "日本語 🎉"):
        assert given in shown
    commands = [row["commands"][0] for row in analysed(path)["leaderboard"][:5]]
    for command in commands:
        assert command in shown and shlex.split(command)[6] in HOSTILE


def always_fails(setting: Any, seed: int) -> str:
    return "not finite"


@pytest.mark.parametrize(
    ("make", "sure", "said"),
    [
        (lambda path: write_sweep(path, settings(12), fails=always_fails), "unknown", "Every trial failed"),
        (lambda path: write_sweep(path, settings(1)), "unknown", "no other"),
        (lambda path: write_sweep(path, settings(5), num_seeds=1), "unknown", "One seed"),
        (lambda path: write_sweep(path, settings(5), score=lambda setting, noise: 0.5), "no", "the second's, too"),
        (lambda path: write_sweep(path, settings(5), score=lambda setting, noise: -1e30 * abs(noise)), "no", "overlaps"),
        (lambda path: write_sweep(path, settings(9), points=1), "no", "apart"),
        (lambda path: write_sweep(path, settings(9)), "no", "With fewer than 5 seeds intervals are too narrow to be sure."),
        (lambda path: write_sweep(path, [{}]), "unknown", "no other"),
    ],
    ids=["all failed", "one trial", "one seed", "constant", "huge", "short", "few seeds", "no settings"],
)
def test_unusual_sweeps(tmp_path: Path, make: Callable[[Path], Path], sure: str, said: str) -> None:
    path = make(tmp_path / "s")
    read = study.read([path])
    report = analysis.analyse(read)
    text, answer = page.render(read, report), page.answer(report)
    assert answer["sure"] == sure and said in answer["why"]
    assert html.escape(answer["best"]) in text
    json.dumps(files.jsonable(report), allow_nan=False)


@pytest.mark.parametrize(
    ("single", "said"),
    [
        ([0], "One seed has no interval, and the best has no other:"),
        ([1], "One seed has no interval, and the second has no other:"),
        ([0, 1], "One seed has no interval: the order"),
        ([2], "Its interval"),
    ],
)
def test_whose_single_seed_keeps_the_order_from_being_told(tmp_path: Path, single: list[int], said: str) -> None:
    path = write_sweep(tmp_path / "s", [one_lr(lr) for lr in (1e-3, 1e-4, 1e-5)], num_seeds=2)
    table = parquet.read_table(path / "ledger.parquet")
    lone = [f"{place:010x}" for place in single]
    kept = [row["seed"] == 0 or row["trial"] not in lone for row in table.to_pylist()]
    parquet.write_table(table.filter(pa.array(kept)), path / "ledger.parquet")
    assert said in page.answer(analysed(path))["why"]


def test_a_sweep_that_has_finished_no_trial_yet(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s", settings(8), num_rungs=3)
    ledger = parquet.read_table(path / "ledger.parquet")
    parquet.write_table(ledger.filter(pa.compute.equal(ledger["rung"], 0)), path / "ledger.parquet")
    report = analysed(path)
    assert report["states"] == {"stopped": 8}
    assert "No trial was trained to the end: this is the order at rung 0, 100 updates." in page.answer(report)["why"]
    rendered(path)


def test_a_sweep_in_which_no_episode_has_ended_yet(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s", settings(4), num_rungs=3)
    table = parquet.read_table(path / "ledger.parquet")
    nothing = pa.nulls(table.num_rows, pa.float64())
    table = table.set_column(table.column_names.index("objective"), "objective", nothing)
    parquet.write_table(table.filter(pa.compute.equal(table["rung"], 0)), path / "ledger.parquet")
    report = analysed(path)
    assert report["states"] == {"stopped": 4} and not report["failures"]
    assert page.answer(report)["why"] == "No trial has come to a score yet."
    rendered(path)


def test_an_unknown_score_counts_less_than_any_at_its_rung(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s", settings(4), num_rungs=2, score=lambda setting, noise: math.nan, mode="min")
    table = parquet.read_table(path / "ledger.parquet")
    scores = [0.5 if trial == "0000000002" else None for trial in table["trial"].to_pylist()]
    table = table.set_column(table.column_names.index("objective"), "objective", pa.array(scores, pa.float64()))
    parquet.write_table(table.filter(pa.compute.equal(table["rung"], 0)), path / "ledger.parquet")
    report = analysed(path)
    assert report["leaderboard"][0]["trial"] == "0000000002" == report["verdict"]["best"]
    assert [row["known_seeds"] for row in report["leaderboard"]] == [3, 0, 0, 0]
    rendered(path)


def test_hundreds_of_lanes(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s", settings(512), num_seeds=2, fails=too_fast, points=8)
    text = rendered(path)
    assert text.count("<tr class=") == 512
    assert len(text) < 3_000_000
    assert "Show all 512" in text


def test_settings_that_only_some_trials_have(tmp_path: Path) -> None:
    trials = [one_lr(1e-3 * (i + 1), **({"learner.clip_eps": 0.1 * i} if i % 2 else {})) for i in range(8)]
    path = write_sweep(tmp_path / "s", trials)
    rows = analysed(path)["leaderboard"]
    assert sum(row["settings"]["learner.clip_eps"] is None for row in rows) == 4
    assert not any("--learner.clip_eps" in row["commands"][0] for row in rows if row["settings"]["learner.clip_eps"] is None)
    rendered(path)


# the command line -------------------------------------------------------------------------------------------------------------


def test_report_writes_a_page(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(small, tmp_path / "copy")
    assert cli.main(["report", str(copy)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("best   ") and shown.endswith(f"{copy / 'report.html'}\n")
    assert (copy / "report.html").read_text().startswith("<!doctype html>")
    assert cli.main(["report", str(copy), "--out", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").read_text() == (copy / "report.html").read_text()


def test_report_as_json(sweep: Path, report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(sweep), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(files.jsonable(report)))
    assert not (sweep / "report.html").exists()


def grey(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("L"))


def test_report_saves_figures(small: Path, tmp_path: Path) -> None:
    assert cli.main(["report", str(small), "--png", str(tmp_path / "a" / "png"), "--json"]) == 0
    pictures = {path.stem: grey(path) for path in (tmp_path / "a" / "png").iterdir()}
    assert pictures.keys() == {"intervals", "curves", "parallel", "importance"}
    for picture in pictures.values():
        assert min(picture.shape) > 200 and 0.005 < (picture < 200).mean() < 0.6  # something is drawn, on white


def damaged(name: str, content: bytes | None) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        if content is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(content)

    return damage


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        parquet.write_table(change(parquet.read_table(path / "ledger.parquet")), path / "ledger.parquet")

    return damage


def retyped(table: pa.Table, name: str, kind: pa.DataType | None) -> pa.Table:
    """With other values in a column: text, or none at all."""
    values = pa.nulls(table.num_rows) if kind is None else pa.array(["text"] * table.num_rows, kind)
    return table.set_column(table.column_names.index(name), name, values)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged("ledger.parquet", None), "no ledger.parquet: no trial of the sweep has ended yet"),
        (damaged("ledger.parquet", b""), "cannot read"),
        (damaged("ledger.parquet", b"PAR1 nonsense PAR1"), "cannot read"),
        (rewritten(lambda table: table.slice(0, 0)), "ledger.parquet: holds no row"),
        (rewritten(lambda table: table.drop_columns(["objective"])), "missing objective"),
        (rewritten(lambda table: retyped(table, "objective", pa.string())), "objective: expected double, found string"),
        (rewritten(lambda table: retyped(table, "seed", None)), "seed: expected a value in every row, found 9 without one"),
        (rewritten(lambda table: table.replace_schema_metadata({})), "missing its list of settings"),
        (rewritten(lambda table: table.replace_schema_metadata({"settings": "3"})), "expected a JSON list under `settings`"),
        (rewritten(lambda table: retyped(table, "status", pa.string())), "expected done, rung, failed, found 'text'"),
        (rewritten(lambda table: table.replace_schema_metadata({"settings": '["nothing"]'})), "found 'nothing'"),
        (damaged("sweep.toml", b"[sweep"), "sweep.toml: not readable as TOML"),
        (damaged("sweep.toml", b"[sweep]\nobjective = 3"), "sweep.toml: expected a table sweep with an objective"),
        (damaged("env.json", b"{"), "env.json: not readable as JSON"),
    ],
)
def test_damaged_sweeps(
    tmp_path: Path, damage: Callable[[Path], None], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_sweep(tmp_path / "s", settings(3), points=3)
    damage(path)
    assert cli.main(["report", str(path)]) == 3
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and message in errors and len(errors.splitlines()) <= 5
    assert not (path / "report.html").exists()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (damaged("curves/00000.parquet", b"short"), "cannot read {}: damaged or cut short, or no Parquet file"),
        (damaged("curves/00000.parquet", None), "cannot read {}: No such file or directory"),
        (lambda path: shutil.copy(path / "ledger.parquet", path / "curves/00000.parquet"), "{}: not the curves of a sweep"),
    ],
    ids=["damaged", "missing", "foreign"],
)
def test_curves_that_cannot_be_read_cost_nothing_else(
    tmp_path: Path, damage: Callable[[Path], None], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_sweep(tmp_path / "s", settings(8), num_rungs=2, points=3)
    whole = analysed(path)
    damage(path)
    warning = f"the curves of 1 of 2 chunks are left out: {why.format(path / 'curves/00000.parquet')}"
    assert cli.main(["report", str(path)]) == 0
    assert capsys.readouterr().err == f"warning: {warning}\n"
    assert f"Warning: {warning}" in html.unescape((path / "report.html").read_text())
    found = analysed(path)
    assert found["leaderboard"] == whole["leaderboard"] and found["warnings"] == [warning] and not whole["warnings"]
    assert len(found["curves"]) == 4  # of those that came to the second rung
    shutil.rmtree(path / "curves")
    assert cli.main(["report", str(path)]) == 0
    assert "the curves of 2 of 2 chunks are left out, among them cannot read" in capsys.readouterr().err


def test_a_truncated_ledger_is_an_error_wherever_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_sweep(tmp_path / "s", settings(3), points=3)
    whole = (path / "ledger.parquet").read_bytes()
    for fraction in (0.01, 0.5, 0.99):
        (path / "ledger.parquet").write_bytes(whole[: int(fraction * len(whole))])
        assert cli.main(["report", str(path), "--json"]) == 3
        first, second = capsys.readouterr().err.splitlines()
        assert first == f"error: cannot read {path / 'ledger.parquet'}: damaged or cut short, or no Parquet file"
        assert second == "move it away and run the sweep again: everything is trained anew, to the same numbers"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: expected the directory of a sweep (with sweep.toml) or of a run (with config.toml)"),
        ([], "expected the directory of a sweep, or those of runs"),
        (["SWEEP", "OTHER"], "expected one sweep, or runs; "),
        (["SWEEP", "--out", "nowhere/page.html"], "--out: nowhere is no directory"),
        (["SWEEP", "--png", "SWEEP/env.json"], "--png: expected a directory, new or there, but "),
        (["SWEEP", "--directories", "x"], "unknown option --directories; known: --help, --out, --json, --png, --csv"),
        (["SWEEP", "--jsn"], "unknown option --jsn; did you mean --json?"),
    ],
)
def test_wrong_usage(
    arguments: list[str], message: str, sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text("")
    named = {"SWEEP": str(sweep), "OTHER": str(tmp_path)}
    assert cli.main(["report", *(named.get(word, word.replace("SWEEP", str(sweep))) for word in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_page_that_cannot_be_written(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.html").mkdir()
    assert cli.main(["report", str(sweep), "--out", str(tmp_path / "page.html")]) == 5
    assert "cannot write" in capsys.readouterr().err


def test_formula_of_the_ledgers() -> None:
    """The tests above lean on it: a best rate in the middle, and less with more entropy bonus."""
    assert success(one_lr(1e-3), 0) > max(success(one_lr(1e-4), 0), success(one_lr(1e-2), 0))
    assert math.isclose(success(one_lr(1e-3, **{"learner.entropy_coef": 0.1}), 0), 0.87)
