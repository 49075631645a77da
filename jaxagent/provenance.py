"""Where a result comes from: versions, devices, host, git state, command."""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import jax

_PACKAGES = ("jaxagent", "jax", "jaxlib", "flax", "optax", "numpy", "chex", "gymnax", "gymnasium", "minigrid")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LIBTPU_INIT_ARGS")  # beside JAX_* and XLA_*
_GIT_SECONDS = 5.0


def describe(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Describes this process as JSON values. Starts the JAX backend if nothing has.

    Args:
      argv: the command to record; `sys.argv` by default.
    """
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(sys.argv if argv is None else argv),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := version(name))},
        "devices": _devices(),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        },
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name in _VARIABLES or name.startswith(("JAX_", "XLA_"))
        },
        "git": git_state(),
    }


def git_state() -> dict[str, Any] | None:
    """The commit of the working directory and whether files that git tracks differ from it; None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def version(package: str) -> str | None:
    """Of an installed package, None if it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    devices = jax.local_devices()
    return {"platform": devices[0].platform, "kind": devices[0].device_kind, "local": len(devices), "all": jax.device_count()}
