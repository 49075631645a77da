import contextlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent import checkpoint, leaves
from jaxagent.checkpoint import ARRAYS, MANIFEST, discard_after, restore, save, steps
from jaxagent.errors import CheckpointError, ResourceError

# Subprocesses save NumPy trees only, so they may fork: no JAX backend starts in them.
_PRELUDE = """
import os, resource, signal, sys
from pathlib import Path
import numpy as np
from jaxagent import checkpoint
from jaxagent.errors import ResourceError

directory = Path(sys.argv[1])

def tree(step):
    return {"w": np.full(5000, step, np.float32), "n": np.int32(step)}
"""


class Pair(NamedTuple):
    left: jax.Array
    right: jax.Array


def numpy_tree(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full(5000, step, np.float32), "n": np.array(step, np.int32)}


def run_python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", _PRELUDE + textwrap.dedent(code), str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A directory with checkpoints 1, 2 and 3 of `numpy_tree`."""
    for step in (1, 2, 3):
        save(tmp_path, step, numpy_tree(step), metadata={"step": step})
    return tmp_path


def test_every_kind_of_leaf_survives(tmp_path: Path) -> None:
    tree = {
        "pair": Pair(jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3), jnp.array([True, False])),
        "keys": jax.random.split(jax.random.key(3), 2),
        "rbg": jax.random.key(4, impl="rbg"),
        "scalar": jnp.float32(-0.0),
        "odd": jnp.array([jnp.nan, jnp.inf, 1e-45]),
        "empty": jnp.zeros((0, 3), jnp.uint8),
        "host": np.arange(6.0).reshape(2, 3).T,
        "swapped": np.arange(3, dtype=">i4"),
        "nothing": None,
    }
    metadata = {"config": {"lr": 0.1, "names": ["ä", "b"]}, "1": None, 10: 1, 9: 2}
    path = save(tmp_path / "checkpoints", 7, tree, metadata=metadata)
    restored = restore(tmp_path / "checkpoints", tree)

    assert path == tmp_path / "checkpoints" / "7"
    assert restored.step == 7
    assert restored.metadata == {"config": {"lr": 0.1, "names": ["ä", "b"]}, "1": None, "10": 1, "9": 2}
    assert jax.tree.structure(restored.tree) == jax.tree.structure(tree)
    for before, after in zip(jax.tree.leaves(tree), jax.tree.leaves(restored.tree), strict=True):
        assert isinstance(after, jax.Array) == isinstance(before, jax.Array)
        assert after.shape == before.shape
    assert [leaf.tobytes() for leaf in leaves.to_host(restored.tree)] == [leaf.tobytes() for leaf in leaves.to_host(tree)]
    assert restored.tree["rbg"].dtype == tree["rbg"].dtype
    assert restored.tree["pair"].left.dtype == jnp.bfloat16
    np.testing.assert_array_equal(restored.tree["host"], tree["host"])
    restored.tree["host"][0, 0] = 1.0  # writable


def test_shapes_and_dtypes_are_enough_to_restore(tmp_path: Path) -> None:
    tree = {"key": jax.random.key(0), "w": jnp.ones((2, 2))}
    save(tmp_path, 0, tree, metadata={})
    restored = restore(tmp_path, jax.eval_shape(lambda: tree)).tree
    assert (jax.random.key_data(restored["key"]) == jax.random.key_data(tree["key"])).all()
    np.testing.assert_array_equal(restored["w"], tree["w"])


def test_restored_arrays_may_be_donated(tmp_path: Path) -> None:
    save(tmp_path, 0, {"w": jnp.arange(1024.0)}, metadata={})
    first, second = (restore(tmp_path, {"w": jnp.zeros(1024)}).tree for _ in range(2))
    jax.jit(lambda tree: jax.tree.map(lambda x: x * 0, tree), donate_argnums=0)(first)
    np.testing.assert_array_equal(second["w"], np.arange(1024.0))


def test_equal_trees_make_equal_files(tmp_path: Path) -> None:
    paths = [save(tmp_path / name, 5, numpy_tree(5), metadata={"a": 1}) for name in "ab"]
    for file in (ARRAYS, MANIFEST):
        assert (paths[0] / file).read_bytes() == (paths[1] / file).read_bytes()


def test_arrays_lie_as_safetensors_has_them(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"a": {"w": jnp.array([[1.0, 2.0]])}, "b": np.array([3, 4, 5], np.uint8)}, metadata={})
    data = (path / ARRAYS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length]) == {
        "a/w": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
        "b": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]},
    }
    assert data[8 + length :] == np.array([1, 2], "<f4").tobytes() + bytes([3, 4, 5])


def test_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in range(0, 60, 10):
        save(tmp_path, step, numpy_tree(step), metadata={}, keep=2)
        assert steps(tmp_path) == [step - 10, step][-2 if step else -1 :]
    assert sorted(os.listdir(tmp_path)) == ["40", "50"]


def test_a_step_saved_again_is_replaced(three: Path) -> None:
    save(three, 3, {"w": np.zeros(2)}, metadata={"again": True})
    restored = restore(three, {"w": np.zeros(2)})
    assert restored.metadata == {"again": True}
    assert sorted(os.listdir(three)) == ["1", "2", "3"]


def test_saving_an_earlier_step_drops_later_ones(three: Path) -> None:
    save(three, 2, numpy_tree(2), metadata={})
    assert steps(three) == [1, 2]
    discard_after(three, 1)
    assert steps(three) == [1]
    discard_after(three / "none", 1)


def test_a_step_can_be_asked_for(three: Path) -> None:
    assert restore(three, numpy_tree(0), step=2).tree["n"] == 2
    with pytest.raises(CheckpointError, match="no checkpoint of step 9 .* the last ones are 1, 2, 3"):
        restore(three, numpy_tree(0), step=9)
    (three / "2" / ARRAYS).unlink()
    with pytest.raises(CheckpointError, match="damaged are 2"):
        restore(three, numpy_tree(0), step=2)


def test_nothing_to_restore(tmp_path: Path) -> None:
    assert steps(tmp_path / "none") == []
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="no checkpoint in"):
            restore(directory, numpy_tree(0))
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot read"):
        restore(tmp_path / "file", numpy_tree(0))


def test_other_names_are_no_checkpoints(three: Path) -> None:
    for name in (".tmp-9", ".tmp-doomed-4", "007", "-1", "+1", "9.bak", "٣", "step_9", "1e9", "9 "):
        (three / name).mkdir()
    assert steps(three) == [1, 2, 3]


# ---- damage


def truncate(size: float) -> object:
    def damage(path: Path) -> None:
        length = path.stat().st_size
        os.truncate(path, length - 1 if size == -1 else size if isinstance(size, int) else int(length * size))

    return damage


def into_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def into_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


DAMAGES = {
    "empty": truncate(0),
    "one byte": truncate(1),
    "half": truncate(0.5),
    "one byte less": truncate(-1),
    "one byte more": append,
    "deleted": Path.unlink,
    "directory": into_directory,
    "symlink loop": into_loop,
}


@pytest.mark.parametrize("file", [ARRAYS, MANIFEST])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_named_and_the_step_before_used(three: Path, file: str, damage, caplog) -> None:
    assert checkpoint.is_sound(three, 3) and not checkpoint.is_sound(three, 4)
    damage(three / "3" / file)
    assert not checkpoint.is_sound(three, 3) and checkpoint.is_sound(three, 2)
    assert restore(three, numpy_tree(0)).step == 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(three / "3" / file) in record.getMessage()


@contextlib.contextmanager
def unprivileged(path: Path) -> Iterator[None]:
    """Not as root, who reads everything; what is in `path` stays ours."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    for file in (path, *path.rglob("*")):
        os.chown(file, nobody, nobody)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("file", [ARRAYS, MANIFEST, "."])
def test_an_unreadable_file_is_damage(three: Path, file: str, caplog) -> None:
    with tempfile.TemporaryDirectory() as directory:  # all above it can be entered by anybody, unlike pytest's
        path = Path(directory)
        shutil.copytree(three, path, dirs_exist_ok=True)
        assert restore(path, numpy_tree(0)).step == 3
        with unprivileged(path):
            (path / "3" / file).chmod(0)
            assert restore(path, numpy_tree(0)).step == 2
            assert str(path / "3") in caplog.text
            (path / "3" / file).chmod(0o700)


@pytest.mark.parametrize("file", [ARRAYS, MANIFEST])
def test_any_flipped_bit_is_found(three: Path, file: str) -> None:
    rng = random.Random(0)
    path = three / "3" / file
    sound = path.read_bytes()
    for place in rng.sample(range(8 * len(sound)), 150):
        flipped = bytearray(sound)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match="damaged are 3"):
            restore(three, numpy_tree(0), step=3)
    path.write_bytes(sound)
    assert restore(three, numpy_tree(0), step=3).step == 3


def test_several_damaged_steps(three: Path, caplog) -> None:
    (three / "3" / ARRAYS).unlink()
    shutil.rmtree(three / "2")
    (three / "2").write_text("a file")
    assert restore(three, numpy_tree(0)).step == 1
    assert [record.args[0] for record in caplog.records] == [3, 2]
    truncate(1)(three / "1" / MANIFEST)
    with pytest.raises(CheckpointError, match="no usable checkpoint in .*: damaged are 3, 2, 1") as error:
        restore(three, numpy_tree(0))
    assert error.value.exit_code == 4
    save(three, 2, numpy_tree(2), metadata={})
    assert restore(three, numpy_tree(0)).step == 2


def test_a_checkpoint_under_a_wrong_name_is_damage(three: Path, caplog) -> None:
    os.rename(three / "2", three / "4")
    assert restore(three, numpy_tree(0)).step == 3
    assert "of step 2" in caplog.text


def forge(path: Path, **changes: object) -> None:
    """Rewrites a manifest with a right digest of itself."""
    content = json.loads(path.read_bytes())["manifest"]
    path.write_bytes(checkpoint._encode({**content, **changes}))


def leaf_entry(**changes: object) -> dict[str, object]:
    return {"path": "w", "dtype": "float32", "shape": [5000], "key_impl": None, "sha256": "0" * 64, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"step": "3"},
        {"leaves": None},
        {"leaves": [1]},
        {"leaves": [[]]},
        {"leaves": {"path": 1}},
        {"leaves": [{}]},
        {"leaves": [leaf_entry(shape="5000")]},
        {"leaves": [leaf_entry(shape=[-1])]},
        {"leaves": [leaf_entry(shape=[1.5])]},
        {"leaves": [leaf_entry(dtype="object")]},
        {"leaves": [leaf_entry(dtype=["f4"])]},
        {"files": []},
        {"files": {"../../etc/passwd": "0" * 64}},
        {"files": {ARRAYS: None}},
        {"metadata": 3},
    ],
    ids=str,
)
def test_a_forged_manifest_is_damage(three: Path, changes: dict[str, object], caplog) -> None:
    forge(three / "3" / MANIFEST, **changes)
    assert restore(three, numpy_tree(0)).step == 2
    assert str(three / "3") in caplog.text


@pytest.mark.parametrize(
    "entries",
    [
        [leaf_entry(shape=[2**62])],
        [leaf_entry(path="n", shape=[2**62]), leaf_entry(), leaf_entry(path="n", dtype="int32", shape=[])],
        [leaf_entry(), leaf_entry(path=["n"], dtype="int32", shape=[])],
        [leaf_entry(), leaf_entry(path="n", dtype="int32", shape=[], key_impl="rbg")],
    ],
    ids=["huge", "huge twin", "path of a list", "unknown key"],
)
def test_forged_leaves_are_refused_before_memory_is_taken(three: Path, entries: list[object]) -> None:
    forge(three / "3" / MANIFEST, leaves=entries)
    with pytest.raises(CheckpointError):
        restore(three, numpy_tree(0), step=3)


def test_forged_digests_are_damage(three: Path, caplog) -> None:
    content = json.loads((three / "3" / MANIFEST).read_bytes())["manifest"]
    forge(three / "3" / MANIFEST, leaves=[{**leaf, "sha256": "0" * 64} for leaf in content["leaves"]])
    assert restore(three, numpy_tree(0)).step == 2
    assert "leaf n does not match" in caplog.text


@pytest.mark.parametrize(
    "data", [b"null", b"[" * 100_000, b"\xff\xfe", b"9" * 5000, b'{"manifest": NaN}', b'{"manifest": "\\ud800"}', bytes(64)]
)
def test_an_odd_manifest_is_damage(three: Path, data: bytes, caplog) -> None:
    (three / "3" / MANIFEST).write_bytes(data)
    assert restore(three, numpy_tree(0)).step == 2
    assert str(three / "3" / MANIFEST) in caplog.text


def test_a_newer_format_is_refused(three: Path) -> None:
    forge(three / "3" / MANIFEST, format_version=2)
    with pytest.raises(CheckpointError, match="format version 2, this release reads 1"):
        restore(three, numpy_tree(0))


# ---- what does not fit


@pytest.mark.parametrize(
    ("like", "lines"),
    [
        (
            {"w": np.zeros(5000, np.float32), "m": np.zeros((), np.int32)},
            ["m: not in the checkpoint, expected int32[]", "n: int32[] in the checkpoint, not expected"],
        ),
        (
            {"w": np.zeros((50, 100)), "n": np.zeros((), np.int32)},
            ["w: float32[5000] in the checkpoint, expected float64[50,100]"],
        ),
        ({"w": np.zeros(5000, np.float32)}, ["n: int32[] in the checkpoint, not expected"]),
    ],
    ids=["renamed", "shape and dtype", "missing"],
)
def test_differences_are_listed(three: Path, like: dict[str, np.ndarray], lines: list[str]) -> None:
    with pytest.raises(CheckpointError) as error:
        restore(three, like)
    assert str(error.value).splitlines() == [f"checkpoint {three / '3'} does not fit:", *lines]


def test_key_implementations_are_compared(tmp_path: Path) -> None:
    save(tmp_path, 0, {"key": jax.random.key(0, impl="rbg")}, metadata={})
    with pytest.raises(CheckpointError, match=r"uint32\[4\] of a rbg key in the checkpoint, expected uint32\[2\] of a"):
        restore(tmp_path, {"key": jax.random.key(0)})


def test_a_long_list_of_differences_is_cut_to_five_lines(three: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        restore(three, {f"a{i}": np.zeros(1) for i in range(8)})
    lines = str(error.value).splitlines()
    assert len(lines) == 5
    assert lines[-1] == "and 7 more"  # 8 missing and 2 extra, of which 3 are listed


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": 1.0}}, "a/b: expected an array, got float"),
        ({"a": np.array(["x"])}, "a: dtype str"),
        ({"a": np.array([None])}, "a: dtype object cannot be stored"),
        ({"a/b": np.zeros(1), "a": {"b": np.zeros(1)}}, "two leaves are named a/b"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path: Path, tree, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        save(tmp_path / "checkpoints", 0, tree, metadata={})
    assert not os.listdir(tmp_path)


def test_bad_arguments(tmp_path: Path) -> None:
    for arguments in ({"step": -1}, {"step": 0, "keep": 0}, {"step": 0, "metadata": {"x": float("nan")}}):
        with pytest.raises(ValueError):
            save(tmp_path, **{"tree": {}, "metadata": {}, **arguments})
    with pytest.raises(TypeError):
        save(tmp_path, 1.5, {}, metadata={})
    assert not os.listdir(tmp_path)


# ---- crashes and full disks


def test_a_crash_at_any_point_leaves_a_checkpoint(tmp_path: Path) -> None:
    """Forks one child for each system call of a save that replaces a step and deletes an old one; the child dies before it."""
    result = run_python(
        """
        def die_before(number):
            calls = iter(range(1000))
            def audit(event, arguments):
                if event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "open") and next(calls) == number:
                    os._exit(137)
            sys.addaudithook(audit)
            fsync = os.fsync
            def die_or_fsync(descriptor):
                if next(calls) == number:
                    os._exit(137)
                fsync(descriptor)
            os.fsync = die_or_fsync

        def crash(work, step, number):
            child = os.fork()
            if child == 0:
                die_before(number)
                checkpoint.save(work, step, tree(step), metadata={}, keep=2)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        def check(work, allowed):
            restored = checkpoint.restore(work, tree(0))
            assert restored.step in allowed, (work, restored.step)
            assert restored.tree["n"] == restored.step and (restored.tree["w"] == restored.step).all()
            for found in checkpoint.steps(work):
                assert checkpoint.restore(work, tree(0), step=found).tree["n"] == found

        for scenario, before, step in (("next", (1, 2), 3), ("replace", (1, 2), 2), ("replace the only one", (2,), 2)):
            number, code = 0, 137
            while code == 137:
                work = directory / f"{scenario} {number}"
                for earlier in before:
                    checkpoint.save(work, earlier, tree(earlier), metadata={}, keep=2)
                code = crash(work, step, number)
                check(work, (2, step))
                checkpoint.save(work, step, tree(step), metadata={}, keep=2)
                check(work, (step,))
                assert not [name for name in os.listdir(work) if name.startswith(".")], os.listdir(work)
                number += 1
            assert code == 0, code
            print(scenario, number)
        """,
        tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert not result.stderr  # no damage was met
    points = [int(line.split()[-1]) for line in result.stdout.splitlines()]
    assert len(points) == 3
    assert min(points) > 10, result.stdout


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    """Children save one step after the other and say so; each is killed after up to 50 ms."""
    result = run_python(
        """
        import random, time

        def save_on(step, confirmed):
            while True:
                step += 1
                checkpoint.save(directory, step, tree(step), metadata={}, keep=2)
                os.write(confirmed, f"{step} ".encode())

        rng, reached = random.Random(1), 0
        for _ in range(25):
            receive, send = os.pipe()
            child = os.fork()
            if child == 0:
                save_on(reached, send)
            os.close(send)
            time.sleep(rng.uniform(0.001, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            with open(receive) as pipe:
                confirmed = max(map(int, pipe.read().split()), default=reached)
            if confirmed == 0 and not checkpoint.steps(directory):
                continue
            restored = checkpoint.restore(directory, tree(0))
            assert restored.step in (confirmed, confirmed + 1), (restored.step, confirmed)
            assert restored.tree["n"] == restored.step and (restored.tree["w"] == restored.step).all()
            reached = restored.step
        print(reached)
        """,
        tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert not result.stderr  # no damage was met
    assert int(result.stdout) > 1


def test_a_file_size_limit_is_a_resource_error(three: Path) -> None:
    """The kernel refuses to write beyond 8 KiB; the arrays take 20 kB."""
    result = run_python(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        try:
            checkpoint.save(directory, 4, tree(4), metadata={})
        except ResourceError as error:
            print(error)
        """,
        three,
    )
    first, second = result.stdout.splitlines()
    assert first == f"cannot write {three / '4'}: File too large"
    assert second.startswith("needs 2") and second.endswith("are free on that file system")
    assert sorted(os.listdir(three)) == ["1", "2", "3"]
    assert restore(three, numpy_tree(0)).step == 3


@pytest.mark.parametrize("step", [3, 4], ids=["replace", "next"])
@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename"])
def test_an_error_at_any_point_leaves_what_was_there(three: Path, monkeypatch, call: str, step: int) -> None:
    """Fails the n-th call for n = 0, 1, ... until the save gets through."""
    original, failed = getattr(os, call), 0
    while True:
        calls = iter(range(1000))

        def full(*arguments: object, calls=calls, number=failed, **keywords: object) -> object:
            if next(calls) == number:
                raise OSError(28, "No space left on device")
            return original(*arguments, **keywords)

        monkeypatch.setattr(os, call, full)
        try:
            save(three, step, numpy_tree(step), metadata={"new": True})
            break
        except ResourceError as error:
            assert error.exit_code == 5
            assert "No space left on device\nneeds " in str(error)
        finally:
            monkeypatch.setattr(os, call, original)
        assert restore(three, numpy_tree(0)).step in (3, step)
        assert {"2", "3"} <= set(os.listdir(three)) <= {"1", "2", "3", str(step), ".replaced-3", ".tmp-doomed-1"}
        failed += 1
    assert failed >= 1
    assert restore(three, numpy_tree(0)).metadata == {"new": True}
    assert not [name for name in os.listdir(three) if name.startswith(".")]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="Not a directory"):
        save(tmp_path / "file" / "checkpoints", 0, numpy_tree(0), metadata={})


def test_an_interrupt_leaves_no_litter(three: Path, monkeypatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(three, 4, numpy_tree(4), metadata={})
    assert sorted(os.listdir(three)) == ["1", "2", "3"]


def test_one_device_to_four_and_back(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(16.0), "key": jax.random.split(jax.random.key(1), 4)}
    save(tmp_path, 1, tree, metadata={})
    code = """
    import jax, jax.numpy as jnp, numpy as np, sys
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from pathlib import Path
    from jaxagent import checkpoint

    rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
    like = {"w": jnp.zeros(16), "key": jax.random.split(jax.random.key(0), 4)}
    tree = checkpoint.restore(Path(sys.argv[1]), jax.device_put(like, rows)).tree
    assert [len(leaf.sharding.device_set) for leaf in tree.values()] == [4, 4]
    checkpoint.save(Path(sys.argv[1]), 2, tree, metadata={})
    """
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], env=env, check=True, timeout=120)
    restored = restore(tmp_path, tree)
    assert restored.step == 2
    np.testing.assert_array_equal(restored.tree["w"], tree["w"])
    assert (restored.tree["key"] == tree["key"]).all()
