"""What learning to use tools comes to: cloning, rejection sampling, PPO and GRPO in every tool world, and what changes it.

    python benchmarks/tools.py table [--worlds ToolSelect-v0 ...] [--seeds 10] [--env-steps 1e6] [--name tools_table]
    python benchmarks/tools.py scripts | bonus | recovery | kl | lags | transformer | memory | speed [--seeds N]

- `scripts`: reward R and true objective R* of the four scripts of every world.
- `table`: every learner from the same clone of the SFT demonstrations, for as many environment steps.
- `bonus`: ToolSelect's pay for each call against its cost, turns and success after GRPO.
- `recovery`: ArgFill, cloned from demonstrations without faults, then learnt with them.
- `kl`: the weight of the divergence from the SFT policy, from none to large, and adaptive ones.
- `lags`: GRPO whose acting parameters are some updates old.
- `transformer`: ToolSelect and ArgFill with a token transformer, after a clone of three times as many steps.
- `memory`: what a step of PPO and of GRPO needs at an equal batch, with either network.
- `speed`: steps a second of scripted policies in every world, and of a transformer's acting with and without its memory.

Seeds, and settings of one shape, are lanes of one program. Policies are evaluated as they act: sampled, 512 episodes a seed.
Writes `benchmarks/results/NAME.json`; of `bonus` and `kl` a picture beside it.
"""

import argparse
import itertools
import time
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

jax.config.update("jax_num_cpu_devices", 2)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from learning import ROOT, machine  # noqa: E402

from jaxagent import config, evaluation, lanes, rollout  # noqa: E402
from jaxagent.envs import registry, tools  # noqa: E402
from jaxagent.envs.tools.base import SCRIPTS  # noqa: E402
from jaxagent.envs.vector import VectorEnv  # noqa: E402
from jaxagent.files import write_json  # noqa: E402
from jaxagent.loop import evaluation_key, summarise  # noqa: E402
from jaxagent.metrics import mean_interval  # noqa: E402
from jaxagent.networks.actor_critic import ActorCritic  # noqa: E402
from jaxagent.planners.scripted import scripted  # noqa: E402
from jaxagent.train import Trainer  # noqa: E402
from jaxagent.types import PyTree  # noqa: E402

LEARNERS = ("bc", "rejection", "ppo", "grpo")
SHOWN = ("success_rate", "performance_mean", "return_mean", "turns_mean", "recovery_rate")
_EPISODES = 512


class Fit(NamedTuple):
    """What training some lanes came to. Leaves are `[W, ...]`."""

    params: PyTree
    rows: list[dict[str, np.ndarray]]  # metrics of each segment; a lane that is done repeats its last
    evaluated: list[dict[str, Any]]  # one a lane
    env_steps: np.ndarray
    played: float  # env steps of all lanes, with those that the ones that are done make until the last is
    seconds: float  # of training, the first segment left out, which compiles
    first_seconds: float


def trainer(learner: str, world: str, **overrides: Any) -> Trainer:
    """That of `configs/tools_LEARNER.toml` in a world, with rollouts of whole episodes where it compares them."""
    document = config.read_toml(ROOT / "configs" / f"tools_{learner}.toml")
    env, _ = registry.make(world)
    longest = {"train.num_steps": env.spec.max_steps} if learner in ("grpo", "rejection") else {}
    document = config.replaced(document, {"env.name": world, **longest, **overrides})
    return config.build(config.parse(document, f"tools_{learner}"))[0]


def fit(
    trainers: Sequence[Trainer], seeds: Sequence[int], env_steps: float, warm: PyTree | None = None, segment: int = 10
) -> Fit:
    """Trains lanes until each has made so many environment steps; what a lane has learnt by then is what counts."""
    width = len(trainers)
    mesh = lanes.mesh_of(2 if width % 2 == 0 else 1)
    stacked, seeds_here = lanes.split((lanes.stacked(trainers), jnp.asarray(seeds, jnp.int32)), mesh)
    if warm is None:
        state = jax.jit(lanes.over_lanes(jax.vmap(lambda t, s: t.init(jax.random.key(s))), mesh))(stacked, seeds_here)
    else:
        init = jax.vmap(lambda t, s, w: t.init(jax.random.key(s), warm_start=w))
        state = jax.jit(lanes.over_lanes(init, mesh))(stacked, seeds_here, lanes.split(warm, mesh))
    advance = jax.jit(lanes.over_lanes(partial(lanes.advance, segment), mesh, shared=1), donate_argnums=1)
    keep = jax.jit(lanes.over_lanes(_kept, mesh))
    made, played, rows, began, first_seconds = np.zeros(width), 0.0, [], time.perf_counter(), 0.0
    learners = jax.jit(lambda x: jax.tree.map(jnp.copy, x))(state.learner)
    while made.min() < env_steps:
        is_done = made >= env_steps
        advanced = advance(stacked, state, jnp.int32(segment))
        state, metrics = advanced.state, jax.device_get(advanced.metrics)
        learners = keep(lanes.split(is_done, mesh), learners, state.learner)
        steps = metrics["env_steps"].sum(-1)
        made, played = np.where(is_done, made, made + steps), played + float(steps.sum())
        row = summarise(metrics, segment)
        rows.append({name: np.where(is_done, rows[-1][name], row[name]) if rows else row[name] for name in row})
        if len(rows) == 1:
            first_seconds = time.perf_counter() - began
    seconds = time.perf_counter() - began - first_seconds

    def play(trainer: Trainer, learner: PyTree, seed: jax.Array) -> evaluation.EpisodeResults:
        policy, agent = trainer.learner.policy(), trainer.learner.agent(learner)
        return evaluation.evaluate(trainer.env, trainer.params, policy, agent, evaluation_key(seed), num_episodes=_EPISODES)

    results = jax.device_get(jax.jit(lanes.over_lanes(jax.vmap(play), mesh))(stacked, learners, seeds_here))
    evaluated = [evaluation.summarise(jax.tree.map(lambda x, i=i: x[i], results)) for i in range(width)]
    return Fit(jax.device_get(learners.params), rows, evaluated, made, played, seconds, first_seconds)


def _kept(is_done: jax.Array, before: PyTree, now: PyTree) -> PyTree:
    """Lanes `[W, ...]` as they are now, but those that are done as they were before."""
    return jax.vmap(lambda done, *trees: jax.tree.map(partial(jnp.where, done), *trees))(is_done, before, now)


def over_seeds(evaluated: Sequence[Mapping[str, Any]], names: Sequence[str] = SHOWN) -> dict[str, Any]:
    """Mean and 95% interval of each figure over lanes; NaNs are left out."""
    found: dict[str, Any] = {}
    for name in names:
        values = np.array([row[name] for row in evaluated if row.get(name) is not None], float)
        values = values[np.isfinite(values)]
        if values.size:
            mean, interval = mean_interval(values) if values.size > 1 else (float(values[0]), None)
            found[name] = {"mean": mean, "ci95": interval}
    return found


def told(label: str, figures: Mapping[str, Any], **extra: Any) -> None:
    """One line."""
    shown = "  ".join(f"{name} {figure['mean']:.3f}" for name, figure in figures.items())
    print(f"{label:28} {shown}  {'  '.join(f'{k} {v}' for k, v in extra.items())}", flush=True)


def cloned(world: str, seeds: Sequence[int], env_steps: float = 3e6, **overrides: Any) -> Fit:
    return fit([trainer("bc", world, **overrides)] * len(seeds), seeds, env_steps)


def study_table(
    worlds: Sequence[str],
    seeds: Sequence[int],
    env_steps: float,
    *,
    learners: Sequence[str] = LEARNERS,
    clone_steps: float = 3e6,
    overrides: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
) -> dict[str, Any]:
    """`overrides`: of the learners' configs, by learner."""
    found: dict[str, Any] = {}
    for world in worlds:
        start = cloned(world, seeds, clone_steps, **overrides.get("bc", {}))
        found[world] = {"sft": over_seeds(start.evaluated) | {"seconds": start.seconds + start.first_seconds}}
        told(f"{world} sft", over_seeds(start.evaluated), seconds=f"{start.seconds + start.first_seconds:.0f}")
        for learner in learners:
            one = trainer(learner, world, **overrides.get(learner, {}))
            fitted = fit([one] * len(seeds), seeds, env_steps, start.params)
            figures = over_seeds(fitted.evaluated)
            rate = fitted.played * (len(fitted.rows) - 1) / len(fitted.rows) / max(fitted.seconds, 1e-9)
            found[world][learner] = figures | {
                "seconds": fitted.seconds + fitted.first_seconds,
                "env_steps": fitted.env_steps.mean(),
            }
            found[world][learner] |= {"steps_per_s": rate, "memory_bytes": _memory(one), "last": _last(fitted.rows)}
            told(
                f"{world} {learner}", figures, steps_per_s=f"{rate:.0f}", seconds=f"{fitted.seconds + fitted.first_seconds:.0f}"
            )
    return found


_TRANSFORMER = {"torso": "transformer", "layers": 2, "width": 64, "context": 64, "shared": True}


def study_transformer(worlds: Sequence[str], seeds: Sequence[int], env_steps: float) -> dict[str, Any]:
    overrides = {
        learner: {"network": _TRANSFORMER | {"critic": learner != "grpo"}, "learner.lr": 1e-3 if learner == "bc" else 3e-4}
        for learner in LEARNERS
    }
    return study_table(worlds, seeds, env_steps, learners=LEARNERS[1:], clone_steps=3 * env_steps, overrides=overrides)


def study_memory(world: str = "ToolSelect-v0") -> dict[str, Any]:
    """Both with a reference policy, a network for the actor alone, and as many steps and minibatches."""
    found: dict[str, Any] = {}
    batch = {"train.num_envs": 256, "train.num_steps": 24, "learner.num_minibatches": 2, "learner.num_epochs": 2}
    bag = {"torso": "bag", "hidden": [64], "memory": 64}
    for network in (bag, _TRANSFORMER):
        for learner in ("ppo", "grpo"):
            critic = {"shared": False, "critic": learner == "ppo"}
            one = trainer(learner, world, **batch, network=network | critic)
            state = jax.eval_shape(one.init, jax.random.key(0))
            held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.learner))
            label = f"{network['torso']} {learner}"
            found[label] = {"step_bytes": _memory(one), "learner_bytes": held}
            print(label, found[label], flush=True)
    return found


def _last(rows: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Means over lanes of what training logged last."""
    return {name: float(np.nanmean(values)) for name, values in rows[-1].items() if np.isfinite(values).any()}


def _memory(one: Trainer) -> int:
    """Bytes that a step of one lane needs, as the compiler says."""
    state = jax.eval_shape(one.init, jax.random.key(0))
    analysis = jax.jit(Trainer.step).lower(one, state).compile().memory_analysis()
    return int(analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes)


def study_bonus(seeds: Sequence[int], env_steps: float) -> dict[str, Any]:
    """Every cell of bonus x cost is a lane; the bonus is a call's two thirds for the tool, one third for its arguments."""
    bonuses, costs = (0.0, 0.05, 0.1, 0.15, 0.2), (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)
    start = cloned("ToolSelect-v0", seeds)
    cells = list(itertools.product(bonuses, costs))
    lanes_of = [(bonus, cost, seed) for bonus, cost in cells for seed in range(len(seeds))]
    one = trainer("grpo", "ToolSelect-v0")

    def with_prices(bonus: float, cost: float) -> Trainer:
        prices = {"tool_weight": bonus * 2 / 3, "arguments_weight": bonus / 3, "step_weight": -cost}
        return one.replace(params=one.params.replace(**{k: np.float32(v) for k, v in prices.items()}))

    trainers = [with_prices(bonus, cost) for bonus, cost, _ in lanes_of]
    warm = jax.tree.map(lambda x: np.stack([x[seed] for *_, seed in lanes_of]), start.params)
    fitted = fit(trainers, [seeds[seed] for *_, seed in lanes_of], env_steps, warm)
    found = {}
    for i, (bonus, cost) in enumerate(cells):
        figures = over_seeds(fitted.evaluated[i * len(seeds) : (i + 1) * len(seeds)])
        found[f"bonus {bonus:g}, cost {cost:g}"] = {"bonus": bonus, "cost": cost, **figures}
        told(f"bonus {bonus:g} cost {cost:g}", figures)
    return {"sft": over_seeds(start.evaluated), "cells": found, "seconds": fitted.seconds + fitted.first_seconds}


def study_recovery(seeds: Sequence[int], env_steps: float) -> dict[str, Any]:
    clean = {"env.params": {"fault_probability": 0.0}}
    start = cloned("ArgFill-v0", seeds, **clean)
    faulty = trainer("grpo", "ArgFill-v0", **{"learner.lr": 1e-30})  # plays as it is, among faults
    before = fit([faulty] * len(seeds), seeds, 1.0, start.params, segment=1)
    found = {"sft without faults": over_seeds(start.evaluated), "sft among faults": over_seeds(before.evaluated)}
    for learner in ("rejection", "ppo", "grpo"):
        fitted = fit([trainer(learner, "ArgFill-v0")] * len(seeds), seeds, env_steps, start.params)
        found[learner] = over_seeds(fitted.evaluated)
    for label, figures in found.items():
        told(label, figures)
    return found


def study_kl(seeds: Sequence[int], env_steps: float) -> dict[str, Any]:
    start = cloned("ToolSelect-v0", seeds)
    coefs, targets = (0.0, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0), (0.02, 0.05, 0.1, 0.2)
    found: dict[str, Any] = {"sft": over_seeds(start.evaluated)}
    for name, values in (("kl_coef", coefs), ("kl_target", targets)):
        given = {} if name == "kl_coef" else {"learner.kl_target": 0.1, "learner.kl_coef": 0.05}
        one = trainer("grpo", "ToolSelect-v0", **given)
        trainers = [one.replace(learner=one.learner.replace(**{name: value})) for value in values for _ in seeds]
        fitted = fit(trainers, [*seeds] * len(values), env_steps, _repeated(start.params, len(values)))
        half = fitted.rows[len(fitted.rows) // 2 :]
        for i, value in enumerate(values):
            lanes_here = slice(i * len(seeds), (i + 1) * len(seeds))
            figures = over_seeds(fitted.evaluated[lanes_here])
            kls = np.mean([row["kl"][lanes_here] for row in half], axis=0)
            figures["kl"] = {"mean": float(kls.mean()), "ci95": mean_interval(kls)[1] if kls.size > 1 else None}
            found[f"{name} {value:g}"] = figures
            told(f"{name} {value:g}", figures)
    return found


def _repeated(tree: PyTree, times: int) -> PyTree:
    """All lanes, so many times over."""
    return jax.tree.map(lambda x: np.concatenate([x] * times), tree)


def study_lags(seeds: Sequence[int], env_steps: float) -> dict[str, Any]:
    start, found = cloned("ToolSelect-v0", seeds), {}
    for lag in (0, 1, 4, 16):
        for bound in (2.0, 1e9) if lag else (2.0,):
            one = trainer("grpo", "ToolSelect-v0", **{"learner.lag": lag, "learner.max_importance": bound})
            fitted = fit([one] * len(seeds), seeds, env_steps, start.params)
            label = f"lag {lag}, importance at most {bound:g}"
            found[label] = over_seeds(fitted.evaluated) | {"last": _last(fitted.rows)}
            told(label, over_seeds(fitted.evaluated))
    return found


def study_scripts(num_episodes: int = 1000) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for world, script in itertools.product(sorted(tools.ENVS), SCRIPTS):
        env, params = registry.make(world)
        play = partial(evaluation.evaluate, env, params, scripted(env, script), None, num_episodes=num_episodes)
        summary = evaluation.summarise(jax.device_get(jax.jit(play)(jax.random.key(0))))
        found.setdefault(world, {})[script] = {name: summary[name] for name in SHOWN if name in summary}
        print(f"{world:18} {script:8} " + "  ".join(f"{n} {v:.3f}" for n, v in found[world][script].items() if v is not None))
    return found


def study_speed(num_envs: int = 4096) -> dict[str, Any]:
    found: dict[str, Any] = {"worlds": {}, "acting": {}}
    for world, script in itertools.product(sorted(tools.ENVS), SCRIPTS):
        rate = _scripted_rate(world, script, num_envs)
        found["worlds"].setdefault(world, {})[script] = rate
        print(f"{world:18} {script:8} {rate / 1e6:.2f} M steps/s", flush=True)
    found["acting"] = _acting()
    return found


def _scripted_rate(world: str, script: str, num_envs: int, num_steps: int = 64, repeats: int = 7) -> float:
    """Steps a second on both devices, half of the environments on each; every observation is read."""
    env, params = registry.make(world)
    mesh = lanes.mesh_of(2)
    vector_env, policy = VectorEnv(env, num_envs // 2), scripted(env, script)

    def play(state: PyTree, keys: jax.Array) -> tuple[PyTree, PyTree]:
        def one(state: rollout.RolloutState, key: jax.Array) -> tuple[PyTree, PyTree]:
            state = state._replace(vector=vector_env.refresh(state.vector, params))

            def body(state: PyTree, step_key: jax.Array) -> tuple[PyTree, PyTree]:
                state, (transition, _) = rollout.step(vector_env, policy, None, state, params, step_key)
                return state, jax.tree.map(lambda x: x.sum(), (transition.observation, transition.reward))

            return jax.lax.scan(body, state, jax.random.split(key, num_steps))

        return jax.vmap(one)(state, keys)

    begin = jax.jit(lanes.over_lanes(jax.vmap(lambda key: rollout.init(vector_env, policy, key, params)), mesh))
    run = jax.jit(lanes.over_lanes(play, mesh), donate_argnums=0)
    keys = lanes.split(jax.random.split(jax.random.key(0), 2), mesh)
    state, seconds = begin(keys), []
    for _ in range(repeats):
        began = time.perf_counter()
        state, sums = run(state, keys)
        jax.block_until_ready(sums)
        seconds.append(time.perf_counter() - began)
    return num_envs * num_steps / float(np.median(seconds[1:]))


def _acting(length: int = 64) -> dict[str, Any]:
    """Seconds of a decision after so many tokens, of which a step adds some: remembered, and with all of them read again."""
    env, _ = registry.make("ToolSelect-v0")
    found = {}
    for (layers, width), num_rows, added in itertools.product(((2, 64), (2, 128), (4, 256)), (16, 64, 256), (1, 3)):
        network = config.actor_critic(env.spec, torso="transformer", context=length, layers=layers, width=width)
        medians = _decisions(network.clone(episode_tokens=length), num_rows, added, length)
        label = f"{layers} layers of {width}, {num_rows} rows, {added} tokens a step"
        found[label] = medians | {"ratio": medians["again"] / medians["remembered"]}
        print(f"a decision at {length} tokens, {label}: {found[label]}", flush=True)
    return found


def _decisions(network: ActorCritic, num_rows: int, added: int, length: int, repeats: int = 60) -> dict[str, float]:
    params, steps = network.initial_params(jax.random.key(0)), length // added
    tokens = jnp.where(jnp.arange(8) < added, 3, 0)
    one = {"tokens": jnp.tile(tokens, (num_rows, 1)), "num_tokens": jnp.full(num_rows, added)}
    first = jnp.arange(steps)[:, None] == jnp.zeros((1, num_rows), jnp.int32)
    prefix = jax.tree.map(lambda x: jnp.broadcast_to(x, (steps, *x.shape)), one)
    remembered = jax.jit(lambda carry: network.apply(params, carry, one, jnp.zeros(num_rows, bool))[:2], donate_argnums=0)
    again = jax.jit(lambda prefix: network.apply(params, prefix, first, method="episodes")[0][-1])
    carry, seconds = network.initial_carry(num_rows), {"remembered": [], "again": []}
    for _ in range(steps):
        carry, logits = remembered(carry)
    for _ in range(repeats):
        began = time.perf_counter()
        carry, logits = remembered(carry)
        jax.block_until_ready(logits)
        seconds["remembered"].append(time.perf_counter() - began)
        began = time.perf_counter()
        jax.block_until_ready(again(prefix))
        seconds["again"].append(time.perf_counter() - began)
    return {name: float(np.median(values[5:])) for name, values in seconds.items()}


def draw_bonus(found: Mapping[str, Any], path: Path) -> None:
    """Turns and success by what a call pays and costs. Above the line a call earns more than it costs."""
    from matplotlib.figure import Figure

    cells = list(found["cells"].values())
    bonuses, costs = sorted({cell["bonus"] for cell in cells}), sorted({cell["cost"] for cell in cells})
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axis, (name, colours) in zip(
        figure.subplots(1, 2), (("turns_mean", "viridis_r"), ("success_rate", "viridis")), strict=True
    ):
        values = np.full((len(bonuses), len(costs)), np.nan)
        for cell in cells:
            values[bonuses.index(cell["bonus"]), costs.index(cell["cost"])] = cell[name]["mean"]
        image = axis.imshow(values, cmap=colours, origin="lower", aspect="auto")
        for row, column in np.ndindex(values.shape):
            shown = f"{values[row, column]:.1f}" if name == "turns_mean" else f"{values[row, column]:.0%}"
            dark = np.mean(image.cmap(image.norm(values[row, column]))[:3]) < 0.5
            axis.text(column, row, shown, ha="center", va="center", color="white" if dark else "black")
        axis.set(title=name.replace("_", " "), xlabel="cost of a step", ylabel="bonus of a call")
        axis.set_xticks(range(len(costs)), [f"{cost:g}" for cost in costs])
        axis.set_yticks(range(len(bonuses)), [f"{bonus:g}" for bonus in bonuses])
    figure.savefig(path, dpi=110)


def draw_kl(found: Mapping[str, Any], path: Path) -> None:
    """What a fixed coefficient comes to, and whether an adaptive one reaches its target."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    divergence, turns, reached = figure.subplots(1, 3)

    def of(name: str, kind: str) -> tuple[list[float], list[float], list[float]]:
        rows = [(float(key.split()[1]), row[name]) for key, row in found.items() if key.startswith(kind)]
        means = [row["mean"] for _, row in rows]
        return [x for x, _ in rows], means, [row["ci95"][1] - mean for (_, row), mean in zip(rows, means, strict=True)]

    for axis, name, label in ((divergence, "kl", "nats a step from the SFT policy"), (turns, "turns_mean", "turns")):
        x, mean, interval = of(name, "kl_coef")
        axis.errorbar(np.maximum(x, 3e-4), mean, interval, fmt="o-", markersize=3)
        axis.set(xscale="log", xlabel="coefficient (the first is 0)", ylabel=label)
    divergence.set(yscale="log")
    x, mean, interval = of("kl", "kl_target")
    reached.errorbar(x, mean, interval, fmt="o", markersize=4)
    reached.fill_between(x, 0.8 * np.array(x), 1.2 * np.array(x), alpha=0.2)
    reached.set(xlabel="target, with 20% around it", ylabel="nats a step reached")
    figure.savefig(path, dpi=110)


STUDIES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "scripts": lambda given: study_scripts(),
    "table": lambda given: study_table(given.worlds or sorted(tools.ENVS), range(given.seeds), given.env_steps),
    "bonus": lambda given: study_bonus(range(given.seeds), given.env_steps),
    "recovery": lambda given: study_recovery(range(given.seeds), given.env_steps),
    "kl": lambda given: study_kl(range(given.seeds), given.env_steps),
    "lags": lambda given: study_lags(range(given.seeds), given.env_steps),
    "transformer": lambda given: study_transformer(
        given.worlds or ["ToolSelect-v0", "ArgFill-v0"], range(given.seeds), given.env_steps
    ),
    "memory": lambda given: study_memory(),
    "speed": lambda given: study_speed(),
}
DRAWN = {"bonus": draw_bonus, "kl": draw_kl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--worlds", nargs="*", help="of table and transformer")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--env-steps", type=float, default=1e6)
    parser.add_argument("--name")
    given = parser.parse_args()
    began, found = time.perf_counter(), STUDIES[given.study](given)
    path = Path(ROOT / "benchmarks" / "results" / f"{given.name or f'tools_{given.study}'}.json")
    settings = {"seeds": given.seeds, "env_steps": given.env_steps}
    write_json(path, {"machine": machine(), **settings, "seconds": time.perf_counter() - began, "found": found})
    if given.study in DRAWN:
        DRAWN[given.study](found, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
