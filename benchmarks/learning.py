"""Trains every config as a user would, and records what it reached and how long the whole command took.

    python benchmarks/learning.py [CONFIG ...] [--seeds N] [--name learning]

Each seed is a process of its own with an empty compilation cache, so compiling is part of the time. Writes
`benchmarks/results/NAME.json` and prints a table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jaxagent import metrics, provenance
from jaxagent.files import write_json
from jaxagent.rundir import RunDir

ROOT = Path(__file__).parent.parent
COLUMNS = ("success_rate", "return_mean", "length_mean")


def train(config: Path, seed: int, folder: Path) -> dict[str, Any]:
    """One command from start to end. Times are seconds from the start of the process."""
    run = RunDir(folder / f"{config.stem}-{seed}")
    command = [sys.executable, "-m", "jaxagent", "train", str(config), "--out", str(run.path), "--seed", str(seed)]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / f"cache-{config.stem}-{seed}")}
    began, wall = time.monotonic(), time.time()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    seconds = time.monotonic() - began
    rows = metrics.read(run.metrics)
    evaluation = json.loads(run.evaluation.read_text())
    return {
        "seed": seed,
        "seconds": seconds,
        "first_metrics_s": rows[0]["timing"]["time"] - wall,
        "env_steps": rows[-1]["env_steps"],
        **{name: evaluation[name] for name in ("episodes", *COLUMNS)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="*", type=Path, default=sorted((ROOT / "configs").glob("[!s]*.toml")))  # no sweeps
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--name", default="learning")
    arguments = parser.parse_args()
    path = ROOT / "benchmarks" / "results" / f"{arguments.name}.json"
    found: dict[str, Any] = {"machine": machine(), "configs": {}}
    with tempfile.TemporaryDirectory() as folder:
        for config in arguments.configs:
            for seed in range(arguments.seeds):
                result = train(config, seed, Path(folder))
                found["configs"].setdefault(config.stem, []).append(result)
                shown = "  ".join(f"{name} {result[name]:.4g}" for name in COLUMNS if result[name] is not None)
                times = f"{result['seconds']:6.1f} s (first metrics {result['first_metrics_s']:.1f} s)"
                print(f"{config.stem:24} seed {seed}  {times}  {shown}", flush=True)
                write_json(path, found)


def machine() -> dict[str, Any]:
    """Versions, devices and git state, without names and paths of this machine."""
    described = provenance.describe([])
    return {name: described[name] for name in ("python", "packages", "devices", "git")} | {"cpus": os.cpu_count()}


if __name__ == "__main__":
    main()
