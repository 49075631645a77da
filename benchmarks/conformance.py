"""Steps every level beside Farama's, and counts what differs.

    python benchmarks/conformance.py [PART_OF_A_NAME ...] [--resets 20] [--steps 150] [--seed 0] [--name conformance]

Each reset is played once by each stream of actions of `tests/lockstep.py`, random, our expert's and adversarial, for `--steps`
steps or to the end; every other time the adversarial one starts anywhere in the level. Image, direction, mission, reward and
both flags are compared at every step. Writes `benchmarks/results/NAME.json`, prints a table, and exits with 1 if anything
differs.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers its levels)
import numpy as np
from learning import machine

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import lockstep  # noqa: E402

from jaxagent.envs import registry  # noqa: E402
from jaxagent.files import write_json  # noqa: E402

MOVES = 2000  # of obstacles, which Farama draws and we draw: two samples of where they are after one step
IDS = sorted(name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-")) and "WFC" not in name)


def check(name: str, *, resets: int, steps: int, seed: int) -> dict[str, Any]:
    """All episodes of one level."""
    episodes, found = [], []
    for number, (stream, make) in enumerate(lockstep.STREAMS.items()):
        sources = [lockstep.made(name) for _ in range(resets)]
        rngs = [np.random.default_rng([seed, i, number]) for i in range(resets)]
        for i, source in enumerate(sources):
            seen = lockstep.reset(source, seed + i)
            found += [f"{stream}, seed {seed + i}: {what}" for what in lockstep.first_mismatches(source, seen)]
            if i % 2 and stream == "adversarial":
                lockstep.scatter(source, rngs[i])
        for i, (source, actions) in enumerate(zip(sources, make(sources, rngs), strict=True)):
            episodes.append((stream, seed + i, lockstep.record(source, actions, steps)))
    shown = lockstep.replay([episode for *_, episode in episodes], steps)
    ends: dict[str, Counter[str]] = {stream: Counter() for stream in lockstep.STREAMS}
    for (stream, reset_seed, episode), ours in zip(episodes, shown, strict=True):
        found += [f"{stream}, seed {reset_seed}: {what}" for what in lockstep.mismatches(episode, ours)]
        ends[stream][_end(episode.steps)] += 1
    moves = lockstep.obstacle_moves(sources[0], MOVES) if hasattr(sources[0], "obstacles") else None
    return {
        "episodes": len(episodes),
        "steps": sum(len(episode.actions) for *_, episode in episodes),
        "ends": {stream: dict(sorted(counts.items())) for stream, counts in ends.items()},
        "generated": name in registry.ENVS,
        "mismatches": found,
        "obstacle_moves_p": moves,
    }


def _end(steps: lockstep.Steps) -> str:
    if steps.terminated[-1]:
        return "success" if steps.reward[-1] > 0 else "failure"
    return "truncated" if steps.truncated[-1] else "under way"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="only levels with one of these in their name")
    parser.add_argument("--resets", type=int, default=20)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="conformance")
    arguments = parser.parse_args()
    names = [name for name in IDS if not arguments.parts or any(part in name for part in arguments.parts)]
    began, levels = time.monotonic(), {}
    for name in names:
        levels[name] = row = check(name, resets=arguments.resets, steps=arguments.steps, seed=arguments.seed)
        wins = ", ".join(f"{stream} {counts.get('success', 0)}" for stream, counts in row["ends"].items())
        print(f"{name:45} {row['steps']:6} steps  {len(row['mismatches'])} mismatches  (successes: {wins})", flush=True)
        for what in row["mismatches"][:3]:
            print(f"    {what[:300]}", flush=True)
    total = {key: sum(row[key] for row in levels.values()) for key in ("episodes", "steps")}
    wrong = sum(len(row["mismatches"]) for row in levels.values())
    successes = sum(row["ends"]["expert"].get("success", 0) for row in levels.values()) / (arguments.resets * len(levels))
    print(f"{len(levels)} levels, {total['episodes']} episodes, {total['steps']} steps, {wrong} mismatches")
    print(f"{successes:.1%} of the expert's episodes end in success")
    result = {
        "machine": machine(),
        "minigrid": minigrid.__version__,
        "resets": arguments.resets,
        "streams": list(lockstep.STREAMS),
        "seed": arguments.seed,
        "seconds": time.monotonic() - began,
        "levels": len(levels),
        **total,
        "mismatches": wrong,
        "expert_success": successes,
        "by_level": levels,
    }
    write_json(ROOT / "benchmarks" / "results" / f"{arguments.name}.json", result)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
