"""What this installation consists of, and what is known not to work with it."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

from jaxagent import provenance

_OLDEST_JAX, _FIRST_UNTRIED_JAX = (0, 10, 2), (0, 12)
_OLDEST_PYTHON = (3, 11)
_EXTRAS = {
    "ray": "ray",
    "optuna": "optuna",
    "submitit": "slurm",
    "tensorboardX": "trackers",
    "wandb": "trackers",
    "gymnasium": "farama",
    "minigrid": "farama",
    "pytest": "dev",
}


def examine() -> dict[str, Any]:
    """`provenance.describe`, and beside it `cache` (of compiled programs), `optional` packages and `problems`. Starts JAX.

    `optional` has the version of each, None where it is not installed, and `missing` what installs those.
    """
    described = provenance.describe()
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return {
        **described,
        "cache": {"directory": cache, "writable": cache is not None and _is_writable(Path(cache))},
        "optional": (optional := {package: provenance.version(package) for package in _EXTRAS}),
        "missing": {package: f"jaxagent[{_EXTRAS[package]}]" for package, version in optional.items() if version is None},
        "problems": problems(described, cache),
    }


def problems(described: dict[str, Any], cache: str | None) -> list[str]:
    """What is known to fail or to mislead, one line each."""
    found = []
    packages, variables = described["packages"], described["variables"]
    jax, jaxlib = packages.get("jax", "0"), packages.get("jaxlib", "0")
    if not _OLDEST_JAX <= _numbers(jax) < _FIRST_UNTRIED_JAX:
        found.append(f"jax {jax}: expected {_dotted(_OLDEST_JAX)} or newer, below {_dotted(_FIRST_UNTRIED_JAX)}")
    if _numbers(jax)[:2] != _numbers(jaxlib)[:2]:
        found.append(f"jax {jax} with jaxlib {jaxlib}: expected the same version of both")
    if sys.version_info < _OLDEST_PYTHON:
        found.append(f"Python {platform.python_version()}: expected {_dotted(_OLDEST_PYTHON)} or newer")
    if "gymnax" in packages and _numbers(packages["gymnax"]) < (1, 0):
        found.append(f"gymnax {packages['gymnax']}: expected 1.0 or newer, whose step returns six values")
    if variables.get("JAX_ENABLE_X64", "0").lower() in ("1", "true"):
        found.append("JAX_ENABLE_X64 is set: runs are made for 32 bits, and slower and not comparable with 64")
    if variables.get("JAX_DISABLE_JIT", "0").lower() in ("1", "true"):
        found.append("JAX_DISABLE_JIT is set: nothing is compiled, training takes thousands of times longer")
    if cache is not None and not _is_writable(Path(cache)):
        found.append(f"JAX_COMPILATION_CACHE_DIR {cache}: cannot be written, so every start compiles anew")
    return found


def text(found: dict[str, Any]) -> str:
    """The examination for a person."""
    devices, cache = found["devices"], found["cache"]
    lines = [
        f"python    {found['python']}",
        *(f"{name:9} {version}" for name, version in found["packages"].items() if name not in found["optional"]),
        *(f"optional  {name} {version}" for name, version in found["optional"].items() if version is not None),
        *(f"optional  {name}: not installed: pip install '{extra}'" for name, extra in found["missing"].items()),
        f"devices   {devices['all']} {devices['platform']} ({devices['kind']}), {found['host']['usable_cpus']} CPU cores",
        f"cache     {cache['directory'] or 'none: set JAX_COMPILATION_CACHE_DIR to compile once and not at every start'}",
        *(f"variable  {name}={value}" for name, value in found["variables"].items()),
        *(f"problem   {problem}" for problem in found["problems"]),
    ]
    return "\n".join(lines if found["problems"] else [*lines, "no problems found"])


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    parts = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _is_writable(path: Path) -> bool:
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
