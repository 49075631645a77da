"""What the two comparisons share: virtual environments, worker processes, rounds, and facts about the machine.

Standard library only, so that any Python runs it; each system is imported by a worker inside a virtual environment.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
RESULTS = REPO / "benchmarks" / "results"
FLAG_VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "OMP_NUM_THREADS")
REPORTED = {
    *("jax", "jaxlib", "flax", "optax", "chex", "numpy"),
    *("navix", "xminigrid", "minigrid", "gymnasium", "gymnax", "rejax", "distrax"),
}

Record = dict[str, Any]


@dataclass(frozen=True)
class Venv:
    """A virtual environment of its own.

    Attributes:
      name: folder under the cache directory.
      requirements: pinned requirements.
      without_dependencies: pinned packages to install last, without what they ask for.
    """

    name: str
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()

    def ensure(self, cache: Path, base_python: str) -> Path:
        """Makes it unless it is there with these very requirements. Returns its interpreter."""
        folder = cache.resolve() / self.name
        python, stamp = folder / "bin" / "python", folder / "requirements.json"
        wanted = json.dumps([self.requirements, self.without_dependencies])
        if stamp.exists() and stamp.read_text() == wanted:
            return python
        print(f"making {folder}", file=sys.stderr)
        subprocess.run([base_python, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, *self.requirements], check=True)
        if self.without_dependencies:
            subprocess.run([*install, "--no-deps", *self.without_dependencies], check=True)
        stamp.write_text(wanted)
        return python


def base_python(requested: str) -> str:
    """Checks that `requested` starts Python 3.12, which every peer supports under one JAX version."""
    command = [requested, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found = "nothing that runs"
    if found != "3.12":
        raise SystemExit(f"--python: expected an interpreter of Python 3.12, found {found} at {requested!r}")
    return requested


def work(python: Path, worker: str, case: Mapping[str, Any]) -> Record:
    """Runs one case in a fresh process of `python`; returns the JSON object on the worker's last line.

    The compilation cache is off, so that `compile_s` means compiling. What jaxagent says of the machine is dropped, because
    `provenance` says it once for all cases.
    """
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | {"PYTHONPATH": str(REPO)}
    command = [str(python), "-W", "ignore", str(HERE / worker), json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{worker} failed on {dict(case)}:\n{done.stderr[-2000:]}")
    record = json.loads(done.stdout.splitlines()[-1])
    record.pop("machine", None)
    return record


def interleaved(cases: list[Any], rounds: int) -> Iterable[tuple[int, Any]]:
    """Every case once a round, each round starting one case later, so that drift of the machine hits all alike."""
    for r in range(rounds):
        shift = r % max(len(cases), 1)
        for case in cases[shift:] + cases[:shift]:
            yield r, case


def pooled(records: list[Record], steps: int) -> Record:
    """One case's rounds as one record: median and range over all repeats. `steps`: environment steps a repeat."""
    seconds = [s for record in records for s in record["seconds"]]
    return records[0] | {
        "seconds": seconds,
        "compile_s": statistics.median(record["compile_s"] for record in records),
        "steps_per_s": steps / statistics.median(seconds),
        "steps_per_s_min": steps / max(seconds),
        "steps_per_s_max": steps / min(seconds),
    }


def provenance(pythons: Mapping[str, Path]) -> Record:
    """Versions, machine, flags and git state: what a figure needs beside it."""
    return {
        "machine": {"system": platform.system(), "arch": platform.machine(), "cpu": _cpu_model(), "cpus": len(_cpus())},
        "flags": {name: os.environ[name] for name in FLAG_VARIABLES if name in os.environ},
        "git": {"commit": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))},
        "environments": {name: _environment(python) for name, python in pythons.items()},
    }


def save(name: str, payload: Record) -> Path:
    """Writes `benchmarks/results/{name}.json`."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(payload, indent=1) + "\n")
    return path


def plot(python: Path, results: Path) -> None:
    """Draws `results` beside it, with the matplotlib of that environment."""
    subprocess.run([str(python), str(HERE / "plot.py"), str(results)], check=True)


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Columns of text, the first aligned left, the others right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(len(first)), *others]))
    return "\n".join(lines)


def parser(description: str) -> argparse.ArgumentParser:
    """The options that both comparisons have."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--venv", type=Path, default=REPO / ".venv-peers", help="where the virtual environments are kept")
    result.add_argument("--python", default="python3.12", help="interpreter to make them with (3.12)")
    result.add_argument("--rounds", type=int, default=3, help="rounds over all systems")
    result.add_argument("--repeats", type=int, default=3, help="timed repeats a round, after one to warm up")
    result.add_argument("--systems", nargs="+", help="only these systems")
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--quick", action="store_true", help="one small round: shows that all runs, not how fast")
    result.add_argument("--name", help="name of the result files, instead of the script's own")
    return result


def _environment(python: Path) -> Record:
    code = (
        "import importlib.metadata as m, json, platform, jax; d = jax.devices();"
        "print(json.dumps({'python': platform.python_version(), 'devices': [x.device_kind for x in d],"
        "'platform': d[0].platform, 'packages': {p.name.lower(): p.version for p in m.distributions()}}))"
    )
    found = json.loads(subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout)
    return found | {"packages": {name: version for name, version in found["packages"].items() if name in REPORTED}}


def _cpus() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(REPO), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
