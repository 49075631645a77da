"""Environment steps a second: jaxagent, navix, xminigrid and Farama's MiniGrid, in one environment with one JAX version.

`python benchmarks/peers/env_throughput.py [--quick]` makes the virtual environment, measures, prints a table and writes
`benchmarks/results/peers_env.json` and `.png`. Each case is a (system, level, observation). The first round tries every
batch size; later rounds repeat each case at its best one. Systems take turns, one process at a time.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import harness

VENV = harness.Venv(
    name="env",
    requirements=(
        *("jax==0.11.2", "flax==0.12.12", "optax==0.2.8", "chex==0.1.92", "matplotlib==3.11.2"),
        *("xminigrid==0.9.3", "minigrid==3.2.0"),
        *("distrax==0.1.9", "rlax==0.1.9", "tyro==1.0.17", "wandb==0.31.0"),  # what importing navix takes
    ),
    without_dependencies=("navix==4.0.0",),
)
HORIZON = {"DoorKey-8x8": 640, "Empty-8x8": 256}  # step limit of the level: a repeat is one horizon in every environment
PYTHON_STEPS = 10_000
BATCHES = (512, 2048, 8192)


@dataclass(frozen=True)
class Case:
    system: str
    level: str
    obs: str

    @property
    def label(self) -> str:
        return f"{self.system} {self.obs}"


SYSTEMS = (
    ("jaxagent", "packed"),
    ("jaxagent", "symbolic"),
    ("navix", "full"),
    ("navix", "first_person"),
    ("xminigrid", "first_person"),
    ("minigrid", "symbolic"),
)


def measure(
    python: Path, cases: list[Case], *, batches: list[int], rounds: int, repeats: int, seed: int, quick: bool
) -> list[harness.Record]:
    """One record a case, at its best batch, with the rates of the other batches under `by_batch`."""
    tried: dict[Case, dict[int, list[harness.Record]]] = {case: {} for case in cases}
    for r, case in harness.interleaved(cases, rounds):
        for num_envs in _batches(case, batches) if r == 0 else [_best(tried[case])]:
            steps = PYTHON_STEPS if case.system == "minigrid" else HORIZON[case.level]
            settings = {"num_envs": num_envs, "num_steps": steps // 8 if quick else steps, "repeats": repeats, "seed": seed + r}
            record = harness.work(python, "env_workers.py", asdict(case) | settings)
            tried[case].setdefault(num_envs, []).append(record)
            print(f"round {r}  {case.level}  {case.label}  {num_envs}: {record['steps_per_s']:.4g}/s", flush=True)
    return [_summary(case, tried[case]) for case in cases]


def _batches(case: Case, batches: list[int]) -> list[int]:
    return [1] if case.system == "minigrid" else batches


def _best(tried: dict[int, list[harness.Record]]) -> int:
    return max(tried, key=lambda num_envs: tried[num_envs][0]["steps_per_s"])


def _summary(case: Case, tried: dict[int, list[harness.Record]]) -> harness.Record:
    best = _best(tried)
    steps = best * tried[best][0]["num_steps"]
    by_batch = {str(num_envs): records[0]["steps_per_s"] for num_envs, records in tried.items()}
    return asdict(case) | harness.pooled(tried[best], steps) | {"label": case.label, "by_batch": by_batch}


def compare(results: list[harness.Record]) -> None:
    """Adds `times_best_peer` to every record: its rate over that of the fastest JAX peer on the same level."""
    for level in {r["level"] for r in results}:
        here = [r for r in results if r["level"] == level]
        peers = [r["steps_per_s"] for r in here if r["system"] in ("navix", "xminigrid")]
        for record in here:
            record["times_best_peer"] = record["steps_per_s"] / max(peers) if peers else None


def show(results: list[harness.Record]) -> str:
    header = ("level, system, observation", "batch", "M steps/s", "range", "x best peer", "resets/step", "compile s")
    rows = [
        (
            f"{r['level']}  {r['label']}",
            str(r["num_envs"]),
            f"{r['steps_per_s'] / 1e6:.4f}",
            f"{r['steps_per_s_min'] / 1e6:.4f}-{r['steps_per_s_max'] / 1e6:.4f}",
            f"{r['times_best_peer']:.3f}" if r["times_best_peer"] else "-",
            f"{r['resets_per_step']:.5f}",
            f"{r['compile_s']:.1f}",
        )
        for r in results
    ]
    return harness.table(header, rows)


def main() -> None:
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument("--levels", nargs="+", choices=list(HORIZON), default=list(HORIZON))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), help="parallel environments to try")
    args = parser.parse_args()
    python = VENV.ensure(args.venv, harness.base_python(args.python))
    cases = [
        Case(system, level, obs)
        for level in args.levels
        for system, obs in SYSTEMS
        if args.systems is None or system in args.systems
    ]
    batches, rounds, repeats = (args.batches[:1], 1, 2) if args.quick else (args.batches, args.rounds, args.repeats)
    results = measure(python, cases, batches=batches, rounds=rounds, repeats=repeats, seed=args.seed, quick=args.quick)
    compare(results)
    payload = {
        "title": "Environment steps a second, random actions",
        "quick": args.quick,
        "provenance": harness.provenance({VENV.name: python}),
        "results": results,
    }
    path = harness.save(args.name or "peers_env", payload)
    harness.plot(python, path)
    print(show(results))
    print(f"\n{path.relative_to(harness.REPO)}")


if __name__ == "__main__":
    main()
