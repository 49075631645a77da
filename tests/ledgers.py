"""Directories of sweeps, written as `jaxagent sweep` writes them, with results that follow from the settings by a formula."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from jaxagent.sweep import ledger

SPEC = """
base = "configs/ppo collector.toml"
[sweep]
objective = "success_rate"
mode = "{mode}"
seeds = {seeds}
"""


def settings(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Random settings: a rate that matters much, a coefficient that matters a little, and four that do not."""
    generator = np.random.default_rng(seed)
    return [
        {
            "learner.lr": float(10 ** generator.uniform(-4.5, -1.5)),
            "learner.entropy_coef": float(generator.choice([0.0, 0.01, 0.1])),
            "learner.gamma": float(generator.uniform(0.9, 0.999)),
            "train.num_envs": int(generator.choice([16, 32, 64])),
            "network.hidden": json.dumps([[32], [64, 64], [128, 128]][generator.integers(3)]),
            "network.torso": str(generator.choice(["mlp", "cnn"])),
            "learner.normalize": bool(generator.integers(2)),
        }
        for _ in range(count)
    ]


def success(setting: Mapping[str, Any], noise: float) -> float:
    """The best rate is 1e-3, in the middle."""
    miss = (np.log10(setting.get("learner.lr", 1e-3)) + 3) ** 2
    return float(np.clip(0.95 - 0.25 * miss - 0.8 * setting.get("learner.entropy_coef", 0.0) + 0.03 * noise, 0, 1))


def write_sweep(
    path: Path,
    trials: Sequence[Mapping[str, Any]],
    *,
    num_seeds: int = 3,
    num_rungs: int = 1,
    score: Callable[[Mapping[str, Any], float], float] = success,
    fails: Callable[[Mapping[str, Any], int], str | None] = lambda setting, seed: None,
    mode: str = "max",
    points: int = 20,
) -> Path:
    """Writes a sweep. With several rungs, the better half of the trials goes on from each to the next.

    Args:
      fails: the reason why a setting fails with a seed, None if it does not.
    """
    (path / "curves").mkdir(parents=True)
    (path / "sweep.toml").write_text(SPEC.format(mode=mode, seeds=num_seeds))
    entry = {"time": "2026-01-02T03:04:05+00:00", "argv": ["jaxagent", "sweep", "configs/sweep.toml"], "git": None}
    entry |= {"packages": {"jaxagent": "0.1.0", "jax": "0.10.2"}, "devices": {"kind": "cpu", "local": 1}}
    (path / "env.json").write_text(json.dumps([entry]))
    names = list(dict.fromkeys(name for trial in trials for name in trial))
    generator = np.random.default_rng(1)
    rows, curves, alive = [], [], list(range(len(trials)))
    for rung in range(num_rungs):
        updates, means = 100 * 2**rung, {}
        for i in alive:
            identity = {"trial": f"{i:010x}", "rung": rung, "group": 0, "parent": None, "updates": updates}
            outcomes = []
            for seed in range(num_seeds):
                reason, value = fails(trials[i], seed), score(trials[i], generator.normal())
                status = "failed" if reason else "done" if rung == num_rungs - 1 else "rung"
                objective = None if reason else value
                outcomes.append(objective)
                row = identity | {"seed": seed, "status": status, "reason": reason, "env_steps": updates * 512}
                row |= {"objective": objective, "eval.success_rate": objective, "curve": f"{rung:05d}.parquet"}
                row |= {"chunk": "0" * 12, "place": i, "width": len(trials)}
                rows.append(row | {name: trials[i].get(name) for name in names})
                curves += _curve(identity, seed, updates, value, points, generator)
            known = [outcome for outcome in outcomes if outcome is not None]
            means[i] = np.mean(known) if known else -np.inf
        part = [curve for curve in curves if curve["rung"] == rung]
        parquet.write_table(pa.Table.from_pylist(part), path / "curves" / f"{rung:05d}.parquet")
        alive = sorted(means, key=lambda i: -means[i] if mode == "max" else means[i])[: max(1, len(alive) // 2)]
    ledger.write(path, rows, names)
    return path


def _curve(
    identity: Mapping[str, Any], seed: int, updates: int, final: float, points: int, generator: np.random.Generator
) -> list[dict[str, Any]]:
    """An exponential approach to the final value; a rung's curve begins where the one before ended."""
    start = updates // 2 if identity["rung"] else 0
    progress = np.linspace(start, updates, points + 1)[1:].astype(int)
    learned = final * (1 - np.exp(-progress / 40)) + 0.02 * generator.normal(size=points)
    return [
        {
            **{name: identity[name] for name in ("trial", "rung")},
            "seed": seed,
            "update": int(update),
            "env_steps": int(update) * 512,
            "success_rate": float(value),
            "return_mean": float(5 * value),
            "length_mean": float(20 - 8 * value),
            "entropy": float(1.6 - value),
        }
        for update, value in zip(progress, learned, strict=True)
    ]
