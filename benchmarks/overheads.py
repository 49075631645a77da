"""What lanes and the host loop cost, as ratios measured side by side.

    python benchmarks/overheads.py [--name overheads]

- `lanes`: env steps a second of 16 learners with 16 learning rates under one `vmap`, over those of one learner.
- `host_loop`: time of `loop.fit` from its first row to its last but one (the last holds the evaluation and the checkpoint),
  over that of one fused `Trainer.run` of as many updates.

Seconds are given by the clock and of the processor: the latter say more where other work runs on the machine.

Writes `benchmarks/results/NAME.json`.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from learning import ROOT, machine

from jaxagent import config, loop, metrics
from jaxagent.files import write_json
from jaxagent.rundir import RunDir
from jaxagent.train import Trainer, strong

LANES = 16
ROUNDS = 7


class Seconds(NamedTuple):
    clock: float
    processor: float


def timed(function: Any, *arguments: Any) -> Seconds:
    began = now()
    jax.block_until_ready(function(*arguments))
    return since(began)


def now() -> Seconds:
    return Seconds(time.perf_counter(), time.process_time())


def since(began: Seconds) -> Seconds:
    return Seconds(*(end - start for end, start in zip(now(), began, strict=True)))


def compare(pairs: list[tuple[Seconds, Seconds]], factor: float) -> dict[str, Any]:
    """Median and all of the ratios `factor * first / second`, by both clocks."""
    ratios = {field: [factor * getattr(a, field) / getattr(b, field) for a, b in pairs] for field in Seconds._fields}
    return {field: {"median": statistics.median(values), "all": values} for field, values in ratios.items()}


def lanes(trainer: Trainer, num_updates: int) -> dict[str, Any]:
    """One program for one learner and one for 16 of them, timed in turn."""

    def train(lr: jax.Array, key: jax.Array) -> Any:
        learner = trainer.learner.replace(lr=lr)
        one = dataclasses.replace(trainer, learner=learner)
        return one.run(one.init(key), num_updates)

    rates = jnp.logspace(-4, -3, LANES)
    single, many = jax.jit(train), jax.jit(jax.vmap(train, in_axes=(0, None)))
    key = jax.random.key(0)
    timed(single, rates[0], key), timed(many, rates, key)
    pairs = [(timed(single, rates[0], key), timed(many, rates, key)) for _ in range(ROUNDS)]
    return {"seconds": pairs, "throughput_ratio": compare(pairs, LANES), "compilations": many._cache_size()}


def host_loop(trainer: Trainer, num_updates: int, segment: int) -> dict[str, Any]:
    """The loop with its log and display against one fused call of `num_updates`, in turn."""
    schedule = loop.Schedule(num_updates + 2 * segment, segment=segment, eval_episodes=1, checkpoint_every=0)
    program = loop.Program(trainer, schedule, seed=0)
    fused = jax.jit(lambda state: program.trainer.run(state, num_updates))
    timed(fused, program.init())
    pairs = []
    for _ in range(ROUNDS):
        state = jax.block_until_ready(program.init())
        one_call = timed(fused, state)
        with tempfile.TemporaryDirectory() as folder, Ticks() as ticks:
            loop.fit(program, schedule, RunDir(Path(folder)))
        looped = Seconds(*(end - start for end, start in zip(ticks.seen[-2], ticks.seen[0], strict=True)))
        pairs.append((looped, one_call))
    return {"seconds": pairs, "time_ratio": compare(pairs, 1)}


class Ticks:
    """Notes the time whenever the loop appends a row to its log."""

    def __enter__(self) -> "Ticks":
        self.seen: list[Seconds] = []
        self.append = metrics.MetricsLog.append

        def append(log: metrics.MetricsLog, *row: Any, **timing: Any) -> None:
            self.append(log, *row, **timing)
            self.seen.append(now())

        metrics.MetricsLog.append = append
        return self

    def __exit__(self, *_: object) -> None:
        metrics.MetricsLog.append = self.append


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="overheads")
    arguments = parser.parse_args()
    trainer = strong(config.build(config.read(ROOT / "configs" / "ppo_cartpole.toml"))[0])
    found = {"machine": machine(), "lanes": lanes(trainer, 20), "host_loop": host_loop(trainer, 400, 10)}
    write_json(ROOT / "benchmarks" / "results" / f"{arguments.name}.json", found)
    throughput, duration = found["lanes"]["throughput_ratio"], found["host_loop"]["time_ratio"]
    for field in Seconds._fields:
        print(f"16 lanes, by {field}: {throughput[field]['median']:.3f} of one learner's env steps a second")
        print(f"host loop, by {field}: {duration[field]['median']:.4f} of one fused run's time")


if __name__ == "__main__":
    main()
