"""PPO end to end on CartPole-v1: jaxagent against rejax at equal networks, batch, epochs, minibatches and JAX version.

`python benchmarks/peers/ppo_rejax.py [--quick]` makes two virtual environments (rejax needs an older gymnax), measures in
turns, prints a table and writes `benchmarks/results/peers_ppo.json` and `.png`. Beside each rate stands the limit that the
machine's matrix rate sets to a network of that width, and the share of it that is reached.
"""

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import harness

_COMMON = ("jax==0.11.2", "flax==0.12.12", "optax==0.2.8", "chex==0.1.92")
VENVS = {
    "rejax": harness.Venv("rejax", (*_COMMON, "rejax==0.1.3", "gymnax==0.0.9", "distrax==0.1.9")),
    "jaxagent": harness.Venv("jaxagent", (*_COMMON, "gymnax==1.0.1", "six==1.17.0", "matplotlib==3.11.2")),
}
BATCH = {"num_envs": 64, "num_steps": 128, "epochs": 4, "minibatches": 4}
STEPS = {64: 2**19, 256: 2**17}  # environment steps of a repeat, over all lanes, by width
OBSERVATION, ACTIONS = 4, 2  # CartPole


@dataclass(frozen=True)
class Case:
    system: str  # or "matmul"
    width: int
    lanes: int

    @property
    def level(self) -> str:
        return f"{self.width}-wide, {self.lanes} lane{'s' * (self.lanes > 1)}"


def flops_per_step(width: int) -> float:
    """Floating-point operations of the matrix products behind one environment step, two a multiply-add.

    Acting runs actor and critic once. Each epoch runs them forwards and backwards, where a backward pass costs two products a
    layer, of which the first layer needs one: nothing asks for the gradient of the observation.
    """
    forward = sum(2 * (OBSERVATION * width + width * width + width * out) for out in (ACTIONS, 1))
    first_layers = 2 * 2 * OBSERVATION * width
    return forward + BATCH["epochs"] * (3 * forward - first_layers)


def measure(
    pythons: dict[str, Path], cases: list[Case], *, rounds: int, repeats: int, seed: int, quick: bool
) -> dict[Case, list[harness.Record]]:
    records: dict[Case, list[harness.Record]] = {case: [] for case in cases}
    for r, case in harness.interleaved(cases, rounds):
        settings = BATCH | {"num_updates": num_updates(case, quick), "repeats": repeats, "seed": seed + r, "evaluate": r == 0}
        python = pythons["rejax" if case.system == "matmul" else case.system]
        record = harness.work(python, "ppo_workers.py", asdict(case) | settings)
        records[case].append(record)
        seconds = statistics.median(record["seconds"])
        print(f"round {r}  {case.level}  {case.system}: {seconds:.3f} s a repeat", flush=True)
    return records


def num_updates(case: Case, quick: bool) -> int:
    steps = STEPS[case.width] // (8 if quick else 1)
    return max(1, steps // (BATCH["num_envs"] * BATCH["num_steps"] * case.lanes))


def summarise(records: dict[Case, list[harness.Record]], quick: bool) -> list[harness.Record]:
    """One record a training case, with the limit by matrix rate and the share of it reached."""
    results = []
    for case, found in records.items():
        if case.system == "matmul":
            continue
        steps = num_updates(case, quick) * BATCH["num_envs"] * BATCH["num_steps"] * case.lanes
        record = asdict(case) | harness.pooled(found, steps)
        record |= {"level": case.level, "label": case.system, "final_return": found[0]["final_return"]}
        rate = matrix_rate(records[Case("matmul", case.width, 1)])
        limit = rate / flops_per_step(case.width)
        record |= {"flops_per_step": flops_per_step(case.width), "matrix_flops_per_s": rate, "limit_steps_per_s": limit}
        results.append(record | {"share_of_limit": record["steps_per_s"] / limit})
    by_case = {(r["system"], r["width"], r["lanes"]): r["steps_per_s"] for r in results}
    for r in results:
        peer = by_case.get(("rejax", r["width"], r["lanes"]))
        r["times_rejax"] = r["steps_per_s"] / peer if peer else None
    return results


def matrix_rate(records: list[harness.Record]) -> float:
    """Floating-point operations a second, median over all rounds."""
    return records[0]["flops"] / statistics.median(s for record in records for s in record["seconds"])


def show(results: list[harness.Record]) -> str:
    header = ("networks, lanes, system", "steps/s", "range", "x rejax", "GFLOP/s", "limit", "share", "return", "compile s")
    rows = [
        (
            f"{r['level']}  {r['system']}",
            f"{r['steps_per_s']:,.0f}",
            f"{r['steps_per_s_min']:,.0f}-{r['steps_per_s_max']:,.0f}",
            f"{r['times_rejax']:.2f}" if r["times_rejax"] else "-",
            f"{r['steps_per_s'] * r['flops_per_step'] / 1e9:.1f} of {r['matrix_flops_per_s'] / 1e9:.1f}",
            f"{r['limit_steps_per_s']:,.0f}",
            f"{r['share_of_limit']:.0%}",
            f"{r['final_return']:.0f}",
            f"{r['compile_s']:.1f}",
        )
        for r in results
    ]
    return harness.table(header, rows)


def main() -> None:
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument("--widths", nargs="+", type=int, choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--lanes", nargs="+", type=int, default=[1, 8])
    args = parser.parse_args()
    base_python = harness.base_python(args.python)
    pythons = {name: venv.ensure(args.venv, base_python) for name, venv in VENVS.items()}
    systems = [name for name in VENVS if args.systems is None or name in args.systems]
    cases = [Case("matmul", width, 1) for width in args.widths]
    cases += [Case(name, width, lanes) for width in args.widths for lanes in args.lanes for name in systems]
    rounds, repeats = (1, 2) if args.quick else (args.rounds, args.repeats)
    records = measure(pythons, cases, rounds=rounds, repeats=repeats, seed=args.seed, quick=args.quick)
    results = summarise(records, args.quick)
    payload = {
        "title": "PPO on CartPole-v1, environment steps a second",
        "quick": args.quick,
        "batch": BATCH,
        "provenance": harness.provenance(pythons),
        "results": results,
    }
    path = harness.save(args.name or "peers_ppo", payload)
    harness.plot(pythons["jaxagent"], path)
    print(show(results))
    print(f"\n{path.relative_to(harness.REPO)}")


if __name__ == "__main__":
    main()
