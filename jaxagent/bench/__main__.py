"""`python -m jaxagent.bench`, which needs no more than JAX's own libraries."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxagent import bench
from jaxagent.bench import Result, suite
from jaxagent.errors import JaxagentError, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m jaxagent.bench`. Returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        result = arguments.run(arguments)
    except (JaxagentError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", UsageError.exit_code)
    print(json.dumps(result) if arguments.json else suite.text(result))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jaxagent.bench", description=bench.__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="{env,train,policy,sweep,scale,quick}")

    def command(name: str, run: Callable[[argparse.Namespace], Result], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        added.add_argument("--json", action="store_true", help="print one JSON object")
        added.add_argument("--repeats", type=int, default=5, help="timed calls")
        added.set_defaults(run=run)
        return added

    env = command("env", _run_env, "environment steps under random actions")
    env.add_argument("name", help="a registered environment")
    env.add_argument("--obs", help="how it shows itself; its own default if not given")
    env.add_argument("--num-envs", type=int, default=2048, help="parallel environments")
    env.add_argument("--num-steps", type=int, default=1000, help="steps a timed call")
    env.add_argument("--linearity", action="store_true", help="also time twice the steps")
    train = command("train", _run_train, "whole updates: acting and learning")
    train.add_argument("config", type=Path, help="a TOML file")
    train.add_argument("--lanes", type=int, default=1, help="independent runs under one vmap")
    train.add_argument("--num-updates", type=int, default=8, help="updates a timed call")
    policy = command("policy", _run_policy, "acting without learning")
    policy.add_argument("config", type=Path, help="a TOML file")
    sweep = command("sweep", _run_sweep, "whole updates against the number of lanes, runs with learning rates of their own")
    scale = command("scale", _run_scale, "whole updates against the number of environments, and of devices with a run each")
    for curve in (sweep, scale):
        curve.add_argument("config", type=Path, help="a TOML file")
        curve.add_argument("--num-updates", type=int, default=4, help="updates a timed call")
        curve.add_argument("--out", type=Path, help="directory for sweep.json and sweep.png, or scale.json and scale.png")
    sweep.add_argument("--lanes", help="such as 1,2,4; if not given, five from the number of devices on")
    sweep.add_argument(
        "--devices", type=int, default=1, help="local devices that share the lanes; CPUs are made to count as many"
    )
    scale.add_argument("--num-envs", default="16,64,256,1024", help="parallel environments of a run")
    scale.add_argument("--devices", type=int, default=1, help="double the local devices up to so many; as for sweep")
    quick = command("quick", _run_quick, "a prepared run over worlds and sizes, for an accelerator")
    quick.add_argument("--out", type=Path, required=True, help="directory for bench.json")
    quick.add_argument("--config", type=Path, default=Path("configs/ppo_doorkey_8x8.toml"), help="what to train")
    quick.add_argument("--budget-s", type=float, default=360.0, help="start no case after so many seconds")
    quick.add_argument("--smoke", action="store_true", help="tiny sizes, which show that everything runs")
    return parser


def _run_env(arguments: argparse.Namespace) -> Result:
    return bench.bench_env(
        arguments.name,
        obs=arguments.obs,
        num_envs=arguments.num_envs,
        num_steps=arguments.num_steps,
        repeats=arguments.repeats,
        linearity=arguments.linearity,
    )


def _run_train(arguments: argparse.Namespace) -> Result:
    trainer, name = bench.load_trainer(arguments.config)
    return bench.bench_train(
        trainer, case=f"train/{name}", lanes=arguments.lanes, num_updates=arguments.num_updates, repeats=arguments.repeats
    )


def _run_policy(arguments: argparse.Namespace) -> Result:
    trainer, name = bench.load_trainer(arguments.config)
    return bench.bench_policy(trainer, case=f"policy/{name}", repeats=arguments.repeats)


def _run_sweep(arguments: argparse.Namespace) -> Result:
    calls = {"num_updates": arguments.num_updates, "repeats": arguments.repeats}
    return suite.sweep(arguments.config, lanes=arguments.lanes, devices=arguments.devices, out=arguments.out, **calls)


def _run_scale(arguments: argparse.Namespace) -> Result:
    calls = {"num_updates": arguments.num_updates, "repeats": arguments.repeats}
    return suite.scale(arguments.config, num_envs=arguments.num_envs, devices=arguments.devices, out=arguments.out, **calls)


def _run_quick(arguments: argparse.Namespace) -> Result:
    trainer, name = bench.load_trainer(arguments.config)
    sizes = suite.SMOKE if arguments.smoke else suite.FULL
    return suite.quick(trainer, name, arguments.out, sizes=sizes, budget_s=arguments.budget_s, repeats=arguments.repeats)


if __name__ == "__main__":
    sys.exit(main())
