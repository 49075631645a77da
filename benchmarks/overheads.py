"""What lanes and the host loop cost, as ratios measured side by side.

    python benchmarks/overheads.py [--name overheads]

- `lanes`: env steps a second of 16 learners with 16 learning rates under one `vmap`, over those of one learner.
- `host_loop`: seconds of `loop.fit` from its first row to its last but one (the evaluation and the checkpoint are in the last),
  over one fused `Trainer.run` of as many updates.

Writes `benchmarks/results/NAME.json`.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from learning import ROOT, machine

from jaxagent import config, loop, metrics
from jaxagent.files import write_json
from jaxagent.rundir import RunDir
from jaxagent.train import Trainer, strong

LANES = 16
ROUNDS = 5


def timed(function: Any, *arguments: Any) -> float:
    began = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - began


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
    ratios = [LANES * one / all_lanes for one, all_lanes in pairs]
    compiled = many._cache_size()
    return {"seconds": pairs, "throughput_ratio": statistics.median(ratios), "ratios": ratios, "compilations": compiled}


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
        with tempfile.TemporaryDirectory() as folder:
            loop.fit(program, schedule, RunDir(Path(folder)))
            rows = metrics.read(RunDir(Path(folder)).metrics)
        pairs.append((one_call, rows[-2]["timing"]["time"] - rows[0]["timing"]["time"]))
    ratios = [looped / one_call for one_call, looped in pairs]
    return {"seconds": pairs, "time_ratio": statistics.median(ratios), "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="overheads")
    arguments = parser.parse_args()
    trainer = strong(config.build(config.read(ROOT / "configs" / "ppo_cartpole.toml"))[0])
    found = {"machine": machine(), "lanes": lanes(trainer, 5), "host_loop": host_loop(trainer, 40, 10)}
    write_json(ROOT / "benchmarks" / "results" / f"{arguments.name}.json", found)
    print(f"16 lanes: {found['lanes']['throughput_ratio']:.3f} of one learner's env steps a second")
    print(f"host loop: {found['host_loop']['time_ratio']:.4f} of one fused run's time")


if __name__ == "__main__":
    main()
