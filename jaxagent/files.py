"""Files that are there whole or not at all, and JSON that any parser reads."""

import errno
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from jaxagent.errors import ResourceError

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def disk_errors(path: Path, needed: int) -> Iterator[None]:
    """Turns an `OSError` of writing `needed` bytes to `path` into a `ResourceError` that says what is needed and free."""
    try:
        yield
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}"
        if error.errno in _OUT_OF_SPACE:
            message += f"\nneeds {needed} bytes, {_free_bytes(path)} are free on that file system"
        raise ResourceError(message) from error


def _free_bytes(path: Path) -> int:
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    return shutil.disk_usage(existing).free


def fsync_directory(path: Path) -> None:
    """Makes renames and new names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, blocks: Iterable[bytes | memoryview]) -> None:
    """Writes the blocks one after the other and waits until they are on the disk."""
    with open(path, "wb") as file:
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file so that readers, and a restart after a crash, see the old bytes or the new ones and nothing between.

    Raises:
      ResourceError: the disk is full or refuses; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with disk_errors(path, len(data)):
        try:
            write_synced(temporary, [data])
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        fsync_directory(path.parent)


def remove_litter(directory: Path) -> None:
    """Removes what `write_atomic` leaves behind when it is killed. Only the one writer of a directory may call it."""
    for path in directory.glob(".*.tmp-*"):
        if path.is_file():
            path.unlink()


def write_json(path: Path, value: Any) -> None:
    """Writes `value` (see `jsonable`) as indented JSON, atomically."""
    write_atomic(path, (json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n").encode())


def jsonable(value: Any) -> Any:
    """Converts arrays and NumPy scalars to lists and numbers, and what JSON has no number for to strings.

    Non-finite floats become `"NaN"`, `"Infinity"` and `"-Infinity"`: legal JSON, told apart from a missing value, and parsed by
    `float()`. `non_finite_back` is the inverse.

    Raises:
      TypeError: something that is no number, text, path, array or collection of those.
    """
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    array = np.asarray(value)
    if array.dtype.kind == "V":  # bfloat16 and its like
        array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"expected numbers, text or collections of them, got {type(value).__name__} of dtype {array.dtype}")
    return jsonable(array.tolist())


def non_finite_back(value: Any) -> Any:
    """Turns the three strings of `jsonable` back into floats, at any depth."""
    if isinstance(value, dict):
        return {key: non_finite_back(item) for key, item in value.items()}
    if isinstance(value, list):
        return [non_finite_back(item) for item in value]
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return value
