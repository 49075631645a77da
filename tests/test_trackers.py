"""What trackers are told, and that none of them can stop a run."""

import logging
import os
import resource
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tiny

from jaxagent import cli, metrics, trackers
from jaxagent.rundir import RunDir

CONFIG = tiny.toml(num_updates=8, checkpoint_every=4, eval_every=4)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A directory that a tracker can be pointed at."""
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.config.write_text(CONFIG)
    return run


def row(update: int) -> dict:
    return {"env_steps": np.int64(32 * update), "value_loss": np.float64(update / 2)}


def report(run: RunDir, updates: range, *names: str) -> None:
    with trackers.tracking(names, run) as track:
        for update in updates:
            track(update, row(update))


def events(run: RunDir) -> list:
    """What TensorBoard shows: all events but those that a later start disowned."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    shown: list = []
    for path in sorted((run.tracking / "tensorboard").iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):  # TFRecord: length, its checksum, content, its checksum
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            if event.session_log.status == SessionLog.START:
                shown = [earlier for earlier in shown if earlier.step < event.step]
            shown.append(event)
            at += 12 + length + 4
    return shown


def series(run: RunDir, name: str) -> list[tuple[int, float]]:
    return [(event.step, value.simple_value) for event in events(run) for value in event.summary.value if value.tag == name]


@pytest.mark.fast
def test_scalars_of_a_row() -> None:
    one = {"env_steps": np.int64(7), "value_loss": np.float64(0.5), "return_mean": np.float64(np.nan), "episodes": np.int64(0)}
    assert trackers.scalars(one) == {"value_loss": 0.5, "episodes": 0}
    evaluation = {"return_mean": 2.0, "return_mean_ci95": (1.0, 3.0), "success_rate": None}
    assert trackers.scalars({"eval": evaluation}) == {"eval/return_mean": 2.0}
    seeds = {
        "env_steps": np.array([7, 7]),
        "return_mean": np.array([np.nan, 3.0]),
        "value_loss": np.array([1.0, 2.0]),
        "eval": {**evaluation, "seeds": [{"return_mean": 1.0}, {"return_mean": 3.0}]},
    }
    assert trackers.scalars(seeds) == {
        "return_mean": 3.0,
        "seed_1/return_mean": 3.0,
        "value_loss": 1.5,
        "seed_0/value_loss": 1.0,
        "seed_1/value_loss": 2.0,
        "eval/return_mean": 2.0,
        "seed_0/eval/return_mean": 1.0,
        "seed_1/eval/return_mean": 3.0,
    }


@pytest.mark.fast
def test_a_tracker_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(trackers._PACKAGES, "wandb", "no_such_package")
    config, out = tmp_path / "tiny.toml", tmp_path / "run"
    config.write_text(CONFIG)
    assert cli.main(["train", str(config), "--out", str(out), "--track", "wandb"]) == 2
    assert 'pip install "jaxagent[trackers]"' in capsys.readouterr().err
    assert not out.exists()
    assert cli.main(["resume", str(out), "--track", "tensorbord"]) == 2
    assert "tensorboard" in capsys.readouterr().err


def test_a_run_and_its_resume_in_tensorboard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("tensorboardX", reason="needs jaxagent[trackers]")
    config, run = tmp_path / "tiny.toml", RunDir(tmp_path / "run")
    config.write_text(CONFIG)
    tracked = ("--track", "tensorboard")
    assert cli.main(["train", str(config), "--out", str(run.path), "--seeds", "2", *tracked]) == 0
    assert cli.main(["resume", str(run.path), "--updates", "12", *tracked]) == 0
    rows = metrics.read(run.metrics)
    assert [row["update"] for row in rows] == [2, 4, 6, 8, 10, 12]
    for name in ("value_loss", "entropy"):
        expected = [(row["env_steps"][0], np.float32(np.mean(row[name]))) for row in rows]
        assert series(run, name) == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
        assert series(run, f"seed_1/{name}") == [(row["env_steps"][1], np.float32(row[name][1])) for row in rows]
    evaluations = [(row["env_steps"][0], np.float32(row["eval"]["return_mean"])) for row in rows if "eval" in row]
    assert series(run, "eval/return_mean") == evaluations and len(evaluations) == 3
    texts = [value.tensor.string_val[0] for event in events(run) for value in event.summary.value if value.HasField("tensor")]
    assert all(b'"name": "Collector-v0"' in text for text in texts) and texts
    assert not caplog.records


def test_tensorboard_forgets_what_is_done_again(run: RunDir) -> None:
    pytest.importorskip("tensorboardX", reason="needs jaxagent[trackers]")
    report(run, range(1, 6), "tensorboard")
    report(run, range(4, 8), "tensorboard")  # killed after 5, gone on from a checkpoint at 3
    assert series(run, "value_loss") == [(32 * update, update / 2) for update in range(1, 8)]


def in_wandb(run: RunDir, *updates: range, **variables: str) -> str:
    """Reports from a process for each range, which has nothing but a home that it must not write to. Returns the warnings."""
    pytest.importorskip("wandb", reason="needs jaxagent[trackers]")
    home = run.path.parent / "home"
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment = kept | {"HOME": str(home), "TMPDIR": str(home), **variables}
    code = (
        "import sys; from pathlib import Path; from jaxagent import trackers; from jaxagent.rundir import RunDir\n"
        "from test_trackers import report\n"
        "trackers._CLOSE_S = 60.0\n"
        "report(RunDir(Path(sys.argv[1])), range(int(sys.argv[2]), int(sys.argv[3])), 'wandb')"
    )
    said = ""
    for some in updates:
        command = [sys.executable, "-c", code, str(run.path), str(some.start), str(some.stop)]
        done = subprocess.run(
            command, env=environment, cwd=Path(__file__).parent, stderr=subprocess.PIPE, text=True, check=True
        )
        said += done.stderr
    assert list(home.rglob("*wandb*")) == []
    return said


def test_a_run_and_its_resume_in_wandb(run: RunDir) -> None:
    said = in_wandb(run, range(1, 6), range(4, 8), WANDB_MODE="offline")
    assert "goes on without" not in said
    files = sorted((run.tracking / "wandb").glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({path.name for path in files}) == 1  # one id
    assert [step for path in files for step in logged_steps(path)] == list(range(1, 8))


def logged_steps(path: Path) -> list[int]:
    """The steps in an offline file of Weights & Biases: a LevelDB log of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, steps, content = path.read_bytes(), 7, [], b""  # 7 bytes say what it is
    while at < len(data):
        left = 32768 - at % 32768  # in the block
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)  # behind a checksum
        content += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record, content = Record.FromString(content), b""
            steps += [record.history.step.num] if record.HasField("history") else []
    return steps


def test_wandb_without_an_account(run: RunDir) -> None:
    said = in_wandb(run, range(1, 3))
    assert said.count("the run goes on without wandb: UsageError: not logged in") == 1


def test_wandb_that_cannot_be_reached(run: RunDir) -> None:
    said = in_wandb(run, range(1, 3), WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY="0" * 40)
    assert said.count("the run goes on without wandb") == 1


class Raises:
    """A tracker that fails at its second row."""

    def __init__(self, directory: Path, config: object) -> None:
        self.rows = 0

    def log(self, update: int, env_steps: int, values: object) -> None:
        self.rows += 1
        if self.rows == 2:
            raise RuntimeError("the server said no\nand more")

    def close(self) -> None: ...


class Hangs:
    """A tracker that takes one row and is not heard of again."""

    released = threading.Event()

    def __init__(self, directory: Path, config: object) -> None: ...

    def log(self, update: int, env_steps: int, values: object) -> None:
        Hangs.released.wait()

    def close(self) -> None: ...


@pytest.mark.fast
@pytest.mark.parametrize(
    ("tracker", "most_rows", "reason"),
    [
        (Raises, 100, "RuntimeError: the server said no"),
        (Hangs, 2, "2 rows wait for it"),
        (Hangs, 100, "it does not come to an end"),
    ],
)
def test_a_tracker_that_fails_is_given_up(
    tracker: type, most_rows: int, reason: str, run: RunDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", tracker)
    monkeypatch.setattr(trackers, "_MOST_ROWS", most_rows)
    monkeypatch.setattr(trackers, "_CLOSE_S", 0.1)
    Hangs.released.clear()
    report(run, range(1, 50), "tensorboard")
    Hangs.released.set()
    assert [record.message for record in caplog.records] == [f"the run goes on without tensorboard: {reason}"]


@pytest.mark.fast
def test_a_full_disk(run: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("tensorboardX", reason="needs jaxagent[trackers]")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # then writing fails, as on a full disk
    try:
        report(run, range(1, 100), "tensorboard")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the run goes on without tensorboard: OSError" in caplog.text
