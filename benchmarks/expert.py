"""The expert on every BabyAI level, in both forms, and how many demonstrations it gives a second.

    python benchmarks/expert.py [--episodes 100] [--bot-episodes 20] [--name expert]

All 96 levels are one program. Demonstrations a second count drawing the level and playing it to the end; those of the bot are
measured beside them. Writes `benchmarks/results/NAME.json`.
"""

import argparse
import contextlib
import io
import time
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import minigrid  # noqa: F401 (registers the ids)
import numpy as np
from learning import ROOT, machine
from minigrid.utils.baby_ai_bot import BabyAIBot

from jaxagent import rollout
from jaxagent.envs import babyai
from jaxagent.envs.grid import GridEnv, GridState
from jaxagent.envs.vector import VectorEnv
from jaxagent.files import write_json
from jaxagent.planners.expert import expert
from jaxagent.types import PolicyInput

FORMS = {"privileged": False, "view_only": True}
RACES = ("BabyAI-GoToLocal-v0", "BabyAI-BossLevel-v0")
RACERS, STEPS, REPEATS = 2048, 128, 3  # episodes at once, steps a call, calls


def play(env: GridEnv, states: GridState, *, view_only: bool) -> tuple[jax.Array, jax.Array]:
    """Whether each of a batch of episodes succeeds, bool `[B]`, and its length, int32 `[B]`."""
    policy, num = expert(env, view_only=view_only), states.position.shape[0]

    def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        time, carry, states, over, success, length = loop
        inputs = PolicyInput(None, None, None, jnp.full(num, time == 0), states)
        carry, action, _ = policy.act(None, carry, inputs, jax.random.key(0))
        _, after, _, terminated, truncated, info = jax.vmap(env.step, in_axes=(None, 0, 0, None))(
            jax.random.key(0), states, action, env.default_params
        )
        return time + 1, carry, after, over | terminated | truncated, success | info["success"] & ~over, length + ~over

    no, zero = jnp.zeros(num, bool), jnp.zeros(num, jnp.int32)
    start = (jnp.int32(0), policy.init(num), states, no, no, zero)
    return jax.lax.while_loop(lambda loop: ~jnp.all(loop[3]), step, start)[4:]


def all_levels(episodes: int, *, view_only: bool) -> dict[str, dict[str, float]]:
    """Success rate and mean length by level."""
    names = list(babyai.ENVS)
    env, params = babyai.make_mix(levels=names)
    shares = jnp.repeat(jnp.eye(len(names)), episodes, axis=0)

    @jax.jit
    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(key, shares.shape[0])
        _, states = jax.vmap(lambda key, weights: env.reset(key, params.replace(weights=weights)))(keys, shares)
        return play(env, states, view_only=view_only)

    success, length = (np.asarray(x).reshape(len(names), episodes) for x in run(jax.random.key(0)))
    rows = zip(names, success.mean(axis=1).tolist(), length.mean(axis=1).tolist(), strict=True)
    return {name: {"success_rate": rate, "length_mean": mean} for name, rate, mean in rows}


def race(name: str, *, view_only: bool) -> float:
    """Demonstrations a second, in environments that start a new level whenever an episode ends."""
    env, params = babyai.make(name)
    vector_env, policy = VectorEnv(env, RACERS, levels="fresh"), expert(env, view_only=view_only)

    @jax.jit
    def run(state: rollout.RolloutState, key: jax.Array) -> tuple[rollout.RolloutState, jax.Array]:
        def step(state: rollout.RolloutState, key: jax.Array) -> tuple[rollout.RolloutState, jax.Array]:
            state, (_, metrics) = rollout.step(vector_env, policy, None, state, params, key)
            return state, metrics["success_sum"]

        state, successes = jax.lax.scan(step, state, jax.random.split(key, STEPS))
        return state, successes.sum()

    state, _ = run(rollout.init(vector_env, policy, jax.random.key(0), params), jax.random.key(1))
    jax.block_until_ready(state)
    began = time.perf_counter()
    total = jnp.int32(0)
    for repeat in range(REPEATS):
        state, successes = run(state, jax.random.key(2 + repeat))
        total += successes.astype(jnp.int32)
    return int(total) / (time.perf_counter() - began)


def bot(name: str, episodes: int) -> dict[str, float]:
    """The original's bot: success rate, mean length of its successes, demonstrations a second."""
    env, lengths = gymnasium.make(name, disable_env_checker=True).unwrapped, []
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):  # rejected draws
        for seed in range(episodes):
            env.reset(seed=seed)
            planner, action, over = BabyAIBot(env), None, False
            with contextlib.suppress(Exception):  # it gives up by exceptions
                while not over:
                    action = planner.replan(action)
                    _, reward, terminated, truncated, _ = env.step(action)
                    over = terminated or truncated
                if reward > 0:
                    lengths.append(env.step_count)
    seconds = time.perf_counter() - began
    return {"success_rate": len(lengths) / episodes, "length_mean": float(np.mean(lengths)), "per_s": len(lengths) / seconds}


def show(form: str, levels: dict[str, dict[str, float]]) -> None:
    solved = sum(level["success_rate"] >= 0.995 for level in levels.values())
    print(f"{form}: at least 99.5% on {solved} of {len(levels)} levels; below:", flush=True)
    for name, level in levels.items():
        if level["success_rate"] < 0.995:
            print(f"  {name:36} {level['success_rate']:.3f}  length {level['length_mean']:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--bot-episodes", type=int, default=20)
    parser.add_argument("--only-races", action="store_true", help="demonstrations a second alone")
    parser.add_argument("--name", default="expert")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "episodes": arguments.episodes, "levels": {}, "demonstrations": {}}
    if not arguments.only_races:
        for form, view_only in FORMS.items():
            found["levels"][form] = levels = all_levels(arguments.episodes, view_only=view_only)
            show(form, levels)
    for name in RACES:
        original = bot(name, arguments.bot_episodes)
        ours = {form: race(name, view_only=view_only) for form, view_only in FORMS.items()}
        found["demonstrations"][name] = {"bot": original, **ours}
        for form, rate in ours.items():
            print(f"{name}, {form}: {rate:,.0f} demonstrations a second, {rate / original['per_s']:.0f}x the bot", flush=True)
    write_json(ROOT / "benchmarks" / "results" / f"{arguments.name}.json", found)


if __name__ == "__main__":
    main()
