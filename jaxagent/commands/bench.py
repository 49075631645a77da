"""`jaxagent bench`: throughput."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, subcommand

from jaxagent.commands.common import Overrides, blamed_on_usage, no_file_in_the_way, show


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
        result = blamed_on_usage(lambda: bench.bench_env(settings.pop("name"), **settings))
        show(result, as_json=as_json, text=bench.summary)


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
        result = blamed_on_usage(lambda: bench.bench_train(trainer, case=f"train/{name}", **sizes))
        show(result, as_json=self.json, text=bench.summary)


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
        result = blamed_on_usage(lambda: bench.bench_policy(trainer, case=f"policy/{name}", repeats=self.repeats))
        show(result, as_json=self.json, text=bench.summary)


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


BENCHES: dict[str, type] = {
    "env": BenchEnv,
    "train": BenchTrain,
    "policy": BenchPolicy,
    "sweep": BenchSweep,
    "scale": BenchScale,
}


def _bench_curves(measure: Callable[..., dict[str, Any]], command: BenchSweep | BenchScale) -> None:
    from jaxagent.bench import suite

    no_file_in_the_way("--out", command.out)
    settings = {f.name: getattr(command, f.name) for f in dataclasses.fields(command)}
    as_json = settings.pop("json")
    show(blamed_on_usage(lambda: measure(settings.pop("config"), **settings)), as_json=as_json, text=suite.text)
