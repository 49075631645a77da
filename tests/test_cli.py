"""The command line from end to end: commands, exit codes, messages."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny as tiny_config

import jaxagent as package
from jaxagent import cli, commands, config, doctor, schema
from jaxagent.commands import lists
from jaxagent.envs import registry

TINY = tiny_config.toml(seed=1, checkpoint_every=2)


def jaxagent(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jaxagent", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=240)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def run(tiny: Path) -> Path:
    """A finished run. Read only: tests that change it copy it."""
    path = tiny.parent / "run"
    assert cli.main(["train", str(tiny), "--out", str(path), "--learner.lr", "1e-3"]) == 0
    return path


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# help and errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.fast
def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: jaxagent") and all(f"• {name} " in shown for name in commands.COMMANDS)


WORDS = [(name, command) for name, command in commands.COMMANDS.items() if name != "bench"]
WORDS += [(f"bench {name}", command) for name, command in commands.BENCHES.items()]


@pytest.mark.fast
@pytest.mark.parametrize(("words", "command"), WORDS, ids=[words for words, _ in WORDS])
def test_help_describes_every_option(words: str, command: type, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words.split(), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    texts = schema.described(command, "Attributes")
    for field in dataclasses.fields(command):
        if field.name != "overrides":
            assert texts[field.name] in shown
            flag = f"--{field.name.rstrip('_').replace('_', '-')} "
            assert field.default is dataclasses.MISSING or flag in shown


@pytest.mark.fast
def test_help_behind_a_config_lists_its_settings(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", str(tiny), "--help"]) == 0
    shown = capsys.readouterr().out
    for setting in (
        "--learner.lr ",
        "--learner.num_epochs",
        "--network.hidden",
        "--train.num_envs",
        "--env.obs",
        "--env.params.max_steps",
    ):
        assert setting in shown
    assert "lists as [64,64] or 64,64" in shown
    assert re.search(r"--network.hidden +\[8\] +a list, each an integer", shown)


@pytest.mark.fast
def test_help_on_a_mixture_is_for_users(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", str(tiny), "--help"]) == 0
    assert "--network.hidden 64,64" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["train", str(tiny), "--env.name", "BabyAI-Mix", "--help"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"--env.levels +all 96 BabyAI levels +a list, each text; ids of BabyAI levels", shown)
    assert re.search(r"--env.fixed +false +true or false; whether the original's defects are mended", shown)
    assert "ENVS" not in shown and "`make`" not in shown


@pytest.mark.fast
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing subcommand"),
        (["trian"], "unknown command 'trian'; did you mean train?"),
        (["bench", "envs"], "unknown command 'envs'; did you mean env?"),
        (["bench"], "Missing subcommand"),
        (["train"], "Missing"),
        (["train", "CONFIG", "--sead", "3"], "unknown option --sead; did you mean --seed?"),
        (["train", "CONFIG", "--seed", "x"], "--seed"),
        (["train", "CONFIG", "--learner.lr"], "--learner.lr: expected a value behind it"),
        (["train", "CONFIG", "--learner.lrr", "1"], "learner.lrr: unknown key; did you mean learner.lr?"),
        (["train", "CONFIG", "--learner.lr=fast"], "learner.lr: expected a finite number, got 'fast'"),
        (["train", "CONFIG", "--seeds", "0"], "num_seeds: expected at least 1, got 0"),
        (["train", "CONFIG", "--init-from", "nowhere"], "nowhere: expected a directory with config.toml"),
        (["train", "none.toml"], "none.toml: expected a TOML file, found nothing"),
        (["eval", "nowhere"], "nowhere: expected a directory with config.toml"),
        (["eval", "nowhere", "--learner.lr", "3"], "unknown option --learner.lr"),
        (["eval", "nowhere", "--episodes", "0"], "--episodes: expected at least 1, got 0"),
        (["eval", "nowhere", "--episodes", "1000001"], "--episodes: expected at most 1000000, got 1000001"),
        (["resume", "nowhere"], "nowhere: expected a directory with config.toml"),
        (["eval", "nowhere", "--env.turn", "pair"], "--env.turn: a run keeps the environment that it was trained in"),
        (["render", "Colector-v0"], "did you mean Collector-v0"),
        (["render", "Collector-v0", "--learner.lr", "3"], "unknown option --learner.lr"),
        (["render", "Collector-v0", "--env.name", "CodeFix-v0"], "unknown option --env.name"),
        (
            ["render", "ToolSelect-v0", "--env.turm", "pair"],
            "ToolSelect-v0 with --env.turm: env.turm: unknown key; did you mean env.turn?",
        ),
        (["render", "ToolSelect-v0", "--env.turn", "both"], "env.turn: expected one of single, pair, got 'both'"),
        (["render", "ToolSelect-v0", "--env.window", "2"], "env.window: expected at least"),
        (
            ["render", "ToolSelect-v0", "--env.params.cash", "true"],
            "env.params.cash: unknown key; did you mean env.params.cache?",
        ),
        (["render", "ToolSelect-v0", "--env.params.max_steps", "99"], "env.params.max_steps: expected at most 24"),
        (["render", "Collector-v0", "--out", "x.mp4"], "--out: expected a name that ends in .png or .gif"),
        (["bench", "env", "Collector-v0", "--num-envs", "0"], "num_envs: expected at least 1, got 0"),
        (["bench", "env", "Collector-v0", "--num-env", "3"], "unknown option --num-env; did you mean --num-envs?"),
        (["bench", "train", "none.toml"], "found nothing"),
        (["doctor", "--fix"], "unknown option --fix"),
        (["train", "CONFIG", "--config", "x"], "unknown option --config; known: --help, --out"),
        (["train", "CONFIG", "--out", "CONFIG"], "--out: expected a directory, new or there, but "),
        (["train", "CONFIG", "--out", "CONFIG/run"], "tiny.toml is a file"),
        (["train", "CONFIG", "--devices", "3"], "train.devices: expected 1, 2, 4, 8 or all, got 3"),
        (["sweep", "CONFIG", "--out", "CONFIG"], "--out: expected a directory, new or there, but "),
        (["sweep", "CONFIG", "--samples", "4"], "unknown option --samples; the spec sets samples in its table sweep"),
        (["sweep", "CONFIG", "--spec", "x"], "unknown option --spec; known: --help, --out"),
        (["bench", "scale", "CONFIG", "--out", "CONFIG"], "--out: expected a directory, new or there, but "),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    message: str,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([argument.replace("CONFIG", str(tiny)) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ") and len(shown.err.splitlines()) <= 5
    assert message in shown.err
    assert not list(tmp_path.iterdir())


@pytest.mark.fast
def test_a_wrong_config_is_refused_before_anything_happens(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text(TINY.replace("num_envs = 4", "num_envs = -4"))
    done = jaxagent("train", "wrong.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: wrong.toml: train.num_envs: expected at least 1, got -4\n"
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.toml"]


@pytest.mark.fast
def test_tracebacks_are_shown_on_demand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(self: lists.Envs) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(lists.Envs, "run", broken)
    assert cli.main(["envs"]) == 1
    assert capsys.readouterr().err == "internal error: RuntimeError: first line\nwith --debug the traceback is shown\n"
    with pytest.raises(RuntimeError):
        cli.main(["envs", "--debug"])


@pytest.mark.fast
def test_out_of_memory_has_its_own_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def too_large(self: lists.Envs) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmany\nmore\nlines\nof\nit")

    monkeypatch.setattr(lists.Envs, "run", too_large)
    assert cli.main(["envs"]) == 5
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.fast
def test_output_may_be_cut_off() -> None:
    command = f"{sys.executable} -m jaxagent envs --json | head -c 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[", "")


# lists ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.fast
def test_envs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["envs", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed.keys() == {*registry.names(), *registry.GYMNAX_IDS}
    assert listed["Collector-v0"]["options"]["max_steps"] == 20
    assert "goal_reward" in listed["Collector-v0"]["params"]
    assert cli.main(["envs"]) == 0
    shown = capsys.readouterr().out
    assert "Collector-v0" in shown
    assert "levels=all 96 BabyAI levels, weights=None, obs=packed" in shown
    assert max(map(len, shown.splitlines())) < 160


@pytest.mark.fast
def test_learners(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["learners", "--json"]) == 0
    (ppo,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "ppo"]
    fields = {field["name"]: field for field in ppo["fields"]}
    assert fields["learner.lr"]["traced"] and not fields["learner.num_epochs"]["traced"]
    assert all(field["doc"] for field in fields.values())
    assert cli.main(["learners"]) == 0
    assert "learner.lr" in capsys.readouterr().out


@pytest.mark.fast
def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["jax"] and found["devices"]["platform"] == "cpu" and found["problems"] == []
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "no problems found" in shown
    for name, version in found["optional"].items():
        assert f"optional  {name}{f' {version}' if version else ': not installed'}" in shown
    assert {"ray", "optuna", "submitit", "tensorboardX", "wandb", "gymnasium", "minigrid"} <= found["optional"].keys()


@pytest.mark.fast
def test_doctor_knows_bad_combinations(tmp_path: Path) -> None:
    good = {"packages": {"jax": "0.10.2", "jaxlib": "0.10.2", "gymnax": "1.0.1"}, "variables": {}}
    assert doctor.problems(good, str(tmp_path)) == []
    bad = {
        "packages": {"jax": "0.12.0.1", "jaxlib": "0.11.2", "gymnax": "0.0.9"},
        "variables": {"JAX_ENABLE_X64": "1", "JAX_DISABLE_JIT": "true"},
    }
    (tmp_path / "file").write_text("")
    found = doctor.problems(bad, str(tmp_path / "file" / "cache"))
    starts = (
        "jax 0.12.0.1: expected 0.10.2",
        "jax 0.12.0.1 with jaxlib",
        "gymnax 0.0.9",
        "JAX_ENABLE_X64",
        "JAX_DISABLE_JIT",
        "JAX_COMP",
    )
    assert len(found) == len(starts) and all(map(str.startswith, found, starts))


# runs -------------------------------------------------------------------------------------------------------------------------


def test_train(run: Path) -> None:
    files = {"config.toml", "env.json", "metrics.jsonl", "checkpoints", "eval.json", "curves.png", "episode.gif"}
    assert files <= set(os.listdir(run))
    assert [row["update"] for row in rows(run)] == [2, 4]
    assert rows(run)[-1]["env_steps"] == 4 * 4 * 8
    assert "lr = 0.001" in (run / "config.toml").read_text()
    assert json.loads((run / "eval.json").read_text())["episodes"] == 4


def test_a_directory_takes_one_run(run: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", str(tiny), "--out", str(run)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_eval(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", str(run), "--episodes", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["episodes"] == 6
    for name in ("success_rate", "return_mean", "length_mean"):
        low, high = found[f"{name}_ci95"]
        assert low <= found[name] <= high
    assert cli.main(["eval", str(run), "--episodes", "6"]) == 0
    assert "return_mean" in capsys.readouterr().out
    assert cli.main(["eval", str(run), "--seed-index", "1"]) == 2
    capsys.readouterr()
    assert cli.main(["eval", str(run), "--episodes", "6", "--env.params.max_steps", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["length_mean"] == 3


def test_resume_to_more_updates(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    assert cli.main(["resume", str(copy), "--updates", "6"]) == 0
    assert [row["update"] for row in rows(copy)] == [2, 4, 6]
    assert rows(copy)[:2] == rows(run)
    assert "num_updates = 6" in (copy / "config.toml").read_text()


def test_seeds_side_by_side(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "seeds"
    assert cli.main(["train", str(tiny), "--out", str(path), "--seeds", "2", "--train.num_updates", "2"]) == 0
    assert len(rows(path)[-1]["return_mean"]) == 2
    capsys.readouterr()
    assert cli.main(["eval", str(path), "--episodes", "4", "--seed-index", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 4


def test_warm_start(run: Path, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "warm"
    assert cli.main(["train", str(tiny), "--out", str(path), "--init-from", str(run), "--train.num_updates", "1"]) == 0
    tools = {"env": {"name": "ToolSelect-v0"}, "train": {"num_envs": 4, "num_steps": 24, "num_updates": 1, "eval_episodes": 2}}
    begins = None
    for learner, network in (
        ({"name": "bc", "demonstrator": "sft", "held_out": 0.25, "num_minibatches": 1}, {"shared": False}),
        ({"name": "grpo", "group_size": 2, "num_minibatches": 1, "kl_coef": 0.1, "lag": 1}, {"shared": False, "critic": False}),
        ({"name": "rejection", "group_size": 2}, {"shared": False, "critic": False}),
    ):  # each goes on from the one before
        network = {"torso": "bag", "hidden": [4], **network}
        (tmp_path / "tools.toml").write_text(config.to_toml(tools | {"learner": learner, "network": network}))
        out = tmp_path / learner["name"]
        begin = [] if begins is None else ["--init-from", str(begins)]
        assert cli.main(["train", str(tmp_path / "tools.toml"), "--out", str(out), *begin]) == 0
        begins = out
    other = ["train", str(tiny), "--out", str(tmp_path / "other"), "--init-from", str(run), "--network.hidden", "[4]"]
    assert cli.main(other) == 2
    assert not (tmp_path / "other").exists()


def test_damaged_checkpoints_have_their_own_code(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for path in (copy / "checkpoints").glob("*/*"):
        path.write_bytes(b"")
    assert cli.main(["eval", str(copy)]) == 4
    assert len(capsys.readouterr().err.splitlines()) <= 5


def test_signals_end_a_run_with_a_checkpoint(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    command = [sys.executable, "-m", "jaxagent", "train", str(tiny), "--out", str(path), "--train.num_updates", "100000000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 200
        while not (path / "metrics.jsonl").exists() or not (path / "metrics.jsonl").read_text():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    assert f"jaxagent resume {path}" in errors and "Traceback" not in errors
    assert list((path / "checkpoints").iterdir())


GROUPS = """
[env]
name = "ToolSelect-v0"
[learner]
name = "grpo"
group_size = 2
num_minibatches = 1
[network]
torso = "bag"
hidden = [8]
critic = false
[train]
num_envs = 4
num_steps = 6
num_updates = 1
eval_episodes = 2
"""


def test_episodes_that_are_cut_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "groups.toml"
    path.write_text(GROUPS)
    assert cli.main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    errors = capsys.readouterr().err
    assert errors.startswith("warning: train.num_steps: episodes may take 24 steps, and are cut after 6\n")
    assert re.search(r"unfinished \d+%", errors)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("overrides", "longest"),
    [
        ({}, 24),
        ({"env.turn": "pair"}, 48),
        ({"env.turn": "pair", "env.params.max_steps": "5"}, 10),
        ({"env.params.max_steps": "6"}, None),
        ({"train.num_steps": "24"}, None),
    ],
)
def test_which_rollouts_cut_episodes(overrides: dict[str, str], longest: int | None, tmp_path: Path) -> None:
    (path := tmp_path / "groups.toml").write_text(GROUPS)
    trainer, _ = config.build(config.read(path, overrides))
    cut = [f"num_steps: episodes may take {longest} steps, and are cut after 6"]
    assert trainer.warnings() == ([] if longest is None else cut)


# pictures and figures ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_before_anything_happens(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (run / "config.toml").read_bytes()
    wrong = {
        ("resume", str(run), "--updates", "1"): "--updates: expected at least the",
        ("eval", str(run), "--seed", "-1"): "--seed: expected 0 to",
        ("eval", str(run), "--in", "farama"): "--in farama: env: expected a level of MiniGrid or BabyAI that Farama registers",
        (
            "eval",
            str(run),
            "--env.params.max_step",
            "3",
        ): "env.params.max_step: unknown key; did you mean env.params.max_steps?",
        ("eval", str(run), "--env.params.max_steps", "99"): "env.params.max_steps: expected at most 20",
        ("render", str(run), "--env.obs", "full"): "--env.obs: a run keeps the environment that it was trained in",
        ("render", "Collector-v0", "--seed", "99999999999999999999"): "--seed: expected 0 to",
        ("render", "Collector-v0", "--out", str(tmp_path / "nowhere" / "a.png")): "is no directory",
        ("bench", "env", "CartPole-v1", "--obs", "symbolic"): "obs: CartPole-v1 has no such option",
        ("train", str(run / "config.toml"), "--learner.lr", "--out", "x"): "expected a value behind it",
    }
    for arguments, message in wrong.items():
        assert cli.main(arguments) == 2
        assert message in capsys.readouterr().err
    assert (run / "config.toml").read_bytes() == config


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxagent {package.__version__}\n"


def test_render(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["render", "Collector-v0"]) == 0
    (header, *grid) = capsys.readouterr().out.splitlines()
    assert header.startswith("step 0  return 0.00") and len(grid) == 4
    assert cli.main(["render", "CodeFix-v0"]) == 0
    assert capsys.readouterr().out.startswith("step 0  return 0.00  task: ")
    options = ["--env.turn", "pair", "--env.mask", "true", "--env.window", "64", "--env.params.max_steps", "3"]
    assert cli.main(["render", "ToolSelect-v0", *options]) == 0
    assert capsys.readouterr().out.startswith("step 0  return 0.00  task: ")
    assert cli.main(["render", str(run), "--env.params.max_steps", "2"]) == 0
    assert (shown := capsys.readouterr().out).count("step ") == 3 and "step 2" in shown
    assert cli.main(["render", str(run)]) == 0
    assert "step 7" in capsys.readouterr().out  # no episode is shorter
    for what, name, magic in (
        ("Collector-v0", "a.png", b"\x89PNG"),
        ("CodeFix-v0", "d.gif", b"GIF8"),
        (str(run), "b.gif", b"GIF8"),
        (str(run), "c.png", b"\x89PNG"),
    ):
        assert cli.main(["render", what, "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(magic)


def test_bench(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-envs", "4", "--num-steps", "5", "--repeats", "1"]
    assert cli.main(["bench", "env", "Collector-v0", *sizes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["case"], found["num_envs"], found["num_steps"], len(found["seconds"])) == ("env/Collector-v0", 4, 5, 1)
    assert cli.main(["bench", "policy", str(tiny), "--repeats", "1", "--train.num_envs", "2"]) == 0
    assert "B=2" in capsys.readouterr().out
    assert cli.main(["bench", "train", str(tiny), "--repeats", "1", "--num-updates", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["case"] == "train/tiny"
