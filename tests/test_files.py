import json
import math
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent import errors, files
from jaxagent.errors import JaxagentError, ResourceError


def test_exit_codes() -> None:
    codes = {name: error.exit_code for name, error in vars(errors).items() if name.endswith("Error")}
    assert codes == {
        "JaxagentError": 1,
        "UsageError": 2,
        "ConfigError": 2,
        "DataError": 3,
        "CheckpointError": 4,
        "ResourceError": 5,
        "LockError": 6,
    }
    assert all(issubclass(getattr(errors, name), JaxagentError) for name in codes)


def test_write_atomic_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for data in (b"old", b"newer", b""):
        files.write_atomic(path, data)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch, call: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.txt"
    files.write_atomic(path, b"old")
    monkeypatch.setattr(os, call, full)
    with pytest.raises(ResourceError, match=r"cannot write .*a\.txt: No space left on device\nneeds 3 bytes, \d+ are free"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="No such file or directory"):
        files.write_atomic(tmp_path / "none" / "a.txt", b"")


def test_litter_of_killed_writers_is_removed(tmp_path: Path) -> None:
    for name in (".eval.json.tmp-12", ".hidden", "eval.json", "tmp-12"):
        (tmp_path / name).touch()
    files.remove_litter(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "eval.json", "tmp-12"]


def test_json_of_arrays_and_numbers(tmp_path: Path) -> None:
    value = {
        "a": jnp.float32(0.1),
        "b": np.array([[1, 2]], np.uint8),
        "c": np.bool_(True),
        "d": (1, None, "x", 1.5),
        "e": jnp.array([1.5, -jnp.inf], jnp.bfloat16),
        "f": math.nan,
        "g": np.float64(math.inf),
        "h": Path("a/b"),
        3: {},
    }
    files.write_json(tmp_path / "a.json", value)
    read = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert read == {
        "a": float(np.float32(0.1)),
        "b": [[1, 2]],
        "c": True,
        "d": [1, None, "x", 1.5],
        "e": [1.5, "-Infinity"],
        "f": "NaN",
        "g": "Infinity",
        "h": "a/b",
        "3": {},
    }
    back = files.non_finite_back(read)
    assert math.isnan(back["f"])
    assert back["e"] == [1.5, -math.inf]


@pytest.mark.parametrize("value", [object(), {1}, b"x", np.datetime64("2020-01-01"), np.array([None])])
def test_what_is_no_json(value: object) -> None:
    with pytest.raises(TypeError, match="expected numbers, text or collections of them"):
        files.jsonable({"a": [value]})
