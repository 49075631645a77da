"""Measures one system on one level in this process: `python env_workers.py '{"system": ..., "level": ...}'`.

Letters: `T` steps, `B` parallel environments.
Every JAX system runs the same program: one scan over T steps of B environments, random actions drawn inside it, auto-reset
on, all observations, rewards and flags summed into the carry. jaxagent's own is `jaxagent.bench.bench_env`.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Timestep = Any


class Outcome(NamedTuple):
    """What a training loop would read of one step."""

    observation: jax.Array  # [B, ...] uint8
    reward: jax.Array  # [B] float32
    ended: jax.Array  # [B] bool, terminated or truncated


class Peer(NamedTuple):
    """A system behind one face. It resets finished environments itself."""

    num_actions: int
    reset: Callable[[jax.Array], Timestep]  # [B] keys
    step: Callable[[Timestep, jax.Array], Timestep]  # actions [B]
    outcome: Callable[[Timestep], Outcome]


class Sums(NamedTuple):
    observation: jax.Array  # uint32, wraps
    reward: jax.Array  # float32
    resets: jax.Array  # int32


def navix(level: str, obs: str) -> Peer:
    """A finished environment spends its next call on resetting; that call counts as a step here, to navix's favour."""
    import navix

    functions = {"full": navix.observations.symbolic, "first_person": navix.observations.symbolic_first_person}
    env = navix.make(f"Navix-{level}-v0", observation_fn=functions[obs], max_steps=HORIZON[level])
    return Peer(
        num_actions=len(env.action_set),
        reset=jax.vmap(env.reset),
        step=jax.vmap(env.step),
        outcome=lambda ts: Outcome(ts.observation, ts.reward, ts.step_type > 0),
    )


def xminigrid(level: str, obs: str) -> Peer:
    """The observation is 7x7x2, walls see-through."""
    import xminigrid
    from xminigrid.wrappers import GymAutoResetWrapper

    if obs != "first_person":
        raise ValueError(f"obs: expected 'first_person', got {obs!r}")
    env, params = xminigrid.make(f"MiniGrid-{level}")
    env = GymAutoResetWrapper(env)
    params = params.replace(max_steps=HORIZON[level])
    return Peer(
        num_actions=env.num_actions(params),
        reset=jax.vmap(lambda key: env.reset(params, key)),
        step=jax.vmap(lambda ts, action: env.step(params, ts, action)),
        outcome=lambda ts: Outcome(ts.observation, ts.reward, ts.last()),
    )


HORIZON = {"Empty-8x8": 256, "DoorKey-8x8": 640}  # MiniGrid's own step limits, for every system
PEERS = {"navix": navix, "xminigrid": xminigrid}


def rollout(peer: Peer, timestep: Timestep, key: jax.Array, *, num_envs: int, num_steps: int) -> tuple[Timestep, Sums]:
    """T random steps of B environments; nothing that a step makes goes unused."""

    def body(carry: tuple[Timestep, Sums], step_key: jax.Array) -> tuple[tuple[Timestep, Sums], None]:
        timestep, sums = carry
        timestep = peer.step(timestep, random_actions(step_key, num_envs, peer.num_actions))
        observation, reward, ended = peer.outcome(timestep)
        sums = Sums(
            sums.observation + observation.sum(dtype=jnp.uint32),
            sums.reward + reward.sum(dtype=jnp.float32),
            sums.resets + ended.sum(dtype=jnp.int32),
        )
        return (timestep, sums), None

    zero = Sums(jnp.uint32(0), jnp.float32(0), jnp.int32(0))
    return jax.lax.scan(body, (timestep, zero), jax.random.split(key, num_steps))[0]


def random_actions(key: jax.Array, num_envs: int, num_actions: int) -> jax.Array:
    """`[B]` int32 by multiply-shift, half the cost of `random.randint`; uniform to 2^-13."""
    bits = jax.random.bits(key, (num_envs,), jnp.uint16).astype(jnp.uint32)
    return ((bits * num_actions) >> 16).astype(jnp.int32)


def measure_peer(
    system: str, level: str, obs: str, *, num_envs: int, num_steps: int, repeats: int, seed: int
) -> dict[str, Any]:
    """Compile apart, one call to warm up, then `repeats` timed calls that go on from where the last one ended."""
    peer = PEERS[system](level, obs)
    reset_key, warm_key, *keys = jax.random.split(jax.random.key(seed), repeats + 2)
    timestep = jax.jit(peer.reset)(jax.random.split(reset_key, num_envs))

    program = jax.jit(lambda ts, key: rollout(peer, ts, key, num_envs=num_envs, num_steps=num_steps), donate_argnums=0)
    lowered = program.lower(timestep, warm_key)
    start = time.perf_counter()
    run = lowered.compile()
    compile_s = time.perf_counter() - start

    timestep, _ = jax.block_until_ready(run(timestep, warm_key))
    seconds, sums = [], []
    for key in keys:
        start = time.perf_counter()
        timestep, total = jax.block_until_ready(run(timestep, key))
        seconds.append(time.perf_counter() - start)
        sums.append(jax.device_get(total))
    steps = num_envs * num_steps
    return {
        "compile_s": compile_s,
        "seconds": seconds,
        "steps_per_s": steps / statistics.median(seconds),
        "resets_per_step": float(sum(s.resets for s in sums)) / (steps * repeats),
        "reward_per_step": float(sum(s.reward for s in sums)) / (steps * repeats),
        "checksum": int(sum(int(s.observation) for s in sums) % 2**32),
    }


def measure_jaxagent(level: str, obs: str, **settings: int) -> dict[str, Any]:
    from jaxagent.bench import bench_env

    return bench_env(f"MiniGrid-{level}-v0", obs=obs, **settings)


def measure_minigrid(level: str, obs: str, *, num_envs: int, num_steps: int, repeats: int, seed: int) -> dict[str, Any]:
    """Farama's MiniGrid in Python: one environment, steps one by one."""
    import gymnasium
    import minigrid  # noqa: F401  (registers the levels)

    if (num_envs, obs) != (1, "symbolic"):
        raise ValueError(f"num_envs, obs: expected 1, 'symbolic', got {num_envs}, {obs!r}")
    env = gymnasium.make(f"MiniGrid-{level}-v0", disable_env_checker=True)
    env.reset(seed=seed)
    actions = np.random.default_rng(seed).integers(0, 7, (repeats + 1, num_steps))
    seconds, resets, checksum = [], 0, 0
    for row in actions.tolist():
        start = time.perf_counter()
        for action in row:
            observation, _, terminated, truncated, _ = env.step(action)
            checksum += int(observation["image"].sum())
            if terminated or truncated:
                resets += 1
                env.reset()
        seconds.append(time.perf_counter() - start)
    seconds = seconds[1:]
    return {
        "compile_s": 0.0,
        "seconds": seconds,
        "steps_per_s": num_steps / statistics.median(seconds),
        "resets_per_step": resets / actions.size,
        "checksum": checksum,
    }


def main() -> None:
    case = json.loads(sys.argv[1])
    system, level, obs = case.pop("system"), case.pop("level"), case.pop("obs")
    if system == "jaxagent":
        record = measure_jaxagent(level, obs, **case)
    elif system == "minigrid":
        record = measure_minigrid(level, obs, **case)
    else:
        record = measure_peer(system, level, obs, **case)
    print(json.dumps(record | {"system": system, "level": level, "obs": obs} | case))


if __name__ == "__main__":
    main()
