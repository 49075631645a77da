"""Checkpoints that survive `kill -9`, a full disk and damaged files.

Layout of one: `DIRECTORY/STEP/arrays.safetensors` (every array leaf) and `DIRECTORY/STEP/manifest.json` (SHA-256 of that file
and of each leaf, the caller's metadata, and a SHA-256 of all this).

A checkpoint is written under a name that discovery cannot match, synced, and renamed. Reading verifies every byte; a damaged
checkpoint is named in a warning and the one before it is used. One process writes to a directory at a time (see `rundir`);
any number may read.

Why not orbax: to save 4 MB in 20 or 100 leaves it took three times as long, it takes half a second to import, leaves a dozen
threads behind, and gives no say in what reaches the disk when.
"""

import hashlib
import json
import logging
import operator
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxagent.errors import CheckpointError
from jaxagent.files import disk_errors, fsync_directory, write_synced
from jaxagent.leaves import (
    SAFETENSORS_NAMES,
    Leaf,
    describe,
    differences,
    from_host,
    from_raw,
    raw,
    safetensors_header,
    to_host,
)
from jaxagent.types import PyTree

FORMAT = "jaxagent-checkpoint"
FORMAT_VERSION = 1
ARRAYS = "arrays.safetensors"
MANIFEST = "manifest.json"

_TEMPORARY = ".tmp-"
_REPLACED = ".replaced-"  # the old checkpoint of a step, while a new one takes its name
_STEP_NAME = re.compile(rf"({re.escape(_REPLACED)})?(0|[1-9][0-9]*)")
_MAX_DIFFERENCES = 4  # an error has five lines

_log = logging.getLogger(__name__)


class Restored(NamedTuple):
    """A checkpoint that was read."""

    tree: PyTree
    step: int
    metadata: dict[str, Any]


class _Manifest(NamedTuple):
    leaves: list[Leaf]  # in the order of the file
    leaf_digests: list[str]
    file_digest: str
    metadata: dict[str, Any]


class _Damaged(Exception):
    """A checkpoint that is not what was written; the message names the file."""


def save(directory: Path, step: int, tree: PyTree, *, metadata: Mapping[str, Any], keep: int = 3) -> Path:
    """Writes checkpoint `step` of a tree of arrays (JAX, typed keys among them, or NumPy).

    A checkpoint of the same step is replaced. Once the new one is on the disk, older ones beyond the last `keep` are deleted,
    and so are those of later steps: they belong to a future that this run has left.

    Args:
      directory: where the checkpoints of the run lie; made if it is not there.
      step: non-negative.
      tree: the arrays.
      metadata: JSON values, given back by `restore`.
      keep: how many checkpoints to keep, at least 1.

    Returns:
      The directory of the checkpoint.

    Raises:
      ResourceError: the disk is full or refuses. The earlier checkpoints are untouched.
      ValueError: a leaf or the metadata cannot be stored.
    """
    step = operator.index(step)
    if step < 0 or keep < 1:
        raise ValueError(f"expected step >= 0 and keep >= 1, got step {step} and keep {keep}")
    leaves = describe(tree)
    arrays = to_host(tree)
    blocks: list[bytes | memoryview] = [safetensors_header(leaves), *map(raw, arrays)]
    manifest = _manifest(step, leaves, blocks, metadata)
    final = directory / str(step)
    with disk_errors(final, sum(map(len, blocks)) + len(manifest)):
        _make_directory(directory)
        _recover(directory)
        try:
            _publish(_write(directory / f"{_TEMPORARY}{step}", blocks, manifest), final)
        except BaseException:
            with suppress(OSError):
                _recover(directory)
            raise
        _prune(directory, step, keep)
    return final


def restore(directory: Path, like: PyTree, *, step: int | None = None) -> Restored:
    """Reads and verifies the newest usable checkpoint, or exactly `step`.

    Args:
      directory: where the checkpoints of the run lie.
      like: a tree of arrays or `jax.ShapeDtypeStruct`s with the structure, shapes and dtypes to expect. Leaves come back as
        NumPy arrays where `like` has those and as JAX arrays elsewhere, sharded as in `like` if that is over several devices.
      step: if given, no other checkpoint will do.

    Raises:
      CheckpointError: there is no checkpoint, all are damaged, or the newest sound one does not fit `like`.
    """
    expected = describe(like)
    found = _find(directory)
    if not found or (step is not None and step not in found):
        which = "" if step is None else f" of step {step}"
        known = f"; the last ones are {', '.join(map(str, sorted(found)[-5:]))}" if found else ""
        raise CheckpointError(f"no checkpoint{which} in {directory}{known}")
    candidates = sorted(found, reverse=True) if step is None else [step]
    for candidate in candidates:
        try:
            arrays, metadata = _read(found[candidate], candidate, expected)
        except _Damaged as damage:
            _log.warning("checkpoint %d is damaged and not used: %s", candidate, damage)
            continue
        return Restored(from_host(expected, arrays, like), candidate, metadata)
    raise CheckpointError(f"no usable checkpoint in {directory}: damaged are {', '.join(map(str, candidates[:10]))}")


def steps(directory: Path) -> list[int]:
    """The steps that have a checkpoint, damaged or not, ascending; empty before the first save."""
    return sorted(_find(directory))


def is_sound(directory: Path, step: int) -> bool:
    """Whether the checkpoint of a step is there and is what was written.

    Raises:
      CheckpointError: another release wrote it.
    """
    path = _find(directory).get(step)
    if path is None:
        return False
    try:
        _verify_file(path / ARRAYS, _parse_manifest(path / MANIFEST, step))
    except (_Damaged, OSError):
        return False
    return True


def discard_after(directory: Path, step: int) -> None:
    """Deletes the checkpoints of steps beyond `step`, from where a run goes on. Only the one writer may call it."""
    if not directory.exists():
        return
    with disk_errors(directory, 0):
        _recover(directory)
        for later in (found for found in steps(directory) if found > step):
            _remove(directory / str(later))
        fsync_directory(directory)


# ---- writing


def _manifest(step: int, leaves: Sequence[Leaf], blocks: Sequence[bytes | memoryview], metadata: Mapping[str, Any]) -> bytes:
    file_digest = hashlib.sha256()
    for block in blocks:
        file_digest.update(block)
    return _encode(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "step": step,
            "files": {ARRAYS: file_digest.hexdigest()},
            "leaves": [
                {**leaf._asdict(), "sha256": hashlib.sha256(block).hexdigest()}
                for leaf, block in zip(leaves, blocks[1:], strict=True)
            ],
            "metadata": json.loads(json.dumps(dict(metadata), allow_nan=False)),  # keys that are not strings become so
        }
    )


def _encode(manifest: Any) -> bytes:
    """The one way to write a manifest, so that any other byte is damage."""
    body = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{{"manifest": {body},\n"sha256": "{digest}"}}\n'.encode()


def _make_directory(directory: Path) -> None:
    if not directory.exists():
        directory.mkdir(parents=True)
        fsync_directory(directory.parent)


def _write(temporary: Path, blocks: Sequence[bytes | memoryview], manifest: bytes) -> Path:
    temporary.mkdir()
    write_synced(temporary / ARRAYS, blocks)
    write_synced(temporary / MANIFEST, [manifest])
    fsync_directory(temporary)
    return temporary


def _publish(temporary: Path, final: Path) -> None:
    """Gives a complete checkpoint its name. A kill between the renames leaves the replaced one, which `_find` knows."""
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    if os.path.lexists(final):
        os.rename(final, replaced)
    os.rename(temporary, final)
    fsync_directory(final.parent)
    if os.path.lexists(replaced):
        _remove(replaced)


def _recover(directory: Path) -> None:
    """Clears away what a killed or failed save left, and gives a replaced checkpoint its name back if it has no successor."""
    for name in os.listdir(directory):
        path = directory / name
        if name.startswith(_TEMPORARY):
            _delete(path)
        elif name.startswith(_REPLACED):
            final = directory / name.removeprefix(_REPLACED)
            if os.path.lexists(final):
                _remove(path)
            else:
                os.rename(path, final)


def _prune(directory: Path, step: int, keep: int) -> None:
    kept = [found for found in steps(directory) if found <= step][-keep:]
    for unwanted in set(steps(directory)).difference(kept):
        _remove(directory / str(unwanted))


def _remove(path: Path) -> None:
    """Deletes a checkpoint, under a temporary name first: half of one must not look like a whole one."""
    doomed = path.with_name(f"{_TEMPORARY}doomed-{path.name}")
    os.rename(path, doomed)
    _delete(doomed)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


# ---- reading


def _find(directory: Path) -> dict[int, Path]:
    try:
        names = sorted(os.listdir(directory))  # "." sorts before digits, so a replaced checkpoint yields to its successor
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"cannot read {directory}: {error.strerror or error}") from error
    matches = (_STEP_NAME.fullmatch(name) for name in names)
    return {int(match[2]): directory / match[0] for match in matches if match}


def _read(path: Path, step: int, expected: Sequence[Leaf]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Returns the arrays in the order of `expected`, and the metadata."""
    manifest = _parse_manifest(path / MANIFEST, step)
    try:
        _verify_file(path / ARRAYS, manifest)
        _check_fits(path, manifest.leaves, expected)  # before anything is sized by what the file claims
        arrays = _read_arrays(path / ARRAYS, manifest)
    except OSError as error:
        raise _Damaged(f"{path / ARRAYS}: {error.strerror or error}") from error
    return [arrays[leaf.path] for leaf in expected], manifest.metadata


def _parse_manifest(path: Path, step: int) -> _Manifest:
    try:
        data = path.read_bytes()
        content = json.loads(data)["manifest"]
        if _encode(content) != data:
            raise _Damaged(f"{path}: its SHA-256 does not match")
        _check_kind(path, content, step)
        leaves = [_parse_leaf(entry) for entry in content["leaves"]]
        if len({leaf.path for leaf in leaves}) < len(leaves):
            raise ValueError("two leaves of one name")
        digests = [entry["sha256"] for entry in content["leaves"]]
        return _Manifest(leaves, digests, content["files"][ARRAYS], dict(content["metadata"]))
    except OSError as error:
        raise _Damaged(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Damaged(f"{path}: not a checkpoint's manifest ({type(error).__name__}: {error})") from error


def _check_kind(path: Path, content: dict[str, Any], step: int) -> None:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r}")
    if content["format_version"] != FORMAT_VERSION:
        raise CheckpointError(f"{path}: format version {content['format_version']!r}, this release reads {FORMAT_VERSION}")
    if content["step"] != step:
        raise ValueError(f"of step {content['step']!r}")


def _parse_leaf(entry: dict[str, Any]) -> Leaf:
    leaf = Leaf(entry["path"], entry["dtype"], tuple(map(operator.index, entry["shape"])), entry["key_impl"])
    if not isinstance(leaf.path, str) or leaf.dtype not in SAFETENSORS_NAMES or min(leaf.shape, default=0) < 0:
        raise ValueError(f"leaf {leaf.path!r} is {leaf.dtype!r} of shape {leaf.shape}")
    return leaf


def _verify_file(path: Path, manifest: _Manifest) -> None:
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != manifest.file_digest:
            raise _Damaged(f"{path}: its SHA-256 does not match")


def _check_fits(path: Path, stored: Sequence[Leaf], expected: Sequence[Leaf]) -> None:
    lines = differences(stored, expected)
    if len(lines) > _MAX_DIFFERENCES:
        lines[_MAX_DIFFERENCES - 1 :] = [f"and {len(lines) - _MAX_DIFFERENCES + 1} more"]
    if lines:
        raise CheckpointError("\n".join([f"checkpoint {path} does not fit:", *lines]))


def _read_arrays(path: Path, manifest: _Manifest) -> dict[str, np.ndarray]:
    arrays = {}
    with open(path, "rb") as file:
        file.seek(-sum(leaf.nbytes for leaf in manifest.leaves), os.SEEK_END)
        for leaf, digest in zip(manifest.leaves, manifest.leaf_digests, strict=True):
            data = bytearray(leaf.nbytes)
            if file.readinto(data) != leaf.nbytes or hashlib.sha256(data).hexdigest() != digest:
                raise _Damaged(f"{path}: leaf {leaf.path} does not match its SHA-256")
            arrays[leaf.path] = from_raw(leaf, data)
    return arrays
