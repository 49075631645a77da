"""Many cases, one after the other: training over lanes, over environments and devices, and a suite for an accelerator."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

import jax

from jaxagent.bench import Result, bench_env, bench_train, load_trainer, summary
from jaxagent.files import disk_errors, write_json
from jaxagent.progress import compact
from jaxagent.train import Trainer

Curves = Mapping[str, Sequence[tuple[int, float]]]  # sizes and steps a second


class Case(NamedTuple):
    """Something to measure."""

    about: Result  # what is known before
    run: Callable[[], Result]


def run_all(cases: Sequence[Case], *, file: Path | None = None, budget_s: float = math.inf) -> Result:
    """Measures the cases in their order. A case that does not fit into memory is recorded as such.

    Args:
      file: JSON, written anew after each case, so that a kill loses one; its directory is made if need be.
      budget_s: seconds after which no case is started.

    Returns:
      How many cases were `planned`, and the `results` of those measured.
    """
    if file is not None:
        with disk_errors(file, 0):
            file.parent.mkdir(parents=True, exist_ok=True)
    started, report = time.monotonic(), Result(planned=len(cases), results=[])
    for case in cases:
        if time.monotonic() - started > budget_s:
            break
        report["results"].append(_measured(case))
        if file is not None:
            write_json(file, report)
    return report


def _measured(case: Case) -> Result:
    try:
        return case.run()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return case.about | {"error": "out of memory"}


# over lanes, environments and devices -----------------------------------------------------------------------------------------


def sweep_cases(
    trainer: Trainer, name: str, *, lanes: Sequence[int], devices: int = 1, num_updates: int = 4, repeats: int = 5
) -> list[Case]:
    """Whole updates of several runs at once, against how many; `devices` share them."""
    return [
        _training(trainer, f"sweep/{name}", lanes=count, devices=devices, num_updates=num_updates, repeats=repeats)
        for count in lanes
    ]


def scale_cases(
    trainer: Trainer,
    name: str,
    *,
    num_envs: Sequence[int],
    devices: Sequence[int] = (1,),
    num_updates: int = 4,
    repeats: int = 5,
) -> list[Case]:
    """Whole updates against the parallel environments of a run and the devices, each of which has a run of its own."""
    return [
        _training(
            dataclasses.replace(trainer, num_envs=size),
            f"scale/{name}",
            lanes=count,
            devices=count,
            num_updates=num_updates,
            repeats=repeats,
        )
        for count in devices
        for size in num_envs
    ]


def _training(trainer: Trainer, case: str, *, lanes: int, devices: int, num_updates: int, repeats: int) -> Case:
    about: Result = {"case": case, "num_envs": trainer.num_envs, "lanes": lanes, "devices": devices}
    run = partial(bench_train, trainer, case=case, lanes=lanes, devices=devices, num_updates=num_updates, repeats=repeats)
    return Case(about, run)


def curves(results: Sequence[Result], size: str) -> Curves:
    """Steps a second by what a result calls `size` (`lanes` or `num_envs`), a curve for each number of devices."""
    found: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        if "error" not in result:
            label = f"{result['devices']} device{'s' if result['devices'] > 1 else ''}"
            found.setdefault(label, []).append((result[size], result["steps_per_s"]))
    return {label: sorted(curve) for label, curve in found.items()}


def knee(curve: Sequence[tuple[int, float]]) -> int | None:
    """The first size from which growing pays less than half: the slope, log to log, falls below 1/2. None if it never does."""
    for (size, rate), (larger, faster) in pairwise(curve):
        if math.log(faster / rate) < 0.5 * math.log(larger / size):
            return size
    return None


def save_plot(path: Path, curves: Curves, *, title: str, size: str) -> None:
    """Draws the curves, log to log, with their knees."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    for label, curve in curves.items():
        (line,) = axis.loglog(*zip(*curve, strict=True), "o-", label=label)
        bend = knee(curve)
        if bend is not None:
            axis.plot(bend, dict(curve)[bend], "o", markersize=12, fillstyle="none", color=line.get_color())
            axis.annotate(f"knee: {bend}", (bend, dict(curve)[bend]), xytext=(8, -14), textcoords="offset points")
    ticks = sorted({size for curve in curves.values() for size, _ in curve})
    axis.set_xticks(ticks, [compact(tick) for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.yaxis.set_major_formatter(lambda rate, _: compact(rate))
    axis.yaxis.set_minor_formatter(lambda rate, _: compact(rate))
    axis.set(title=title, xlabel=size.replace("_", " "), ylabel="environment steps a second")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    with disk_errors(path, 0):
        figure.savefig(path, dpi=110)


def sweep(
    config: Path,
    *,
    lanes: str | None = None,
    devices: int = 1,
    num_updates: int = 4,
    repeats: int = 5,
    out: Path | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Result:
    """What `bench sweep` measures and writes.

    Args:
      config: a TOML file.
      lanes: their numbers, such as `1,2,4`; five from `devices` on unless given.
      devices: local devices that share the lanes; CPUs are made to count as so many.
      num_updates, repeats: see `bench_train`.
      out: a directory for `sweep.json` and `sweep.png`.
      overrides: settings of the config by dotted path.

    Returns:
      The report of `run_all`, and the `knees`, one for each number of devices.

    Raises:
      ValueError, ConfigError: what cannot be measured.
    """
    force_host_devices(devices)
    trainer, name = load_trainer(config, overrides)
    counts = [devices * 2**power for power in range(5)] if lanes is None else numbers("lanes", lanes)
    cases = sweep_cases(trainer, name, lanes=counts, devices=devices, num_updates=num_updates, repeats=repeats)
    return _run_curves(cases, "sweep", size="lanes", out=out)


def scale(
    config: Path,
    *,
    num_envs: str = "16,64,256,1024",
    devices: int = 1,
    num_updates: int = 4,
    repeats: int = 5,
    out: Path | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Result:
    """What `bench scale` measures and writes: as `sweep`, over `num_envs`, for 1, 2, 4, ... and `devices` devices."""
    force_host_devices(devices)
    trainer, name = load_trainer(config, overrides)
    cases = scale_cases(
        trainer,
        name,
        num_envs=numbers("num_envs", num_envs),
        devices=list(doublings(devices)),
        num_updates=num_updates,
        repeats=repeats,
    )
    return _run_curves(cases, "scale", size="num_envs", out=out)


def _run_curves(cases: Sequence[Case], name: str, *, size: str, out: Path | None) -> Result:
    file = None if out is None else out / f"{name}.json"
    report = run_all(cases, file=file)
    found = curves(report["results"], size)
    report["knees"] = {label: knee(curve) for label, curve in found.items()}
    if file is not None:
        write_json(file, report)
        save_plot(file.with_suffix(".png"), found, title=cases[0].about["case"], size=size)
    return report


def force_host_devices(count: int) -> None:
    """Makes the CPU count as so many devices, unless a backend has started already: then there are as many as there are."""
    if count > 1:
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)


def numbers(name: str, text: str) -> list[int]:
    """The numbers in `1,2,4`, in order. Raises ValueError that begins with `name`."""
    if not all(part.strip().isdecimal() and int(part) for part in text.split(",")):
        raise ValueError(f"{name}: expected positive integers such as 1,2,4, got {text}")
    return sorted({int(part) for part in text.split(",")})


def doublings(most: int) -> Iterator[int]:
    """1, 2, 4, ... and `most`."""
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most


def text(report: Result) -> str:
    """A line for each result, the knees, and what is missing."""
    results = report.get("results", [report])
    lines = [*map(summary, results)]
    lines += [f"knee with {label}: {size or 'not reached'}" for label, size in report.get("knees", {}).items()]
    left = report.get("planned", len(results)) - len(results)
    return "\n".join([*lines, f"no time was left for {left} more cases"] if left else lines)


# the suite --------------------------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """How large the cases of the suite are."""

    worlds: Sequence[tuple[str, str]]  # name and obs
    num_envs: Sequence[int]  # of worlds
    num_steps: int  # of worlds
    train_num_envs: Sequence[int]  # of one run
    lanes: Sequence[int]
    lane_num_envs: int  # of each lane


_DOORKEY, _COLLECTOR = "MiniGrid-DoorKey-8x8-v0", "Collector-v0"
FULL = Sizes(
    worlds=((_DOORKEY, "packed"), (_DOORKEY, "symbolic"), (_COLLECTOR, "packed"), ("BabyAI-GoToLocal-v0", "packed")),
    num_envs=tuple(2**power for power in (18, 20, 14, 16, 12)),
    num_steps=256,
    train_num_envs=(2048, 16384, 256),
    lanes=(64, 8, 512),
    lane_num_envs=256,
)
SMOKE = Sizes(
    worlds=((_COLLECTOR, "packed"),), num_envs=(16,), num_steps=32, train_num_envs=(16,), lanes=(2,), lane_num_envs=16
)


def quick(trainer: Trainer, name: str, out: Path, *, sizes: Sizes = FULL, budget_s: float = 360.0, repeats: int = 5) -> Result:
    """Throughput of worlds, of training, and of lanes, over sizes. Writes `OUT/bench.json`.

    The kinds of cases take turns, the sizes that matter most first, so that a spent budget leaves some of each.

    Args:
      trainer: what to train.
      name: its name.
      out: a directory, made if need be.
      sizes: of the cases.
      budget_s: seconds after which no case is started.
      repeats: timed calls a case.
    """
    devices = list(doublings(jax.local_device_count()))
    worlds = [
        Case(
            {"case": f"env/{world}", "num_envs": num_envs, "obs": obs},
            partial(bench_env, world, obs=obs, num_envs=num_envs, num_steps=sizes.num_steps, repeats=repeats),
        )
        for num_envs in sizes.num_envs
        for world, obs in sizes.worlds
    ]
    scale = scale_cases(trainer, name, num_envs=sizes.train_num_envs, devices=devices, num_updates=2, repeats=repeats)
    lane = dataclasses.replace(trainer, num_envs=sizes.lane_num_envs)
    lanes = [count for count in sizes.lanes if count % devices[-1] == 0]
    sweep = sweep_cases(lane, name, lanes=lanes, devices=devices[-1], num_updates=2, repeats=repeats)
    in_turn = chain.from_iterable(zip_longest(scale, sweep, worlds))
    return run_all([case for case in in_turn if case is not None], file=out / "bench.json", budget_s=budget_s)
