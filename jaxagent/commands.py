"""What each command of the command line takes and does. What it needs is imported when it runs, so that help comes at once."""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, Suppress, UseAppendAction, arg, subcommand

from jaxagent import trackers
from jaxagent.errors import JaxagentError, UsageError

if TYPE_CHECKING:
    from jaxagent.config import Config
    from jaxagent.loop import Schedule
    from jaxagent.rundir import RunDir
    from jaxagent.train import Trainer
    from jaxagent.trained import Loaded

Overrides = Annotated[Mapping[str, str], Suppress]  # settings of a config by dotted path
Track = UseAppendAction[tuple[trackers.Name, ...]]


@dataclass(frozen=True)
class Train:
    """Train an agent as a config says.

    Every setting of the config can be given as --TABLE.NAME VALUE, such as --learner.lr 1e-3 or, for a list,
    --network.hidden 64,64; a list of one is [64]. With --help behind a config all of them are listed.

    Attributes:
      config: TOML file.
      out: Directory of the run, new or empty; runs/NAME-TIME unless given.
      seed: Instead of the config's.
      seeds: Train this many seeds side by side, from `seed` on.
      init_from: Run whose network to begin with; the first one's if it trained several seeds.
      track: Also report to tensorboard or wandb, into RUN/tracking/; may be given for each. Needs jaxagent[trackers].
      devices: How many devices share the environments: 1, 2, 4, 8 or all, which train alike.
      coordinator: HOST:PORT where process 0 waits for the others if several processes train together, or auto under SLURM.
      num_processes: How many processes there are.
      process_id: Which of them this one is, from 0.
    """

    config: Positional[Path]
    out: Path | None = None
    seed: int | None = None
    seeds: int | None = None
    init_from: Path | None = None
    track: Track = ()
    devices: str | None = None
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    overrides: Overrides = field(default_factory=dict)

    def run(self) -> None:
        from jaxagent import config, distributed, rundir

        trackers.check(self.track)
        origin = self.init_from and self.init_from.resolve()  # the run may be resumed from another directory
        given = {"seed": self.seed, "num_seeds": self.seeds, "init_from": origin}
        top = {name: json.dumps(value, default=str) for name, value in given.items() if value is not None}
        if self.coordinator is not None and self.out is None:
            raise UsageError("--out: expected a directory that all processes see")
        settings = config.read(self.config, {**top, **_devices(self.devices, self.coordinator), **self.overrides})
        distributed.initialize(self.coordinator, num_processes=self.num_processes, process_id=self.process_id)
        trainer, schedule = config.build(settings)  # before anything is written
        warm_start = _warm_start(settings, trainer)
        if not distributed.leads():
            _fit(settings, trainer, schedule, rundir.RunDir(self.out or Path()), warm_start, ())
            return
        path = self.out or rundir.new_path(self.config.stem)
        with rundir.create(path, config=config.resolved_toml(settings)) as run:
            _fit(settings, trainer, schedule, run, warm_start, self.track)


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its newest sound checkpoint.

    Attributes:
      directory: The run's directory.
      updates: Updates to reach in all, instead of the number that the run was started with.
      track: As for `train`; goes on with what the run has reported to the same tracker.
      devices: How many devices to go on with, if the run was trained on a number of them.
      coordinator: HOST:PORT where process 0 waits for the others if several processes train together, or auto under SLURM.
      num_processes: How many processes there are.
      process_id: Which of them this one is, from 0.
    """

    directory: Positional[Path]
    updates: int | None = None
    track: Track = ()
    devices: str | None = None
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def run(self) -> None:
        from jaxagent import checkpoint, config, distributed, files, rundir

        trackers.check(self.track)
        found = rundir.find(self.directory)
        devices = _devices(self.devices, self.coordinator)
        if devices and config.read(found.config).rollout.devices is None:
            raise UsageError(f"{found.config}: train.devices: expected a number to go on with several, got none")
        distributed.initialize(self.coordinator, num_processes=self.num_processes, process_id=self.process_id)
        with rundir.reopen(self.directory) if distributed.leads() else nullcontext(found) as run:
            done = max(checkpoint.steps(run.checkpoints), default=0)
            if self.updates is not None and self.updates < done:
                raise UsageError(f"--updates: expected at least the {done} that are done, got {self.updates}")
            overrides = devices | ({} if self.updates is None else {"train.num_updates": str(self.updates)})
            settings = config.read(run.config, overrides)
            trainer, schedule = config.build(settings)
            if overrides and distributed.leads():
                files.write_atomic(run.config, config.resolved_toml(settings).encode())
            warm_start = None if checkpoint.steps(run.checkpoints) else _warm_start(settings, trainer)
            _fit(settings, trainer, schedule, run, warm_start, self.track)


@dataclass(frozen=True)
class Sweep:
    """Train many settings and seeds side by side, as a spec says, and report which is best.

    Run it again to go on after a stop, or with more samples, seeds or values of grids.

    Attributes:
      spec: TOML file; docs/sweeps.md says what it takes.
      out: Directory of the sweep; sweeps/NAME unless given.
      executor: Where lanes are trained: in this process, in worker processes of this machine with a device each, on a Ray
        cluster, or as Slurm jobs. The last two need a directory that all nodes share.
      workers: Chunks of lanes at once, by workers, ray or slurm; one for each device, or processor, unless given.
      address: Of a Ray cluster, which has to ask for tokens; a local one unless given.
      devices: Devices to split lanes over in this process; all unless given. CPUs count a processor each.
    """

    spec: Positional[Path]
    out: Path | None = None
    executor: Literal["local", "workers", "ray", "slurm"] = "local"
    workers: int | None = None
    address: str | None = None
    devices: int | None = None

    def run(self) -> None:
        from jaxagent.loop import Interrupted
        from jaxagent.sweep import driver, executors, spec

        if self.workers is not None:
            _at_least_one(workers=self.workers)
        make_executor = executors.chosen(self.executor, workers=self.workers, address=self.address, devices=self.devices)
        board = driver.Board(driver.with_objective(spec.read(self.spec)))
        directory = self.out or Path("sweeps") / self.spec.stem
        print(f"sweep {directory}", file=sys.stderr)
        with driver.opened(directory, board.sweep) as rows:
            try:
                driver.run(board, directory, rows, make_executor=make_executor)
            except Interrupted as stop:
                print(f"{stop}\ngo on with the same command", file=sys.stderr)
                raise SystemExit(stop.exit_code) from stop
        Report((directory,)).run()
        failed = sum(row["status"] == "failed" for row in rows)
        if failed:
            raise JaxagentError(f"{failed} of {len(board.trials) * board.sweep.plan.seeds} lanes failed; the report says why")


@dataclass(frozen=True)
class Eval:
    """Play episodes with a trained agent on levels it was not trained on.

    Attributes:
      directory: The run's directory.
      episodes: Episodes to play.
      seed: Decides which levels are played.
      seed_index: Which of the run's seeds to evaluate.
      in_: Whose environment to play in: ours, or Farama's of the same id, which needs jaxagent[farama].
      level: Of a run trained on BabyAI-Mix: the id of the only level to play, which --in farama needs.
      json: Print one JSON object.
    """

    directory: Positional[Path]
    episodes: int = 512
    seed: int = 0
    seed_index: int = 0
    in_: Annotated[Literal["jaxagent", "farama"], arg(name="in")] = "jaxagent"
    level: str | None = None
    json: bool = False

    def run(self) -> None:
        import jax

        from jaxagent import evaluation, trained
        from jaxagent.envs import babyai

        _at_least_one(episodes=self.episodes)
        if self.episodes > _MOST_EPISODES:
            raise UsageError(f"--episodes: expected at most {_MOST_EPISODES}, got {self.episodes}")
        _check_seed(self.seed)
        loaded = trained.load(self.directory, seed_index=self.seed_index)
        where = {} if self.level is None else {"level": self.level}
        if self.in_ == "farama":
            _show(_evaluated_in_farama(loaded, self.episodes, self.seed, self.level) | where, as_json=self.json)
            return
        env, params, policy, agent = loaded
        if self.level is not None:
            params = _level_chosen(lambda: babyai.only(env, params, self.level))

        def play(agent: Any, params: Any, key: jax.Array) -> evaluation.EpisodeResults:
            return evaluation.evaluate(env, params, policy, agent, key, num_episodes=self.episodes)

        results = jax.jit(play)(agent, params, jax.random.key(self.seed))
        _show(evaluation.summarise(results) | where, as_json=self.json)


@dataclass(frozen=True)
class Render:
    """Show the start of an environment, or an episode of a trained agent.

    Attributes:
      what: Environment, or directory of a run.
      out: File to write: .png for the first moment, .gif for an episode; text in the terminal unless given.
      seed: Of the level.
    """

    what: Positional[str]
    out: Path | None = None
    seed: int = 0

    def run(self) -> None:
        from jaxagent import report

        if self.out is not None and self.out.suffix not in (".png", ".gif"):
            raise UsageError(f"--out: expected a name that ends in .png or .gif, got {self.out}")
        if self.out is not None and not self.out.parent.is_dir():
            raise UsageError(f"--out: {self.out.parent} is no directory")
        _check_seed(self.seed)
        trained = Path(self.what).is_dir()
        loaded = _loaded(Path(self.what)) if trained else _random_agent(self.what)
        if not report.can_draw(loaded.env):
            raise UsageError(f"{loaded.env.spec.name} has no grid to draw")
        if self.out is None:
            _print_episode(loaded, self.seed, all_frames=trained)
            return
        report.save_episode(loaded, self.out, seed=self.seed)
        print(self.out)


@dataclass(frozen=True)
class Report:
    """Compare the settings of a sweep, or several runs, on one HTML page: which is best, and how sure that is.

    Attributes:
      directories: A sweep's directory, or those of runs.
      out: HTML file to write; report.html in the first directory unless given.
      json: Print one JSON object instead, with the same content; the page is written only if --out is given.
      png: Directory to save the figures in.
      csv: File to write a sweep's ledger to, a row for each rung that a lane came to.
    """

    directories: Positional[tuple[Path, ...]]
    out: Path | None = None
    json: bool = False
    png: Path | None = None
    csv: Path | None = None

    def run(self) -> None:
        from jaxagent.report import analysis, figures, page, study
        from jaxagent.sweep import ledger

        if not self.directories:
            raise UsageError("expected the directory of a sweep, or those of runs")
        for option, file in (("--out", self.out), ("--csv", self.csv)):
            if file is not None and not file.parent.is_dir():
                raise UsageError(f"{option}: {file.parent} is no directory")
        read = study.read(self.directories)
        if self.csv is not None:
            if read.kind != "sweep":
                raise UsageError("--csv: expected a sweep's directory, since runs have no ledger")
            ledger.export_csv(self.directories[0], self.csv)
        found = analysis.analyse(read)
        if self.png is not None:
            figures.save_png(read, found, self.png)
        out = self.out or (None if self.json else self.directories[0] / "report.html")
        if out is not None:
            page.write(read, found, out)
        if self.json:
            _show(found, as_json=True)
            return
        print(page.text(found))
        print(out)


@dataclass(frozen=True)
class BenchEnv:
    """Environment steps a second under random actions.

    Attributes:
      name: Environment.
      obs: How it shows itself; its default unless given.
      num_envs: Parallel environments.
      num_steps: Steps a timed call.
      pool_size: Levels that ended episodes draw their next from, made anew in every call; as many as environments unless given.
      repeats: Timed calls.
      linearity: Also time twice the steps.
      json: Print one JSON object.
    """

    name: Positional[str]
    obs: str | None = None
    num_envs: int = 2048
    num_steps: int = 1000
    pool_size: int | None = None
    repeats: int = 5
    linearity: bool = False
    json: bool = False

    def run(self) -> None:
        from jaxagent import bench

        settings = dataclasses.asdict(self)
        as_json = settings.pop("json")
        result = _usage(lambda: bench.bench_env(settings.pop("name"), **settings))
        _show(result, as_json=as_json, text=bench.summary)


@dataclass(frozen=True)
class BenchTrain:
    """Environment steps a second of whole updates: acting, and learning from it.

    Attributes:
      config: TOML file; its settings can be given as for `train`.
      lanes: Independent runs under one vmap.
      num_updates: Updates a timed call.
      repeats: Timed calls.
      json: Print one JSON object.
    """

    config: Positional[Path]
    lanes: int = 1
    num_updates: int = 8
    repeats: int = 5
    json: bool = False
    overrides: Overrides = field(default_factory=dict)

    def run(self) -> None:
        from jaxagent import bench

        trainer, name = bench.load_trainer(self.config, self.overrides)
        sizes = {"lanes": self.lanes, "num_updates": self.num_updates, "repeats": self.repeats}
        result = _usage(lambda: bench.bench_train(trainer, case=f"train/{name}", **sizes))
        _show(result, as_json=self.json, text=bench.summary)


@dataclass(frozen=True)
class BenchPolicy:
    """Environment steps a second of acting without learning.

    Attributes:
      config: TOML file; its settings can be given as for `train`.
      repeats: Timed calls.
      json: Print one JSON object.
    """

    config: Positional[Path]
    repeats: int = 5
    json: bool = False
    overrides: Overrides = field(default_factory=dict)

    def run(self) -> None:
        from jaxagent import bench

        trainer, name = bench.load_trainer(self.config, self.overrides)
        result = _usage(lambda: bench.bench_policy(trainer, case=f"policy/{name}", repeats=self.repeats))
        _show(result, as_json=self.json, text=bench.summary)


@dataclass(frozen=True)
class BenchSweep:
    """Environment steps a second of whole updates against the number of lanes: runs side by side, each with its learning rate.

    Attributes:
      config: TOML file; its settings can be given as for `train`.
      lanes: Their numbers, such as 1,2,4; five from the number of devices on unless given.
      devices: Local devices that share the lanes; CPUs are made to count as so many.
      num_updates: Updates a timed call.
      repeats: Timed calls.
      out: Directory for sweep.json and sweep.png.
      json: Print one JSON object.
    """

    config: Positional[Path]
    lanes: str | None = None
    devices: int = 1
    num_updates: int = 4
    repeats: int = 5
    out: Path | None = None
    json: bool = False
    overrides: Overrides = field(default_factory=dict)

    def run(self) -> None:
        from jaxagent.bench import suite

        _bench_curves(suite.sweep, self)


@dataclass(frozen=True)
class BenchScale:
    """Environment steps a second of whole updates against the parallel environments, and the devices, each with a run.

    Attributes:
      config: TOML file; its settings can be given as for `train`.
      num_envs: Parallel environments of a run.
      devices: Measure with 1, 2, 4 and so on up to so many local devices; CPUs are made to count as so many.
      num_updates: Updates a timed call.
      repeats: Timed calls.
      out: Directory for scale.json and scale.png.
      json: Print one JSON object.
    """

    config: Positional[Path]
    num_envs: str = "16,64,256,1024"
    devices: int = 1
    num_updates: int = 4
    repeats: int = 5
    out: Path | None = None
    json: bool = False
    overrides: Overrides = field(default_factory=dict)

    def run(self) -> None:
        from jaxagent.bench import suite

        _bench_curves(suite.scale, self)


@dataclass(frozen=True)
class Bench:
    """Measure throughput."""

    what: (
        Annotated[BenchEnv, subcommand("env")]
        | Annotated[BenchTrain, subcommand("train")]
        | Annotated[BenchPolicy, subcommand("policy")]
        | Annotated[BenchSweep, subcommand("sweep")]
        | Annotated[BenchScale, subcommand("scale")]
    )

    def run(self) -> None:
        self.what.run()


@dataclass(frozen=True)
class Envs:
    """List the environments. Those of gymnax are found by their ids as well.

    Attributes:
      json: Print one JSON array.
    """

    json: bool = False

    def run(self) -> None:
        from jaxagent.envs import registry

        rows: list[dict[str, Any]] = [
            {"name": name, "options": registry.option_defaults(name), "params": list(registry.param_names(name))}
            for name in registry.names()
        ]
        rows += [{"name": name, "options": None, "params": None} for name in registry.GYMNAX_IDS]
        if self.json:
            print(json.dumps(rows))
            return
        for row in rows:
            native, defaults = row["options"] is not None, row["options"] or {}
            options = ", ".join(f"{name}={registry.written_option(default)}" for name, default in defaults.items())
            print(f"{row['name']:34} {options if native else '(gymnax)'}")


@dataclass(frozen=True)
class Learners:
    """List the learners and their fields.

    Attributes:
      json: Print one JSON array.
    """

    json: bool = False

    def run(self) -> None:
        from jaxagent import config, schema

        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "fields": [
                    {
                        "name": f"learner.{field_name}",
                        "type": schema.expected(setting.hint),
                        "default": None if setting.default is schema.REQUIRED else setting.default,
                        "traced": setting.traced,
                        "doc": setting.doc,
                    }
                    for field_name, setting in fields.items()
                ],
            }
            for name, fields in config.learner_schemas().items()
        ]
        if self.json:
            print(json.dumps(rows))
            return
        for row in rows:
            print(row["name"])
            for setting in row["fields"]:
                kind = "traced" if setting["traced"] else "static"
                print(
                    f"  {setting['name']:32} {setting['default']!s:10} {kind:7} {setting['type']:28} {setting['doc']}".rstrip()
                )


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices and the compilation cache, and what is known not to work with them.

    Attributes:
      json: Print one JSON object.
    """

    json: bool = False

    def run(self) -> None:
        from jaxagent import doctor

        found = doctor.examine()
        _show(found, as_json=self.json, text=doctor.text)
        if found["problems"]:
            raise JaxagentError(f"{len(found['problems'])} problem(s) found")


COMMANDS: dict[str, type] = {
    "train": Train,
    "resume": Resume,
    "sweep": Sweep,
    "eval": Eval,
    "render": Render,
    "report": Report,
    "bench": Bench,
    "envs": Envs,
    "learners": Learners,
    "doctor": Doctor,
}
BENCHES: dict[str, type] = {
    "env": BenchEnv,
    "train": BenchTrain,
    "policy": BenchPolicy,
    "sweep": BenchSweep,
    "scale": BenchScale,
}


# what they share --------------------------------------------------------------------------------------------------------------


def _fit(
    settings: "Config", trainer: "Trainer", schedule: "Schedule", run: "RunDir", warm_start: Any, track: Sequence[str]
) -> None:
    from jaxagent import distributed, loop, report

    program = loop.Program(trainer, schedule, seed=settings.seed, num_seeds=settings.num_seeds)
    leads = distributed.leads()
    if leads:
        print(f"run {run.path}", file=sys.stderr)
    try:
        with distributed.naming_lost_processes(), trackers.tracking(track if leads else (), run) as tracked:
            evaluation = loop.fit(program, schedule, run, warm_start=warm_start, track=tracked)
    except loop.Interrupted as stop:
        print(f"{stop}\ngo on with: jaxagent resume {run.path}", file=sys.stderr)
        raise SystemExit(stop.exit_code) from stop
    if not leads:
        return
    report.save_curves(run)
    report.save_episode(_loaded(run.path), run.episode)
    _show(evaluation, as_json=False)


def _bench_curves(measure: Callable[..., dict[str, Any]], command: BenchSweep | BenchScale) -> None:
    from jaxagent.bench import suite

    settings = {f.name: getattr(command, f.name) for f in dataclasses.fields(command)}
    as_json = settings.pop("json")
    _show(_usage(lambda: measure(settings.pop("config"), **settings)), as_json=as_json, text=suite.text)


def _devices(devices: str | None, coordinator: str | None) -> dict[str, str]:
    """The setting that `--devices` stands for: all of them unless given, where there are several processes."""
    chosen = devices or ("all" if coordinator else None)
    return {} if chosen is None else {"train.devices": chosen}


def _warm_start(settings: "Config", trainer: "Trainer") -> Any:
    """The network parameters of the run that `init_from` names, None if it names none."""
    if settings.init_from is None:
        return None
    import jax

    params = _loaded(Path(settings.init_from)).agent.params
    try:
        jax.eval_shape(lambda key: trainer.init(key, warm_start=params), jax.random.key(0))
    except ValueError as error:
        raise UsageError(f"{settings.source}: init_from: {settings.init_from} does not fit: {error}") from error
    return params


def _loaded(path: Path) -> "Loaded":
    from jaxagent import trained

    return trained.load(path)


def _evaluated_in_farama(loaded: "Loaded", num_episodes: int, seed: int, level: str | None) -> dict[str, Any]:
    from jaxagent import evaluation
    from jaxagent.envs import babyai
    from jaxagent.interop.farama.writing import counterpart

    env: Any = loaded.env  # a level that Farama has, or else this is where it is refused
    played = _level_chosen(lambda: babyai.member(env, level))
    try:
        counterpart(played)
    except (ImportError, ValueError) as error:
        raise UsageError(f"--in farama: {error}") from error
    results = evaluation.evaluate_in_farama(
        env, loaded.params, loaded.policy, loaded.agent, num_episodes=num_episodes, seed=seed, level=level
    )
    return evaluation.summarise(results) | {"in": "farama"}


def _level_chosen(choose: Callable[[], Any]) -> Any:
    try:
        return choose()
    except ValueError as error:  # it begins with `level: `
        raise UsageError(f"--{error}") from error


def _random_agent(name: str) -> "Loaded":
    """An environment, and a policy that acts at random in it."""
    from jaxagent import bench
    from jaxagent.envs import registry
    from jaxagent.trained import Loaded
    from jaxagent.types import Policy

    env, params = _usage(lambda: registry.make(name))

    def act(agent: Any, carry: Any, inputs: Any, key: Any) -> tuple[Any, Any, dict[str, Any]]:
        return carry, bench.random_action(env.spec.action, key, len(inputs.is_first)), {}

    return Loaded(env, params, Policy(init=lambda num_envs: (), act=act), None)


def _print_episode(loaded: "Loaded", seed: int, *, all_frames: bool) -> None:
    import jax
    import numpy as np

    from jaxagent import render, report

    env: Any = loaded.env  # one that can be drawn
    for step, frame in enumerate(report.play(env, loaded.params, loaded.policy, loaded.agent, jax.random.key(seed))):
        xy, direction = jax.device_get(env.agent(frame.env_state))
        print(f"step {step}  return {frame.total_reward:.2f}  {env.mission(frame.env_state)}")
        print(render.render_ascii(np.asarray(env.cells(frame.env_state)), agent_xy=xy, agent_dir=int(direction)))
        if not all_frames:
            return


def _show(result: Mapping[str, Any], *, as_json: bool, text: Callable[[Any], str] | None = None) -> None:
    from jaxagent.files import jsonable

    if as_json:
        print(json.dumps(jsonable(result), allow_nan=False))
    else:
        print((text or _lines)(result))


def _lines(result: Mapping[str, Any]) -> str:
    """Named numbers, each with its interval where it has one."""
    lines = []
    for name, value in result.items():
        if name.endswith("_ci95") or value is None or isinstance(value, list):
            continue
        interval = result.get(f"{name}_ci95")
        spread = "" if interval is None else f"  (95%: {interval[0]:.4g} to {interval[1]:.4g})"
        lines.append(f"{name:14} {value if isinstance(value, str) else f'{value:.6g}'}{spread}")
    return "\n".join(lines)


def _usage(call: Callable[[], Any]) -> Any:
    """Calls, and blames a ValueError on the command line."""
    try:
        return call()
    except ValueError as error:
        raise UsageError(str(error)) from error


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**31:
        raise UsageError(f"--seed: expected 0 to {2**31 - 1}, got {seed}")


_MOST_EPISODES = 10**6  # they are played side by side


def _at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"--{name}: expected at least 1, got {size}")
