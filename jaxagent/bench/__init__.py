"""Throughput, measured so that it counts. Also `python -m jaxagent.bench`, which needs no more than JAX's own libraries.

Here is what is measured, a case each, and how; `jaxagent.bench.suite` measures many cases.

Programs are compiled ahead of time, so tracing, lowering, compiling, the first run and the steady state are told apart. Every
timed call ends in `block_until_ready`, and its results depend on every observation, reward and flag, so that nothing can be
left out. Letters: `B` environments, `T` steps.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent import provenance, rollout
from jaxagent.envs import registry
from jaxagent.envs.vector import VectorEnv, VectorState
from jaxagent.lanes import advance, mesh_of, over_lanes, split
from jaxagent.train import Trainer, strong
from jaxagent.types import ActionSpace, Box, Discrete, PyTree

Result = dict[str, Any]  # JSON


# what is measured -------------------------------------------------------------------------------------------------------------


def bench_env(
    name: str,
    *,
    obs: str | None = None,
    num_envs: int = 2048,
    num_steps: int = 1000,
    pool_size: int | None = None,
    repeats: int = 5,
    seed: int = 0,
    linearity: bool = False,
) -> Result:
    """Environment steps a second under random actions, drawn inside the loop, with auto-reset.

    Args:
      name: a registered environment.
      obs: how it shows itself; its default unless given.
      num_envs: B.
      num_steps: T, steps a timed call; the pool of levels is made anew once a call.
      pool_size: levels in the pool; B unless given.
      repeats: timed calls.
      seed: of levels and actions.
      linearity: also time calls of 2 T steps; `linearity` is then how many times longer they take.

    Raises:
      ValueError: an unknown name or encoding, or a size below 1.
    """
    _check_sizes(num_envs=num_envs, num_steps=num_steps, repeats=repeats)
    if obs is not None and name in registry.GYMNAX_IDS:
        raise ValueError(f"obs: {name} has no such option")
    env, params = registry.make(name) if obs is None else registry.make(name, obs=obs)
    vector_env = VectorEnv(env, num_envs, pool_size=pool_size)
    params = strong(params)
    init_key, call_key = jax.random.split(jax.random.key(seed))

    def measure(num_steps: int) -> Timing:
        def call(state: VectorState, params: PyTree, key: jax.Array) -> tuple[VectorState, Counts]:
            return act_randomly(vector_env, state, params, key, num_steps)

        state = jax.jit(vector_env.init)(init_key, params)
        return time_calls(call, state, (params,), call_key, repeats=repeats)

    timing = measure(num_steps)
    return {
        "case": f"env/{name}",
        "num_envs": num_envs,
        "num_steps": num_steps,
        "pool_size": vector_env.num_levels,
        "obs": obs or registry.option_defaults(name).get("obs", "default"),
        **_figures(timing, env_steps=num_envs * num_steps),
        **({"linearity": _ratio(measure(2 * num_steps), timing)} if linearity else {}),
        "machine": provenance.describe(),
    }


def bench_train(
    trainer: Trainer,
    *,
    case: str = "train",
    lanes: int = 1,
    devices: int = 1,
    num_updates: int = 8,
    repeats: int = 5,
    seed: int = 0,
) -> Result:
    """Environment steps a second of whole updates: acting, and learning from it.

    Args:
      trainer: what to run.
      case: a name for the result.
      lanes: independent runs in one program, as sweeps have them, with learning rates of their own.
      devices: local devices that share the lanes equally.
      num_updates: updates a timed call.
      repeats: timed calls.
      seed: of the runs.

    Raises:
      ValueError: a wrong field of the trainer, a size below 1, or lanes that the devices cannot share.
    """
    _check_sizes(lanes=lanes, devices=devices, num_updates=num_updates, repeats=repeats)
    _check_devices(devices, lanes)
    trainer.validate()
    init_key, call_key = jax.random.split(jax.random.key(seed))

    def one(state: PyTree, trainer: Trainer, key: jax.Array) -> tuple[PyTree, Counts]:
        del key  # a run state carries its own
        state, metrics = trainer.run(state, num_updates)
        return state, Counts(bits_sum((state.learner, metrics)), metrics["episodes"].sum())

    def side_by_side(state: PyTree, trainers: Trainer, key: jax.Array) -> tuple[PyTree, Counts]:
        del key
        state, metrics, _ = advance(num_updates, trainers, state, num_updates)
        return state, Counts(jax.vmap(bits_sum)((state.learner, metrics)), metrics["episodes"].sum(-1))

    trainer = strong(trainer)
    if lanes == 1:
        call, state = one, jax.jit(Trainer.init)(trainer, init_key)
    else:
        mesh, trainer = mesh_of(devices), _stacked(trainer, lanes)
        call = over_lanes(side_by_side, mesh, shared=1)
        state = jax.jit(jax.vmap(Trainer.init))(trainer, jax.random.split(init_key, lanes))
        state, trainer = split((state, trainer), mesh)
    timing = time_calls(call, state, (trainer,), call_key, repeats=repeats)
    return {
        "case": case,
        "num_envs": trainer.num_envs,
        "num_steps": trainer.num_steps,
        "obs": _obs(trainer),
        "lanes": lanes,
        "devices": devices,
        "num_updates": num_updates,
        **_figures(timing, env_steps=lanes * num_updates * trainer.steps_per_update),
        "machine": provenance.describe(),
    }


def _stacked(trainer: Trainer, lanes: int) -> Trainer:
    """Trainers side by side, whose learning rates span a decade."""
    stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lanes, *leaf.shape)), trainer)
    rates = trainer.learner.lr * jnp.logspace(-0.5, 0.5, lanes)
    return dataclasses.replace(stacked, learner=dataclasses.replace(stacked.learner, lr=rates))


def bench_policy(trainer: Trainer, *, case: str = "policy", repeats: int = 5, seed: int = 0) -> Result:
    """Environment steps a second of an untrained agent acting, without learning. Arguments as for `bench_train`."""
    _check_sizes(repeats=repeats)
    trainer.validate()
    vector_env = VectorEnv(trainer.env, trainer.num_envs, trainer.reset_mode, trainer.levels, trainer.pool_size)
    policy = trainer.learner.policy()
    agent_key, init_key, call_key = jax.random.split(jax.random.key(seed), 3)
    trainer = strong(trainer)
    agent = trainer.learner.agent(trainer.learner.init(agent_key, trainer.env.spec))

    def call(state: PyTree, agent: PyTree, params: PyTree, key: jax.Array) -> tuple[PyTree, Counts]:
        state, batch, metrics = rollout.unroll(vector_env, policy, agent, state, params, key, num_steps=trainer.num_steps)
        return state, Counts(bits_sum(batch.transition), metrics["episodes"])

    state = jax.jit(lambda key, params: rollout.init(vector_env, policy, key, params))(init_key, trainer.params)
    timing = time_calls(call, state, (agent, trainer.params), call_key, repeats=repeats)
    return {
        "case": case,
        "num_envs": trainer.num_envs,
        "num_steps": trainer.num_steps,
        "obs": _obs(trainer),
        **_figures(timing, env_steps=trainer.steps_per_update),
        "machine": provenance.describe(),
    }


class Counts(NamedTuple):
    """What a timed call reports beside its state."""

    checksum: jax.Array  # uint32 [] or [lanes], depends on all that was computed
    resets: jax.Array  # int32 [] or [lanes], episodes that ended


def act_randomly(
    vector_env: VectorEnv, state: VectorState, params: PyTree, key: jax.Array, num_steps: int
) -> tuple[VectorState, Counts]:
    """`num_steps` random actions in every row."""

    def body(carry: tuple[VectorState, Counts], key: jax.Array) -> tuple[tuple[VectorState, Counts], None]:
        state, counts = carry
        action = random_action(vector_env.env.spec.action, key, vector_env.num_envs)
        state, out = vector_env.step(state, action, params)
        seen = bits_sum((vector_env.observe(state), out.reward, out.terminated, out.truncated))
        resets = (out.terminated | out.truncated).sum(dtype=jnp.int32)
        return (state, Counts(counts.checksum + seen, counts.resets + resets)), None

    start = vector_env.refresh(state, params), Counts(jnp.uint32(0), jnp.int32(0))
    return jax.lax.scan(body, start, jax.random.split(key, num_steps))[0]


def random_action(space: ActionSpace, key: jax.Array, num_envs: int) -> jax.Array:
    """Random actions [B, ...]. Integers come from 16 random bits each, off uniform by less than `n / 65536`."""
    shape = (num_envs, *space.shape)
    if isinstance(space, Box):
        low, high = (np.broadcast_to(bound, space.size).reshape(space.shape) for bound in (space.low, space.high))
        low, high = np.maximum(low, -1e3), np.minimum(high, 1e3)  # a bound may be infinite
        return jax.random.uniform(key, shape, space.dtype, low, high)
    sizes = jnp.asarray(space.n if isinstance(space, Discrete) else space.nvec, jnp.uint32)
    bits = jax.random.bits(key, shape, jnp.uint16).astype(jnp.uint32)
    return (bits * sizes >> 16).astype(space.dtype)


def bits_sum(tree: PyTree) -> jax.Array:
    """Sum of all leaves modulo 2^32, floats by their bits: exact, so it does not depend on the order of summing."""

    def leaf_sum(leaf: jax.Array) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            leaf = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{leaf.dtype.itemsize * 8}"))
        return leaf.sum(dtype=jnp.uint32)

    return sum(map(leaf_sum, jax.tree.leaves(tree)), jnp.uint32(0))


# how it is measured -----------------------------------------------------------------------------------------------------------


class Timing(NamedTuple):
    """Seconds, and what the calls counted."""

    trace: float
    lower: float
    compile: float
    first: float  # first run of the compiled program
    steady: tuple[float, ...]  # each repeat
    checksum: int  # of the first run
    resets: int  # in all timed repeats
    memory: dict[str, int]  # bytes a device, by what for; empty where the compiler does not tell


def time_calls(
    call: Callable[..., tuple[PyTree, Counts]], state: PyTree, arguments: tuple[PyTree, ...], key: jax.Array, *, repeats: int
) -> Timing:
    """Compiles `call(state, *arguments, key) -> (state, counts)`, runs it once, and then times `repeats` runs, each going on
    from the state of the one before it with a key of its own."""
    keys = list(jax.random.split(key, repeats + 1))
    clock = time.perf_counter
    started = clock()
    traced = jax.jit(call, donate_argnums=0).trace(state, *arguments, keys[0])
    after_trace = clock()
    lowered = traced.lower()
    after_lower = clock()
    compiled = lowered.compile()
    after_compile = clock()
    state, counts = jax.block_until_ready(compiled(state, *arguments, keys[0]))
    first = clock() - after_compile
    steady, resets = [], 0
    for repeat_key in keys[1:]:
        before = clock()
        state, repeat_counts = jax.block_until_ready(compiled(state, *arguments, repeat_key))
        steady.append(clock() - before)
        resets += int(repeat_counts.resets.sum())
    return Timing(
        trace=after_trace - started,
        lower=after_lower - after_trace,
        compile=after_compile - after_lower,
        first=first,
        steady=tuple(steady),
        checksum=int(counts.checksum.sum(dtype=jnp.uint32)),
        resets=resets,
        memory=_memory(compiled),
    )


def _memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    found = compiled.memory_analysis()
    names = {"arguments": "argument", "outputs": "output", "aliased": "alias", "temporary": "temp", "code": "generated_code"}
    return {} if found is None else {name: getattr(found, f"{theirs}_size_in_bytes") for name, theirs in names.items()}


def _figures(timing: Timing, *, env_steps: int) -> Result:
    """The part of a result that is the same for all cases; `env_steps` is what one call does."""
    return {
        "trace_s": timing.trace,
        "lower_s": timing.lower,
        "compile_s": timing.compile,
        "first_s": timing.first,
        "seconds": list(timing.steady),
        "steps_per_s": env_steps / statistics.median(timing.steady),
        "resets_per_step": timing.resets / (env_steps * len(timing.steady)),
        "checksum": timing.checksum,
        "memory_bytes": timing.memory,
    }


def _ratio(longer: Timing, shorter: Timing) -> float:
    return statistics.median(longer.steady) / statistics.median(shorter.steady)


def _obs(trainer: Trainer) -> str:
    return getattr(trainer.env, "obs", "default")


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: expected at least 1, got {size}")


def _check_devices(devices: int, lanes: int) -> None:
    if devices > jax.local_device_count():
        raise ValueError(f"devices: expected at most the {jax.local_device_count()} that are here, got {devices}")
    if lanes % devices:
        raise ValueError(f"lanes: expected a multiple of devices = {devices}, got {lanes}")


# what commands share ---------------------------------------------------------------------------------------------------------


def load_trainer(path: Path, overrides: Mapping[str, str] | None = None) -> tuple[Trainer, str]:
    """What a config trains, and a name for it."""
    from jaxagent import config

    return config.build(config.read(path, overrides))[0], path.stem


def summary(result: Result) -> str:
    """One line for a person."""
    lanes = f"  lanes={result['lanes']}" if result.get("lanes", 1) > 1 else ""
    lanes += f" on {result['devices']} devices" if result.get("devices", 1) > 1 else ""
    if "error" in result:
        return f"{result['case']}  B={result['num_envs']}{lanes}  {result['error']}"
    spread = (max(result["seconds"]) - min(result["seconds"])) / statistics.median(result["seconds"])
    return (
        f"{result['case']}  obs={result['obs']}  B={result['num_envs']}  T={result['num_steps']}{lanes}  "
        f"{result['steps_per_s']:.4g} steps/s  (spread {spread:.0%}, compiled in {result['compile_s']:.1f} s, "
        f"{result['resets_per_step']:.4f} resets a step)"
    )
