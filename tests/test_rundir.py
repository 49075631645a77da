import json
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest

from jaxagent import provenance, rundir
from jaxagent.errors import LockError, ResourceError, UsageError
from jaxagent.rundir import RunDir, create, find, new_path, reopen

HOLD = """
import sys
from pathlib import Path
from jaxagent import rundir

with rundir.lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_run_is_created(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with create(path, config="seed = 1\n", argv=["jaxagent", "train", "a.toml"]) as run:
        assert run == RunDir(path)
        assert run.config.read_text() == "seed = 1\n"
        (start,) = json.loads(run.env.read_text())
    assert start["argv"] == ["jaxagent", "train", "a.toml"]
    assert start["packages"]["jax"] == jax.__version__
    assert start["devices"]["platform"] == "cpu"
    assert start["host"]["name"] == platform.node()
    assert find(path) == run
    assert {file.parent for file in (run.metrics, run.checkpoints, run.evaluation, run.curves, run.episode)} == {path}


def test_a_run_is_reopened(tmp_path: Path) -> None:
    with create(tmp_path, config="seed = 1\n", argv=["first"]):
        pass
    (tmp_path / ".eval.json.tmp-1").touch()
    with reopen(tmp_path, argv=["second"]) as run:
        starts = json.loads(run.env.read_text())
        assert [start["argv"] for start in starts] == [["first"], ["second"]]
        assert run.config.read_text() == "seed = 1\n"
    assert sorted(os.listdir(tmp_path)) == ["config.toml", "env.json", "lock"]


def test_a_damaged_env_is_begun_anew(tmp_path: Path, caplog) -> None:
    with create(tmp_path, config=""):
        pass
    (tmp_path / "env.json").write_bytes(b"\xff{")
    with reopen(tmp_path, argv=["second"]) as run:
        assert [start["argv"] for start in json.loads(run.env.read_text())] == [["second"]]
    assert "env.json cannot be read" in caplog.text


@pytest.mark.parametrize("name", ["notes.txt", ".git", "env.json", "checkpoints"])
def test_a_directory_in_use_is_refused_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match=f"is not empty: it holds {re.escape(name)}"), create(tmp_path, config=""):
        pass
    assert os.listdir(tmp_path) == [name]


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    with create(tmp_path, config="old"):
        pass
    with pytest.raises(UsageError, match="holds a run already\nresume it"), create(tmp_path, config="new"):
        pass
    assert (tmp_path / "config.toml").read_text() == "old"


def test_a_file_is_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(UsageError, match="Not a directory"), create(path, config=""):
        pass


def test_a_start_that_was_killed_early_is_no_obstacle(tmp_path: Path) -> None:
    for name in ("lock", "env.json", ".config.toml.tmp-77"):
        (tmp_path / name).touch()
    with create(tmp_path, config="seed = 2\n") as run:
        assert run.config.read_text() == "seed = 2\n"
    assert sorted(os.listdir(tmp_path)) == ["config.toml", "env.json", "lock"]


@pytest.mark.parametrize("opener", [find, lambda path: reopen(path).__enter__()], ids=["find", "reopen"])
def test_no_run(tmp_path: Path, opener) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match=r"no run in .*: expected a directory with config\.toml"):
            opener(path)
    assert not os.listdir(tmp_path)


def test_new_paths_are_unique_and_safe(tmp_path: Path) -> None:
    paths = [new_path("ppo", tmp_path / "runs") for _ in range(5)]
    assert len(set(paths)) == 5
    assert all(re.fullmatch(r"ppo-\d{8}-\d{6}(-\d)?", path.name) and path.is_dir() for path in paths)
    for name in ("../../etc", "a/b\0c", "-rf", "", "..", "x" * 300, "\N{SNOWMAN}"):
        path = new_path(name, tmp_path)
        assert path.parent == tmp_path
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,90}", path.name)


def test_an_unwritable_place_is_a_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot write"):
        new_path("run", tmp_path / "file")


# ---- the lock


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    with create(tmp_path, config=""):
        pass
    with holder(tmp_path) as process:
        for opened in (reopen(tmp_path), create(tmp_path, config="")):
            with pytest.raises(LockError) as error, opened:
                pass
            assert error.value.exit_code == 6
            assert f"is being written by process {process.pid} on {platform.node()!r}" in str(error.value)
        assert len(json.loads((tmp_path / "env.json").read_text())) == 1
        assert find(tmp_path)  # readers may


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path, end: signal.Signals) -> None:
    with holder(tmp_path) as process:
        process.send_signal(end)
        process.wait()
        assert json.loads((tmp_path / "lock").read_text())["pid"] == process.pid  # it could not tidy up
        with rundir.lock(tmp_path):
            held = json.loads((tmp_path / "lock").read_text())
            assert held["pid"] == os.getpid()
            assert held["boot_id"]
    assert (tmp_path / "lock").read_text() == ""


def test_a_lock_excludes_its_own_process_too(tmp_path: Path) -> None:
    with rundir.lock(tmp_path), pytest.raises(LockError, match=f"process {os.getpid()} "), rundir.lock(tmp_path):
        pass
    with rundir.lock(tmp_path):
        pass


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(KeyError), rundir.lock(tmp_path):
        raise KeyError
    with rundir.lock(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1, "host": "a\\nb"}', "[" * 4096])
def test_an_odd_lock_file(tmp_path: Path, content: str) -> None:
    with rundir.lock(tmp_path):
        (tmp_path / "lock").write_text(content)
        with pytest.raises(LockError, match="is being written by another process\nwait"), rundir.lock(tmp_path):
            pass


def test_one_of_many_writers_gets_in(tmp_path: Path) -> None:
    """Eight forks of one process start a run in the same new directory at the same time."""
    code = """
    import os, sys
    from pathlib import Path
    from jaxagent import provenance, rundir
    from jaxagent.errors import LockError, UsageError

    provenance.describe = lambda argv: {"argv": argv}
    path = Path(sys.argv[1]) / "run"
    release, go = os.pipe()

    def start(number):
        os.close(go)
        os.read(release, 1)
        try:
            with rundir.create(path, config=f"number = {number}", argv=[str(number)]):
                return 0
        except (LockError, UsageError) as error:
            return error.exit_code

    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            os._exit(start(number))
        children.append(child)
    os.close(go)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes.count(0) == 1 and set(codes) <= {0, 2, 6}, codes
    assert rundir.find(path).config.read_text() == f"number = {codes.index(0)}"
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch, caplog) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(rundir.fcntl, "flock", unsupported)
    with rundir.lock(tmp_path):
        assert "cannot be locked (Operation not supported)" in caplog.text


# ---- provenance


def test_git_state(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.git_state() is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "a").write_text("1")
    for arguments in (["init", "-q"], ["add", "a"], [*identity, "commit", "-q", "-m", "a"]):
        subprocess.run(["git", *arguments], check=True)
    state = provenance.git_state()
    assert re.fullmatch(r"[0-9a-f]{40}", state["commit"])
    assert state["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert provenance.git_state() == {**state, "dirty": True}


def test_no_git(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_state() is None


def test_the_environment_is_recorded_without_secrets(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    described = provenance.describe()
    assert "XLA_FLAGS" in described["variables"]
    assert "secret" not in json.dumps(described)
    assert described["argv"] == sys.argv
