"""The directory of a run: what lies where in it, and one writer at a time."""

import errno
import fcntl
import json
import logging
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jaxagent import provenance
from jaxagent.errors import LockError, UsageError
from jaxagent.files import disk_errors, remove_litter, write_atomic, write_json

_LOCK = "lock"
_EARLY = re.compile(r"lock|env\.json|\.(env\.json|config\.toml)\.tmp-\d+")  # what `create` writes before the configuration
_MAX_NAME = 64  # characters of a run's name before its time

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunDir:
    """Names of the files of a run. Making one touches nothing; see `create`, `reopen` and `find`."""

    path: Path

    @property
    def config(self) -> Path:
        """The fully resolved configuration."""
        return self.path / "config.toml"

    @property
    def env(self) -> Path:
        """What ran: `provenance.describe`, one entry for each start."""
        return self.path / "env.json"

    @property
    def metrics(self) -> Path:
        """One row a segment."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluation(self) -> Path:
        return self.path / "eval.json"

    @property
    def curves(self) -> Path:
        return self.path / "curves.png"

    @property
    def episode(self) -> Path:
        return self.path / "episode.gif"

    @property
    def tracking(self) -> Path:
        """What trackers write, a directory each."""
        return self.path / "tracking"


def new_path(name: str, root: Path = Path("runs")) -> Path:
    """Makes a new, empty directory `ROOT/NAME-YYYYmmdd-HHMMSS`, with a number behind it if that is taken.

    Characters of `name` other than letters, digits and `._-` become dashes.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:_MAX_NAME] or "run"
    base = root / f"{safe}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = base, 1
    with disk_errors(base, 0):
        root.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
                path = base.with_name(f"{base.name}-{number}")
            else:
                return path


@contextmanager
def create(path: Path, *, config: str, argv: Sequence[str] | None = None) -> Iterator[RunDir]:
    """Starts a run in a new or an empty directory, locked while the context lasts. Writes `config.toml` and `env.json`.

    Raises:
      UsageError: there is something in the way. Nothing is written.
      LockError: another process is starting a run or running there.
      ResourceError: the disk is full or refuses.
    """
    if not (path / _LOCK).exists():
        _expect_empty(path)
    with disk_errors(path, 0):
        path.mkdir(parents=True, exist_ok=True)
    with lock(path):
        _expect_empty(path)
        run = _tidy(path)
        write_json(run.env, [provenance.describe(argv)])
        write_atomic(run.config, config.encode())  # the last, because it is what makes a run of a directory
        yield run


@contextmanager
def reopen(path: Path, *, argv: Sequence[str] | None = None) -> Iterator[RunDir]:
    """Goes on with a run, locked while the context lasts. Removes litter of a killed writer, adds an entry to `env.json`.

    Raises:
      UsageError: there is no run.
      LockError: another process runs there.
      ResourceError: the disk is full or refuses.
    """
    run = find(path)
    with lock(path):
        _tidy(path)
        write_json(run.env, [*earlier_starts(run.env), provenance.describe(argv)])
        yield run


def _tidy(path: Path) -> RunDir:
    with disk_errors(path, 0):
        remove_litter(path)
    return RunDir(path)


def find(path: Path) -> RunDir:
    """A run to read, without a lock.

    Raises:
      UsageError: there is no run.
    """
    run = RunDir(path)
    if not run.config.is_file():
        raise UsageError(f"no run in {path}: expected a directory with {run.config.name}")
    return run


def _expect_empty(path: Path) -> None:
    """An earlier start that was killed before it wrote its configuration does not count."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot start a run in {path}: {error.strerror}") from error
    if _LOCK in names:
        names = [name for name in names if not _EARLY.fullmatch(name)]
    if RunDir(path).config.name in names:
        raise UsageError(f"{path} holds a run already\nresume it (jaxagent resume {path}) or choose another directory")
    if names:
        raise UsageError(f"{path} is not empty: it holds {min(names)}\nchoose a new or an empty directory")


def earlier_starts(path: Path) -> list[Any]:
    """The entries of an `env.json` so far; none if it is new, or damaged, which a warning says."""
    if not path.exists():
        return []
    try:
        starts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        _log.warning("%s cannot be read and is begun anew", path)
        return []
    return starts if isinstance(starts, list) else [starts]


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Keeps other writers out of a directory while the context lasts.

    The kernel holds the lock (`flock`), so it goes with its process however that ends; the file stays and only says who
    holds it. Where a file system has no such locks, a warning is all.

    Raises:
      LockError: another process holds it; names which.
      ResourceError: the lock file cannot be written.
    """
    file = path / _LOCK
    with disk_errors(file, 0):
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(descriptor, file)
        with disk_errors(file, 0):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_holder()).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, file: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _describe_holder(os.pread(descriptor, 4096, 0))
        raise LockError(f"{file.parent} is being written by {holder}\nwait until it ends, or stop it") from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        _log.warning("%s cannot be locked (%s): make sure that nothing else writes there", file.parent, error.strerror)


def _holder() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "boot_id": _boot_id(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _describe_holder(data: bytes) -> str:
    try:
        holder = json.loads(data)
        return f"process {holder['pid']:d} on {holder['host']!r} since {holder['since']!r}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
