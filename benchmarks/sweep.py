"""What a sweep costs beside the runs that it is made of, and what successive halving saves.

    python benchmarks/sweep.py [--spec FILE] [--halving FILE] [--launches 8] [--name sweep]

Measured one after the other, on a machine that does nothing else:

- one run in the steady state (`bench_train`), the unit of what follows;
- so many launches of `jaxagent train` with the sweep's first settings, whole, starting and compiling included;
- the sweep, as a command, with an empty directory, and how many lanes were done when;
- the same with halving, and how good its best is.

Writes `benchmarks/results/NAME.json` and `NAME.png`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from learning import ROOT, machine

from jaxagent.files import write_json

_POLL = 2.0  # seconds between looks at a ledger


def steady_seconds(spec: Path) -> float:
    """Seconds of compute that one lane's budget takes in a run of its own, after it has compiled."""
    code = (
        "import sys, json; from pathlib import Path; from jaxagent import bench; from jaxagent.sweep import spec;"
        "sweep = spec.read(Path(sys.argv[1])); trial = sweep.trial(sweep.settings()[0]);"
        "found = bench.bench_train(trial.trainer, num_updates=8, repeats=7);"
        "print(json.dumps([found['steps_per_s'], trial.num_updates * trial.trainer.steps_per_update]))"
    )
    done = subprocess.run([sys.executable, "-c", code, spec], capture_output=True, text=True, check=True)
    rate, steps = json.loads(done.stdout.splitlines()[-1])
    return steps / rate


def launch_seconds(report: dict[str, Any], count: int, directory: Path) -> list[float]:
    """Whole commands, those that the report gives for its first settings, a seed each."""
    seconds = []
    for number, row in enumerate(report["leaderboard"][:count]):
        command = row["commands"][0].split(" --seeds ")[0].split()
        began = time.perf_counter()
        out = ["--out", str(directory / str(number))]
        subprocess.run([sys.executable, "-m", *command, *out], check=True, capture_output=True, cwd=ROOT)
        seconds.append(time.perf_counter() - began)
    return seconds


def sweep_seconds(spec: Path, directory: Path) -> tuple[float, list[tuple[float, int]]]:
    """Of the whole command, and (seconds, lanes done) on the way."""
    import pyarrow.compute as pc

    from jaxagent.sweep import ledger

    began, timeline = time.perf_counter(), list[tuple[float, int]]()
    command = [sys.executable, "-m", "jaxagent", "sweep", os.path.relpath(spec, ROOT), "--out", str(directory)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(_POLL)
        if (directory / ledger.LEDGER).exists():
            done = pc.sum(pc.equal(ledger.read(directory)["status"], "done")).as_py() or 0
            if not timeline or done > timeline[-1][1]:
                timeline.append((time.perf_counter() - began, done))
    if process.returncode not in (0, 1):  # 1: some lanes failed, which the ledger says
        raise SystemExit(f"the sweep ended with {process.returncode}")
    return time.perf_counter() - began, timeline


def report_of(directory: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "jaxagent", "report", str(directory), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)


def plot(found: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    seconds, lanes = zip(*found["full"]["timeline"], strict=True)
    axis.plot(lanes, seconds, "o-", markersize=3, label="sweep")
    axis.plot(lanes, [found["steady_s"] * n for n in lanes], "--", label="as many runs in the steady state")
    axis.set(xlabel="lanes trained", ylabel="seconds")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, default=ROOT / "configs" / "sweep_collector.toml")
    parser.add_argument("--halving", type=Path, default=ROOT / "configs" / "sweep_collector_halving.toml")
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--name", default="sweep")
    arguments = parser.parse_args()
    results = ROOT / "benchmarks" / "results"
    found: dict[str, Any] = {"machine": machine(), "steady_s": steady_seconds(arguments.spec)}
    with tempfile.TemporaryDirectory() as scratch:
        for name, spec in (("halving", arguments.halving), ("full", arguments.spec)):
            directory = Path(scratch) / name
            seconds, timeline = sweep_seconds(spec, directory)
            report = report_of(directory)
            best = report["leaderboard"][0]
            found[name] = {"seconds": seconds, "timeline": timeline, "best": best, "lanes": timeline[-1][1]}
            print(f"{name}: {seconds:.0f} s, {timeline[-1][1]} lanes to the end; best {best}", flush=True)
            write_json(results / f"{arguments.name}.json", found)
        lanes = found["full"]["lanes"]
        launches = launch_seconds(report, arguments.launches, Path(scratch))
    found["launch_s"] = launches
    found["of_steady"] = found["full"]["seconds"] / (lanes * found["steady_s"])
    found["of_launches"] = found["full"]["seconds"] / (lanes * statistics.mean(launches))
    found["halving_of_full"] = found["halving"]["seconds"] / found["full"]["seconds"]
    write_json(results / f"{arguments.name}.json", found)
    plot(found, results / f"{arguments.name}.png")
    print(f"{lanes} lanes in {found['full']['seconds']:.0f} s: {found['of_steady']:.2f} of as many runs' steady compute")
    print(f"{found['of_launches']:.2f} of as many launches ({statistics.mean(launches):.1f} s each)")
    print(f"halving: {found['halving_of_full']:.2f} of the full sweep's time")


if __name__ == "__main__":
    main()
