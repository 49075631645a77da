"""Experiment trackers that a run reports to beside its own log: TensorBoard, and Weights & Biases.

A tracker only looks. Each has a thread of its own behind a bounded queue, so the run never waits for one; one that fails, hangs
or cannot keep up is given up with a warning. All they write lies in the run's directory, under `tracking/`.
"""

import json
import logging
import math
import os
import platform
import struct
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from queue import Full, Queue
from typing import Any, Literal, Protocol

import numpy as np

from jaxagent.errors import UsageError
from jaxagent.files import write_json
from jaxagent.rundir import RunDir

Name = Literal["tensorboard", "wandb"]
Track = Callable[[int, Mapping[str, Any]], None]  # of an update and its metrics row

_MOST_ROWS = 1000  # that wait for a tracker
_CLOSE_S = 15.0  # to pass on the last rows
_PACKAGES: dict[str, str] = {"tensorboard": "tensorboardX", "wandb": "wandb"}

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Used by one thread; may raise anything and take any time."""

    def log(self, update: int, env_steps: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files, a new one each start. Steps are environment steps.

    A file begins with the word to forget what earlier files hold from its first step on: what the run had logged beyond the
    checkpoint that it goes on from. The library's own writer works in a thread that fails unnoticed; here errors are seen.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() / 1e9:.9f}.{platform.node()}"  # TensorBoard reads them in this order
        self._file = open(directory / name, "xb", buffering=0)  # noqa: SIM115
        self._config: Mapping[str, Any] | None = config

    def log(self, update: int, env_steps: int, values: Mapping[str, float]) -> None:
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import text

        if self._config is not None:
            self._write(file_version="brain.Event:2")
            self._write(step=env_steps, session_log=SessionLog(status=SessionLog.START))
            config = "".join(f"    {line}\n" for line in json.dumps(self._config, indent=2).splitlines())  # code in Markdown
            self._write(step=env_steps, summary=text("config", config))
            self._config = None
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._write(step=env_steps, summary=summary)

    def _write(self, **fields: Any) -> None:
        """One event as a record of a TFRecord file."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        content = Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(content))
        record = length + struct.pack("<I", masked_crc32c(length)) + content + struct.pack("<I", masked_crc32c(content))
        if self._file.write(record) < len(record):
            raise OSError(f"{self._file.name} takes no more")

    def close(self) -> None:
        self._file.close()


class WandB:
    """A Weights & Biases run, the same one after a resume. Steps are updates; `env_steps` is the axis of all curves.

    `wandb.json` remembers its id and the last update logged, which the server would know, but not files written offline.
    `WANDB_MODE`, `WANDB_PROJECT` and the library's other variables hold.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        import wandb

        directory.mkdir(parents=True, exist_ok=True)
        for variable in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # else they lie in the user's home
            os.environ.setdefault(variable, str(directory.absolute() / "cache"))
        settings = wandb.setup().settings
        if settings.mode not in ("offline", "disabled") and not wandb.login(prompt=False):
            raise UsageError("not logged in: `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline")
        self._file = directory / "wandb.json"
        known = json.loads(self._file.read_bytes()) if self._file.exists() else {}
        self._last_update: int = known.get("update", 0)
        self._run = wandb.init(
            dir=directory,
            id=known.get("id"),
            resume="allow",
            project=settings.project or "jaxagent",
            name=directory.absolute().parents[1].name,
            config=dict(config),
            allow_val_change=True,  # `resume --updates`
            settings=wandb.Settings(console="off", quiet=True, init_timeout=60, finish_timeout=_CLOSE_S),
        )
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def log(self, update: int, env_steps: int, values: Mapping[str, float]) -> None:
        if update > self._last_update:
            self._run.log({"env_steps": env_steps, **values}, step=update)
            write_json(self._file, {"id": self._run.id, "update": update})

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB}


def check(names: Sequence[str]) -> None:
    """Raises UsageError that says what to install, if a tracker's package is missing."""
    for name in names:
        if find_spec(_PACKAGES[name]) is None:
            raise UsageError(f'--track {name}: {_PACKAGES[name]} is not installed\npip install "jaxagent[trackers]"')


@contextmanager
def tracking(names: Sequence[str], run: RunDir) -> Iterator[Track]:
    """Hands what it is called with to all the trackers, of which each may fail without harm.

    The trackers get the run's configuration at the start. Leaving the context waits for them, but not long.
    """
    threads = [_Thread(name, run) for name in dict.fromkeys(names)]

    def track(update: int, row: Mapping[str, Any]) -> None:
        for thread in threads:
            thread.put((update, row))

    try:
        yield track
    finally:
        deadline = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.put(None)
        for thread in threads:
            thread.join(deadline - time.monotonic())


class _Thread:
    """What stands between a run and one tracker."""

    def __init__(self, name: str, run: RunDir) -> None:
        self._name, self._run = name, run
        self._rows: Queue[tuple[int, Mapping[str, Any]] | None] = Queue(_MOST_ROWS)
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, row: tuple[int, Mapping[str, Any]] | None) -> None:
        if not self._given_up.is_set():
            try:
                self._rows.put_nowait(row)
            except Full:
                self._give_up(f"{_MOST_ROWS} rows wait for it")

    def join(self, seconds: float) -> None:
        if not self._given_up.is_set():
            self._thread.join(max(0.0, seconds))
            if self._thread.is_alive():
                self._give_up("it does not come to an end")

    def _work(self) -> None:
        try:
            config = tomllib.loads(self._run.config.read_text())
            with closing(TRACKERS[self._name](self._run.tracking / self._name, config)) as tracker:
                while (item := self._rows.get()) is not None and not self._given_up.is_set():
                    update, row = item
                    tracker.log(update, int(np.mean(row["env_steps"])), scalars(row))
        except (Exception, SystemExit) as error:
            first_line = (str(error).splitlines() or [""])[0]
            self._give_up(f"{type(error).__name__}: {first_line}")

    def _give_up(self, reason: str) -> None:
        if not self._given_up.is_set():
            self._given_up.set()
            _log.warning("the run goes on without %s: %s", self._name, reason)


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Named numbers of a metrics row, those of an evaluation as `eval/NAME`; what is not known (NaN, None) is left out.

    Of several seeds, NAME is the mean over those that know it, and `seed_K/NAME` that of the K-th, from 0 on.
    """
    series: dict[str, Any] = {}
    for name, value in row.items():
        if name not in ("eval", "env_steps"):
            series[name] = np.nanmean(value) if np.any(~np.isnan(value)) else None
            series |= {f"seed_{k}/{name}": one for k, one in enumerate(value)} if np.ndim(value) else {}
    evaluation = row.get("eval", {})
    for prefix, summary in (("", evaluation), *((f"seed_{k}/", one) for k, one in enumerate(evaluation.get("seeds", ())))):
        series |= {f"{prefix}eval/{name}": value for name, value in summary.items() if np.ndim(value) == 0}
    return {name: float(value) for name, value in series.items() if value is not None and not math.isnan(value)}
