"""`kill -9` and signals at random moments: what is resumed ends as what was never disturbed.

`python tests/test_kill.py 25` does the same with 25 kills.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from jaxagent import checkpoint, metrics
from jaxagent.rundir import RunDir

UPDATES = 600
CONFIG = f"""
env.name = "Collector-v0"
learner = {{ name = "ppo", num_epochs = 1, num_minibatches = 1 }}
network = {{ torso = "mlp", hidden = [16] }}
train = {{ num_envs = 8, num_steps = 8, num_updates = {UPDATES}, segment = 3, checkpoint_every = 6, eval_episodes = 4 }}
"""  # saving takes about as long as training, so many a kill falls into a save


def _start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "jaxagent", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _finish(process: subprocess.Popen) -> tuple[int, str]:
    _, errors = process.communicate(timeout=240)
    return process.returncode, errors.decode()


def _train(path: Path) -> list[str]:
    config = path.with_suffix(".toml")
    config.write_text(CONFIG)
    return ["train", str(config), "--out", str(path)]


def _wait_for(condition, process: subprocess.Popen) -> None:
    while process.poll() is None and not condition():
        time.sleep(0.005)


def _progress(run: RunDir) -> int:
    return max(checkpoint.steps(run.checkpoints), default=0)


def _assert_same(run: RunDir, undisturbed: RunDir) -> None:
    manifests = [json.loads((r.checkpoints / str(UPDATES) / "manifest.json").read_text()) for r in (run, undisturbed)]
    leaves = [manifest["manifest"]["leaves"] for manifest in manifests]
    assert len(leaves[0]) > 20 and leaves[0] == leaves[1]  # path, dtype, shape and SHA-256 of each
    rows = [metrics.read(r.metrics) for r in (run, undisturbed)]
    for row in (*rows[0], *rows[1]):
        del row["timing"]
    assert str(rows[0]) == str(rows[1])
    assert json.loads(run.evaluation.read_text()) == json.loads(undisturbed.evaluation.read_text())


def _kill_until_done(path: Path, kills: int, rng: random.Random) -> RunDir:
    """Trains and resumes, with `kills` kills spread over the run, each at a random moment."""
    run, arguments = RunDir(path), _train(path)
    for goal in sorted(rng.sample(range(UPDATES - 30), kills)):
        process = _start(*arguments)
        _wait_for(lambda goal=goal: _progress(run) >= goal, process)
        time.sleep(rng.uniform(0.0, 0.03))
        assert process.poll() is None, _finish(process)[1]
        process.kill()
        _finish(process)
        arguments = ["resume", str(path)]
    code, errors = _finish(_start(*arguments))
    assert code == 0, errors
    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> RunDir:
    path = tmp_path_factory.mktemp("whole") / "run"
    code, errors = _finish(_start(*_train(path)))
    assert code == 0, errors
    return RunDir(path)


def test_kill_9(undisturbed, tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    _assert_same(_kill_until_done(tmp_path / "run", 5, random.Random(seed)), undisturbed)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(undisturbed, tmp_path, number, code):
    run = RunDir(tmp_path / "run")
    process = _start(*_train(run.path))
    _wait_for(lambda: _progress(run) > 0, process)
    process.send_signal(number)
    returned, errors = _finish(process)
    assert returned == code, errors
    assert f"jaxagent resume {run.path}" in errors
    assert 0 < _progress(run) < UPDATES
    returned, errors = _finish(_start("resume", str(run.path)))
    assert returned == 0, errors
    _assert_same(run, undisturbed)


def main(kills: int) -> None:
    """Prints one line; raises AssertionError where a difference is found."""
    seed = random.randrange(2**32)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        assert _finish(_start(*_train(whole)))[0] == 0
        _assert_same(_kill_until_done(Path(folder) / "killed", kills, random.Random(seed)), RunDir(whole))
    print(f"{kills} kills, seed {seed}: all leaves of the last checkpoint and all rows are equal")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
