"""One run on several devices, and on the devices of several processes by `jax.distributed`.

Every process runs the same program and reads the same run directory; the leader, process 0, alone writes to it. A process that
ends early takes the others with it, within seconds where sums between CPUs break off and within a minute elsewhere.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh

from jaxagent.errors import JaxagentError, UsageError

Devices = int | Literal["all"]

AXIS = "device"
COUNTS = (1, 2, 4, 8)  # of devices that train alike
_HEARTBEAT_SECONDS = 20  # without a sign of life, after which a process counts as lost
_START_SECONDS = 300  # that processes wait for each other at the start
_END_SECONDS = 600  # and at the end, when the leader draws curves and an episode
_STATUS = re.compile(r"(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def initialize(coordinator: str | None, *, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Joins the processes of a run; nothing to do without a coordinator. Call it before anything looks for devices.

    Args:
      coordinator: `HOST:PORT`, where process 0 waits for the others (on no other interface if that is a loopback address), or
        `auto`: all is taken from the cluster, such as SLURM.
      num_processes: how many there are.
      process_id: which of them this is, from 0.

    Raises:
      UsageError: arguments that are missing or wrong.
      JaxagentError: the processes did not meet.
    """
    if coordinator is None or coordinator == "auto":
        if (num_processes, process_id) != (None, None):
            raise UsageError("--coordinator: expected HOST:PORT beside --num-processes and --process-id")
        arguments: dict[str, object] = {}
    else:
        arguments = _by_hand(coordinator, num_processes, process_id)
    if coordinator is None:
        return
    try:
        with _without_proxies():
            jax.distributed.initialize(
                **arguments,  # type: ignore[arg-type]
                initialization_timeout=_START_SECONDS,
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=_END_SECONDS,
            )
    except (RuntimeError, ValueError) as error:
        raise JaxagentError(f"--coordinator {coordinator}: the processes did not meet: {_first_line(error)}") from error


def _by_hand(coordinator: str, num_processes: int | None, process_id: int | None) -> dict[str, object]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--coordinator: expected HOST:PORT or auto, got {coordinator}")
    if num_processes is None or num_processes < 1:
        raise UsageError(f"--num-processes: expected at least 1, got {num_processes}")
    if process_id is None or not 0 <= process_id < num_processes:
        raise UsageError(f"--process-id: expected 0 to {num_processes - 1}, got {process_id}")
    return {
        "coordinator_address": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
        "cluster_detection_method": "deactivate",
        "coordinator_bind_address": coordinator if host in _LOOPBACK else None,
    }


@contextmanager
def _without_proxies() -> Iterator[None]:
    """Processes speak to each other directly; through a proxy they would wait for ever."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.lower().endswith("_proxy")}
    try:
        yield
    finally:
        os.environ.update(hidden)


def count_processors(devices: Devices | None) -> None:
    """Makes processors count as devices, for a run on several where there is nothing but CPUs: as many as it asks for.

    Call it before a backend starts; afterwards, with several processes, and where `XLA_FLAGS` says how many there are, it
    changes nothing.
    """
    if devices is None or jax.distributed.is_initialized() or "host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    count = max(n for n in COUNTS if n <= processors()) if devices == "all" else devices
    with suppress(RuntimeError):  # a backend has started
        jax.config.update("jax_num_cpu_devices", count)


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def mesh(devices: Devices) -> Mesh:
    """A mesh with one axis.

    Args:
      devices: how many, or `all` of all processes.

    Raises:
      ValueError: there are fewer, or some of the processes' devices would be left out.
    """
    found = jax.devices()
    count = len(found) if devices == "all" else devices
    if count > len(found):
        raise ValueError(f"devices: expected at most the {len(found)} that there are, got {count}")
    if count < len(found) and jax.process_count() > 1:
        raise ValueError(f"devices: expected all {len(found)} of the {jax.process_count()} processes, got {count}")
    return Mesh(np.array(found[:count]), (AXIS,))


def local_mesh() -> Mesh:
    """A mesh of one device of this process, for what is done with a run elsewhere."""
    return Mesh(np.array(jax.local_devices()[:1]), (AXIS,))


def leads() -> bool:
    """Whether this is the process that writes."""
    return jax.process_index() == 0


def from_all(value: int) -> list[int]:
    """The value that each process gives. All must call it."""
    if jax.process_count() == 1:
        return [value]
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(np.int32(value)).tolist()


@contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Says what happened where sums with other processes break off.

    Raises:
      JaxagentError: the connection to another process is lost.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if jax.process_count() == 1 or not _STATUS.match(str(error)):
            raise
        raise JaxagentError(
            f"process {jax.process_index()} lost the connection to another of the {jax.process_count()} processes, which "
            f"most likely was killed or failed; what it printed says why\n{_first_line(error)}"
        ) from error


def leave(code: int) -> NoReturn:
    """Ends a process that failed; at once if it is one of several, which an orderly end would wait for."""
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
