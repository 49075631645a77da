"""The expert on every level with a goal, beside the original's bot, and how many demonstrations it gives a second.

    python benchmarks/expert.py [--episodes 1000] [--bot-episodes 50] [--only PART ...] [--name expert]

Four parts:

- `babyai`: both forms on the 96 levels of BabyAI, as one program.
- `minigrid`: the privileged form on MiniGrid's.
- `bot`: both forms and the original's bot on the same levels of BabyAI, drawn by the original.
- `races`: demonstrations a second, from drawing the level to playing it to the end; those of the bot beside them.

Of the failures of a level, the first 25 are searched for solutions (`tests/unsolvable.py`); levels that were proved to have
none do not count. Writes `benchmarks/results/NAME.json`.

Letters: `B` episodes.
"""

import argparse
import contextlib
import io
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import minigrid  # noqa: F401 (registers the ids)
import numpy as np
from learning import ROOT, machine
from minigrid.utils.baby_ai_bot import BabyAIBot

sys.path.insert(0, str(ROOT / "tests"))

import planning  # noqa: E402
from unsolvable import unsolvable  # noqa: E402

from jaxagent import rollout  # noqa: E402
from jaxagent.envs import babyai, registry  # noqa: E402
from jaxagent.envs.grid import GridEnv, GridState  # noqa: E402
from jaxagent.envs.vector import VectorEnv  # noqa: E402
from jaxagent.files import write_json  # noqa: E402
from jaxagent.interop.farama import from_farama  # noqa: E402
from jaxagent.planners.expert import expert  # noqa: E402

FORMS = {"privileged": False, "view_only": True}
PARTS = ("babyai", "minigrid", "bot", "races")
PATIENCE = 10  # seconds for one episode of the bot
PROOFS = 25  # failures of a level that are searched for solutions
HORIZON = 1024  # actions in an episode, where the level's own limit does not come first
RACES = ("BabyAI-GoToLocal-v0", "BabyAI-BossLevel-v0")
RACERS, STEPS, REPEATS = 2048, 128, 3
WORKERS = os.cpu_count() or 1  # threads, episodes of each at once, steps a call, calls
GOAL = 0.995

# success ----------------------------------------------------------------------------------------------------------------------


def babyai_levels(episodes: int, *, view_only: bool) -> dict[str, Any]:
    """All levels, one after the other as some take many more steps than others, by one program."""
    names = list(babyai.ENVS)
    env, params = babyai.make_mix(levels=names)

    @jax.jit
    def run(key: jax.Array) -> tuple[GridState, planning.Plans]:
        def one(level: tuple[jax.Array, jax.Array]) -> tuple[GridState, planning.Plans]:
            key, weights = level
            keys = jax.random.split(key, episodes)
            _, states = jax.vmap(env.reset, in_axes=(0, None))(keys, params.replace(weights=weights))
            return states, planning.play(env, states, key, env.level.max_steps, view_only)._replace(actions=None)

        return jax.lax.map(one, (jax.random.split(key, len(names)), jnp.eye(len(names))))

    states, (_, length, success) = jax.device_get(run(jax.random.key(0)))
    return {name: report(env, jax.tree.map(lambda x, i=i: x[i], states), success[i], length[i]) for i, name in enumerate(names)}


def minigrid_levels(episodes: int) -> dict[str, Any]:
    """Those with a goal; levels with the same rules by one program, unless obstacles move in them."""
    found = {}
    for name in registry.ENVS:
        env, params = registry.make(name) if name.startswith("MiniGrid-") else (None, None)
        if env is None or not env.level.can_succeed:
            continue
        keys = jax.random.split(jax.random.key(0), episodes)
        states = jax.jit(lambda keys, env=env, params=params: jax.vmap(env.reset, in_axes=(0, None))(keys, params)[1])(keys)
        if env.level.obstacles:
            plans = jax.device_get(planning.played(env, states, jax.random.key(1), env.level.max_steps, False))
        else:
            plans = planning.plans(env, states, HORIZON)
        found[name] = report(env, states, in_time(env, states, plans), plans.lengths)
    return found


def in_time(env: GridEnv, states: GridState, plans: planning.Plans) -> np.ndarray:
    """Whether episodes succeed within the level's own limit, bool `[B]`."""
    limit = env.level.max_steps if states.max_steps is None else np.asarray(states.max_steps)
    return plans.success & (plans.lengths <= limit)


def report(env: GridEnv, states: GridState, success: np.ndarray, length: np.ndarray) -> dict[str, Any]:
    failures = np.flatnonzero(~success)
    searched = [] if env.level.obstacles else failures[:PROOFS]
    proofs = [unsolvable(env, jax.tree.map(lambda x, i=i: x[i], states)) for i in searched]
    proved = sum(proof is not None for proof in proofs)
    if proved == PROOFS:  # all that were searched: taken to be so for the others too
        proved = len(failures)
    return {
        "success_rate": float(success.mean()),
        "of_solvable": float(success.sum() / max(success.size - proved, 1)),
        "failures": len(failures),
        "searched": len(searched),
        "proved_unsolvable": {kind: proofs.count(kind) for kind in sorted(set(proofs) - {None})},
        "length_mean": float(length[success].mean()),
    }


def show(title: str, levels: dict[str, Any]) -> None:
    solved = sum(level["of_solvable"] >= GOAL for level in levels.values())
    print(f"{title}: at least {GOAL:.1%} of the solvable on {solved} of {len(levels)} levels; with failures:", flush=True)
    for name, level in levels.items():
        if level["failures"]:
            proofs = ", ".join(f"{count} {kind}" for kind, count in level["proved_unsolvable"].items()) or "none proved"
            searched = f"of {level['searched']} failures searched: {proofs}"
            print(f"  {name:36} {level['success_rate']:.4f}, of solvable {level['of_solvable']:.4f}  ({searched})", flush=True)


# the original's bot -----------------------------------------------------------------------------------------------------------


def made(name: str) -> Any:
    return gymnasium.make(name, disable_env_checker=True).unwrapped


def bot(env: Any) -> int | None:
    """The length of its episode, None if it fails."""
    planner, action, over, reward = BabyAIBot(env), None, False, 0.0
    signal.signal(signal.SIGALRM, _give_up)
    with contextlib.suppress(Exception):  # it gives up by exceptions, or never
        signal.setitimer(signal.ITIMER_REAL, PATIENCE, 1)  # again each second: where it strikes in a callback, it is lost
        try:
            while not over:
                action = planner.replan(action)
                _, reward, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return env.step_count if reward > 0 else None


def _give_up(*_: Any) -> None:
    raise TimeoutError


def beside_bot(name: str, episodes: int) -> dict[str, Any]:
    """Mean lengths on the levels that all solve, and how many each solves."""
    env, states, lengths = made(name), [], []
    with contextlib.redirect_stdout(io.StringIO()):  # rejected draws
        for seed in range(episodes):
            env.reset(seed=seed)
            ours, _, state = from_farama(env)
            states.append(state)
            lengths.append(bot(env))
    states = planning.stacked(states)
    by_bot = np.array([length is not None for length in lengths])
    solved, found = {"bot": by_bot}, {"bot": np.array([length or 0 for length in lengths])}
    for form, view_only in FORMS.items():
        plans = planning.plans(ours, states, HORIZON, view_only=view_only)
        solved[form], found[form] = in_time(ours, states, plans), plans.lengths
    by_all = np.logical_and.reduce(list(solved.values()))
    return {
        "solved_by_all": int(by_all.sum()),
        "success_rate": {who: float(success.mean()) for who, success in solved.items()},
        "length_mean": {who: float(length[by_all].mean()) for who, length in found.items()} if by_all.any() else None,
    }


def all_beside_bot(episodes: int) -> dict[str, Any]:
    levels = {}
    for name in babyai.ENVS:
        levels[name] = row = beside_bot(name, episodes)
        print(f"  {name:36} {row}", flush=True)
    means = [row["length_mean"] for row in levels.values() if row["length_mean"]]
    over_all = {who: float(np.mean([mean[who] for mean in means])) for who in means[0]}
    ratios = [mean["view_only"] / mean["bot"] for mean in means]
    print(f"mean lengths {over_all}; by what was seen over the bot's: median of levels {np.median(ratios):.3f}", flush=True)
    return {"levels": levels, "length_mean": over_all, "median_ratio": float(np.median(ratios))}


# speed ------------------------------------------------------------------------------------------------------------------------


def race(name: str, *, view_only: bool) -> float:
    """Demonstrations a second, in environments that start a new level whenever an episode ends."""
    env, params = babyai.make(name)
    vector_env, policy = VectorEnv(env, RACERS, levels="fresh"), expert(env, view_only=view_only)

    @jax.jit
    def start(key: jax.Array) -> rollout.RolloutState:
        return rollout.init(vector_env, policy, key, params)

    @jax.jit
    def run(state: rollout.RolloutState, key: jax.Array) -> tuple[rollout.RolloutState, jax.Array]:
        def step(state: rollout.RolloutState, key: jax.Array) -> tuple[rollout.RolloutState, jax.Array]:
            state, (_, metrics) = rollout.step(vector_env, policy, None, state, params, key)
            return state, metrics["success_sum"]

        state, successes = jax.lax.scan(step, state, jax.random.split(key, STEPS))
        return state, successes.sum()

    def worker(state: rollout.RolloutState, keys: jax.Array) -> int:
        total = 0
        for key in keys:
            state, successes = run(state, key)
            total += int(successes)
        return total

    keys = jax.random.split(jax.random.key(0), (WORKERS, 1 + REPEATS))
    states = [run(start(key), key)[0] for key in keys[:, 0]]
    jax.block_until_ready(states)
    began = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:  # the operations are too small to be split over cores
        total = sum(pool.map(worker, states, keys[:, 1:]))
    return total / (time.perf_counter() - began)


def race_of_bot(name: str, episodes: int) -> float:
    """Demonstrations a second; the time of episodes in which it fails does not count against it."""
    env, solved, seconds = made(name), 0, 0.0
    with contextlib.redirect_stdout(io.StringIO()):
        for seed in range(episodes):
            began = time.perf_counter()
            env.reset(seed=seed)
            if bot(env) is not None:
                solved, seconds = solved + 1, seconds + time.perf_counter() - began
    return solved / seconds


def races(episodes: int) -> dict[str, Any]:
    """The bot on one core, as it is; ours on all."""
    found = {}
    for name in RACES:
        theirs = race_of_bot(name, episodes)
        ours = {form: race(name, view_only=view_only) for form, view_only in FORMS.items()}
        found[name] = {"bot": theirs, **ours}
        for form, rate in ours.items():
            print(f"{name}, {form}: {rate:,.0f} demonstrations a second, {rate / theirs:.0f}x the bot", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--bot-episodes", type=int, default=50)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--name", default="expert")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "episodes": arguments.episodes, "bot_episodes": arguments.bot_episodes}
    if "babyai" in arguments.only:
        for form, view_only in FORMS.items():
            found[form] = babyai_levels(arguments.episodes, view_only=view_only)
            show(f"BabyAI, {form}", found[form])
    if "minigrid" in arguments.only:
        found["minigrid"] = minigrid_levels(arguments.episodes)
        show("MiniGrid, privileged", found["minigrid"])
    if "bot" in arguments.only:
        found["beside_bot"] = all_beside_bot(arguments.bot_episodes)
    if "races" in arguments.only:
        found["demonstrations_per_s"] = races(arguments.bot_episodes)
    write_json(ROOT / "benchmarks" / "results" / f"{arguments.name}.json", found)


if __name__ == "__main__":
    main()
