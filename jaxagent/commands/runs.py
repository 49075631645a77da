"""One run: training, going on, evaluating, watching."""

import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from jaxagent import trackers
from jaxagent.commands.common import Overrides, at_least_one, check_seed, no_file_in_the_way, show
from jaxagent.errors import UsageError

if TYPE_CHECKING:
    from jaxagent.config import Config
    from jaxagent.loop import Schedule
    from jaxagent.rundir import RunDir
    from jaxagent.train import Trainer
    from jaxagent.trained import Loaded

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
        no_file_in_the_way("--out", self.out)
        origin = self.init_from and self.init_from.resolve()  # the run may be resumed from another directory
        given = {"seed": self.seed, "num_seeds": self.seeds, "init_from": origin}
        top = {name: json.dumps(value, default=str) for name, value in given.items() if value is not None}
        if self.coordinator is not None and self.out is None:
            raise UsageError("--out: expected a directory that all processes see")
        settings = config.read(self.config, {**top, **_devices(self.devices, self.coordinator), **self.overrides})
        distributed.initialize(self.coordinator, num_processes=self.num_processes, process_id=self.process_id)
        distributed.count_processors(settings.rollout.devices)
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
        distributed.count_processors(config.read(found.config, devices).rollout.devices)
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
class Eval:
    """Play episodes with a trained agent on levels it was not trained on.

    Other params than the run's can be given as --env.params.NAME VALUE.

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
    overrides: Overrides = field(default_factory=dict)

    def run(self) -> None:
        import jax

        from jaxagent import evaluation
        from jaxagent.envs import babyai

        at_least_one(episodes=self.episodes)
        if self.episodes > _MOST_EPISODES:
            raise UsageError(f"--episodes: expected at most {_MOST_EPISODES}, got {self.episodes}")
        check_seed(self.seed)
        loaded = _loaded(self.directory, seed_index=self.seed_index, overrides=self.overrides)
        where = {} if self.level is None else {"level": self.level}
        if self.in_ == "farama":
            show(_evaluated_in_farama(loaded, self.episodes, self.seed, self.level) | where, as_json=self.json)
            return
        env, params, policy, agent = loaded
        if self.level is not None:
            params = _level_chosen(lambda: babyai.only(env, params, self.level))

        def play(agent: Any, params: Any, key: jax.Array) -> evaluation.EpisodeResults:
            return evaluation.evaluate(env, params, policy, agent, key, num_episodes=self.episodes)

        results = jax.jit(play)(agent, params, jax.random.key(self.seed))
        show(evaluation.summarise(results) | where, as_json=self.json)


@dataclass(frozen=True)
class Render:
    """Show the start of an environment, or an episode of a trained agent.

    Options of an environment can be given as --env.NAME VALUE; its params, also other ones than a run's, as --env.params.NAME.

    Attributes:
      what: Environment, or directory of a run.
      out: File to write: .gif for an episode, .png for its first moment, or in tool worlds for all of its calls; text in the
        terminal unless given.
      seed: Of the level.
    """

    what: Positional[str]
    out: Path | None = None
    seed: int = 0
    overrides: Overrides = field(default_factory=dict)

    def run(self) -> None:
        from jaxagent import report

        if self.out is not None and self.out.suffix not in (".png", ".gif"):
            raise UsageError(f"--out: expected a name that ends in .png or .gif, got {self.out}")
        if self.out is not None and not self.out.parent.is_dir():
            raise UsageError(f"--out: {self.out.parent} is no directory")
        check_seed(self.seed)
        trained = Path(self.what).is_dir()
        loaded = _loaded(Path(self.what), overrides=self.overrides) if trained else _random_agent(self.what, self.overrides)
        if not report.can_draw(loaded.env):
            raise UsageError(f"{loaded.env.spec.name} has nothing to draw: no grid, no text")
        if self.out is None:
            _print_episode(loaded, self.seed, all_frames=trained)
            return
        report.save_episode(loaded, self.out, seed=self.seed)
        print(self.out)


def _fit(
    settings: "Config", trainer: "Trainer", schedule: "Schedule", run: "RunDir", warm_start: Any, track: Sequence[str]
) -> None:
    from jaxagent import distributed, loop, report

    program = loop.Program(trainer, schedule, seed=settings.seed, num_seeds=settings.num_seeds)
    leads = distributed.leads()
    if leads:
        for warning in trainer.warnings():
            print(f"warning: train.{warning}", file=sys.stderr)
        print(f"run {run.path}", file=sys.stderr)
    try:
        with distributed.naming_lost_processes(), trackers.tracking(track if leads else (), run) as tracked:
            evaluation = loop.fit(program, schedule, run, warm_start=warm_start, track=tracked)
    except loop.Interrupted as stop:
        print(f"{stop}\ngo on with: jaxagent resume {run.path}", file=sys.stderr)
        raise SystemExit(stop.exit_code) from stop
    if not leads:
        return
    report.save_curves(run, demonstrated=trainer.demonstrated)
    report.save_episode(_loaded(run.path), run.episode)
    show(evaluation, as_json=False)


def _devices(devices: str | None, coordinator: str | None) -> dict[str, str]:
    """The setting that `--devices` stands for: all of them unless given, where there are several processes."""
    chosen = devices or ("all" if coordinator else None)
    return {} if chosen is None else {"train.devices": chosen}


def _warm_start(settings: "Config", trainer: "Trainer") -> Any:
    """The network parameters of the run that `init_from` names, None if it names none."""
    if settings.init_from is None:
        return None
    import jax

    from jaxagent import trained

    params = trained.network_params(Path(settings.init_from))
    try:
        jax.eval_shape(lambda key: trainer.init(key, warm_start=params), jax.random.key(0))
    except ValueError as error:
        raise UsageError(f"{settings.source}: init_from: {settings.init_from} does not fit: {error}") from error
    return params


def _loaded(path: Path, *, seed_index: int = 0, overrides: Mapping[str, str] | None = None) -> "Loaded":
    """The agent of a run, in its environment, of which `overrides` may set other params."""
    from jaxagent import config, rundir, trained

    for name in overrides or ():
        _check_of_env(name)
        if not name.startswith("env.params."):
            raise UsageError(f"--{name}: a run keeps the environment that it was trained in, but for --env.params.NAME")
    loaded = trained.load(path, seed_index=seed_index)
    if not overrides:
        return loaded
    settings = config.read(rundir.find(path).config, overrides)
    return loaded._replace(params=config.build_env(settings.env, settings.source)[1])


def _check_of_env(name: str) -> None:
    if not name.startswith("env.") or name == "env.name":
        raise UsageError(f"unknown option --{name}; expected settings of the environment, such as --env.params.NAME")


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


def _random_agent(name: str, overrides: Mapping[str, str]) -> "Loaded":
    """An environment, and a policy that acts at random in it."""
    from jaxagent import bench, config
    from jaxagent.trained import Loaded
    from jaxagent.types import Policy

    for option in overrides:
        _check_of_env(option)
    chosen = config.read_env(name, overrides)
    env, params = config.build_env(chosen, name)

    def act(agent: Any, carry: Any, inputs: Any, key: Any) -> tuple[Any, Any, dict[str, Any]]:
        return carry, bench.random_action(env.spec.action, key, len(inputs.is_first)), {}

    return Loaded(env, params, Policy(init=lambda num_envs: (), act=act), None)


def _print_episode(loaded: "Loaded", seed: int, *, all_frames: bool) -> None:
    import jax

    from jaxagent import report

    env: Any = loaded.env  # one that can be drawn
    frames, moments = itertools.tee(report.play(env, loaded.params, loaded.policy, loaded.agent, jax.random.key(seed)))
    for step, (moment, shown) in enumerate(zip(moments, report.as_text(env, frames), strict=True)):
        print(f"step {step}  return {moment.total_reward:.2f}  {shown}")
        if not all_frames:
            return


_MOST_EPISODES = 10**6  # they are played side by side
