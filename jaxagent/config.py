"""A run as a TOML file: strictly checked, completed with every default, and built.

    seed = 0                     # beside it num_seeds, and init_from, a run whose network to begin with
    [env]                        # name, and the environment's options
    [env.params]                 # its traced params
    [learner]                    # name, and the learner's fields
    [network]                    # arguments of `networks.actor_critic`
    [train]                      # see `RolloutConfig` and `loop.Schedule`; `total_steps` may stand for `num_updates`

`read` checks everything that can be checked without creating an array, so that a wrong file is refused before JAX looks for
devices. Nothing in a file is ever evaluated.
"""

import dataclasses
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jax.sharding import Mesh

from jaxagent import distributed, schema
from jaxagent.envs import registry
from jaxagent.envs.base import Environment
from jaxagent.envs.vector import LevelSource, ResetMode
from jaxagent.errors import ConfigError
from jaxagent.learners import LEARNERS
from jaxagent.loop import Schedule
from jaxagent.networks.actor_critic import actor_critic
from jaxagent.schema import Field, Schema
from jaxagent.train import Trainer
from jaxagent.types import PyTree

_MAX_BYTES = 64 * 1024  # a config has a few hundred; more is a mistake, and slow to parse
_MAX_LINES = 5  # of an error
_FEW = 2  # options that an error lists
_FLAGS = {"num_seeds": "seeds", "init_from": "init-from"}  # options of the command line that have other names than fields
_Built = TypeVar("_Built")


@dataclass(frozen=True)
class EnvConfig:
    name: str
    options: Mapping[str, Any]
    params: Mapping[str, Any]  # only those that differ from the environment's defaults


@dataclass(frozen=True)
class LearnerConfig:
    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class RolloutConfig:
    """How batches are gathered; `[train]` holds this and the `Schedule`.

    Attributes:
      num_envs: parallel environments, B.
      num_steps: steps a rollout in each, T.
      reset_mode: what follows the end of an episode: `same_step`, `next_step` or `none`.
      levels: where levels come from: a `pool` made anew each rollout, `fresh` ones for each reset, or `fixed` ones.
      pool_size: levels in the pool, as many as environments unless set.
      devices: 1, 2, 4 or 8 devices that share the environments, or `all`; these all train alike, and otherwise than unset.
    """

    num_envs: int = 64
    num_steps: int = 128
    reset_mode: ResetMode = "same_step"
    levels: LevelSource = "pool"
    pool_size: int | None = None
    devices: distributed.Devices | None = None


@dataclass(frozen=True)
class Config:
    """One run. Equal configs build equal runs.

    Attributes:
      seed: of everything random.
      env, learner, network, rollout, schedule: what the tables of the file say.
      num_seeds: runs side by side, with the seeds from `seed` on.
      init_from: directory of a run whose network to begin with.
      source: the file it came from, for messages.
    """

    seed: int
    env: EnvConfig
    learner: LearnerConfig
    network: Mapping[str, Any]
    rollout: RolloutConfig
    schedule: Schedule
    num_seeds: int = 1
    init_from: str | None = None
    source: str = dataclasses.field(default="config", compare=False)


# reading ----------------------------------------------------------------------------------------------------------------------


def read(path: Path, overrides: Mapping[str, str] | None = None) -> Config:
    """Reads and checks a config.

    Args:
      path: a TOML file.
      overrides: values by dotted path (`learner.lr`), written as in TOML; text needs no quotes, and lists need no brackets:
        `64,64`, `BabyAI-GoTo-v0,BabyAI-Open-v0`.

    Raises:
      ConfigError: what is wrong, in at most five lines, each with the path of the field.
    """
    content = read_toml(path)
    config = parse(content, str(path))
    if not overrides:
        return config
    values = {name: _value(text, lists="." in name) for name, text in overrides.items()}
    few = len(overrides) <= _FEW
    options = " ".join(map(option, overrides)) if few else f"{len(overrides)} options"
    return parse(replaced(content, values), f"{path} with {options}")


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds, unchecked.

    Raises:
      ConfigError: it cannot be read, or is no TOML.
    """
    try:
        if not path.is_file():
            found = "a directory" if path.is_dir() else "no regular file" if path.exists() else "nothing"
            raise ConfigError(f"{path}: expected a TOML file, found {found}")
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ConfigError(f"{path}: expected at most {_MAX_BYTES} bytes, found {size}")
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#04x} at {error.start}"
        ) from error
    except (ValueError, RecursionError) as error:  # a syntax error; a number of thousands of digits; nesting without end
        raise ConfigError(f"{path}: not valid TOML: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def replaced(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a document with values set by dotted path (`learner.lr`)."""
    changed = _copied(content)
    for dotted, value in values.items():
        *tables, name = dotted.split(".")
        table = changed
        for step in tables:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{dotted}: {step} is a value, not a table")
        table[name] = value
    train = changed.get("train")
    for given, other in (("num_updates", "total_steps"), ("total_steps", "num_updates")):
        if f"train.{given}" in values and f"train.{other}" not in values:
            train.pop(other, None)
    return changed


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def _value(text: str, *, lists: bool) -> Any:
    """A TOML value; what is none is text, or with `lists` a list, if it has commas or brackets."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    if parsed.keys() == {"value"}:
        return parsed["value"]
    bracketed = text.startswith("[") and text.endswith("]")
    items = [item.strip() for item in (text[1:-1] if bracketed else text).split(",")]
    if len(items) > 1 and not items[-1]:  # as in TOML and Python
        items.pop()
    if lists and (bracketed or "," in text) and all(items) and not any(bracket in "".join(items) for bracket in "[]"):
        return [_value(item, lists=False) for item in items]
    return text


# checking ---------------------------------------------------------------------------------------------------------------------


def parse(document: Mapping[str, Any], source: str) -> Config:
    """Checks a parsed TOML document and completes it with the defaults.

    Raises:
      ConfigError: see `read`.
    """
    if not document:
        raise ConfigError(f"{source}: empty; expected the tables env, learner and train")
    refuse(source, schema.problems(document, _top_schema(), ""))
    env, learner = document["env"], document["learner"]
    refuse(source, _name_problems(env, learner))
    network_schema, learner_schema = schema.of_function(actor_critic), learner_schemas()[learner["name"]]
    fields, network = _without(learner, "name"), document.get("network", {})
    refuse(
        source,
        [
            *_env_problems(env),
            *schema.problems(fields, learner_schema, "learner."),
            *schema.problems(network, network_schema, "network."),
            *_train_problems(document["train"]),
            *too_small(document, {"seed": 0, "num_seeds": 1}, ""),
        ],
    )
    return Config(
        seed=document.get("seed", 0),
        num_seeds=document.get("num_seeds", 1),
        env=_env_config(env),
        learner=LearnerConfig(learner["name"], schema.completed(fields, learner_schema)),
        network=schema.completed(network, network_schema),
        **_train_parts(document["train"]),
        init_from=document.get("init_from"),
        source=source,
    )


def read_env(name: str, overrides: Mapping[str, str]) -> EnvConfig:
    """The environment `name` with settings such as `env.turn` and `env.params.cache`, written and checked as `read` does.

    Raises:
      ConfigError: see `read`.
    """
    source = f"{name}{' with ' * bool(overrides)}{' '.join(f'--{path}' for path in overrides)}"
    refuse(source, _caught("env.", lambda: registry.check_name(name)))
    values = {path: _value(text, lists=True) for path, text in overrides.items()}
    env = replaced({"env": {}}, values)["env"] | {"name": name}
    refuse(source, _env_problems(env))
    return _env_config(env)


def learner_schemas() -> dict[str, Schema]:
    """What `[learner]` takes beside `name`, for each learner. The network has a table of its own."""
    return {name: schema.of_dataclass(learner, without=("network", "axes")) for name, learner in LEARNERS.items()}


def option(name: str) -> str:
    """That of `jaxagent train` for a setting."""
    return f"--{_FLAGS.get(name, name)}"


def settings(config: Config) -> Iterator[tuple[str, Any, Field]]:
    """Every setting in a table: its dotted path, its value, and what is known about it. Loads an environment of gymnax."""
    env = config.env
    doc = "traced; the environment's own unless given"
    params_schema = {name: field._replace(doc=doc) for name, field in registry.param_schema(env.name, build=True).items()}
    tables = (
        ("env", env.options, _option_schema(env.name)),
        ("env.params", env.params, params_schema),
        ("learner", config.learner.fields, learner_schemas()[config.learner.name]),
        ("network", config.network, schema.of_function(actor_critic)),
        ("train", vars(config.schedule) | vars(config.rollout), train_schema()),
    )
    for table, values, fields in tables:
        for name, known in fields.items():
            yield f"{table}.{name}", values.get(name), known


def refuse(source: str, problems: list[str]) -> None:
    """Raises ConfigError that lists the problems of a file, cut to an error's length; none pass."""
    if not problems:
        return
    left_out = len(problems) - (_MAX_LINES - 1)
    if left_out > 1:
        problems = [*problems[:-left_out], f"and {left_out} more"]
    raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems))


def _top_schema() -> Schema:
    tables = {name: Field(dict) for name in ("env", "learner", "train")}
    return {
        "seed": Field(int, 0),
        "num_seeds": Field(int, 1),
        "init_from": Field(str, None),
        "network": Field(dict, None),
        **tables,
    }


def _name_problems(env: Mapping[str, Any], learner: Mapping[str, Any]) -> list[str]:
    known = schema.expected(str)
    found = [
        f"{table}.name: " + (f"expected {known}, got {schema.shown(values['name'])}" if "name" in values else "missing")
        for table, values in (("env", env), ("learner", learner))
        if not isinstance(values.get("name"), str)
    ]
    if found:
        return found
    if learner["name"] not in LEARNERS:
        found.append(
            f"learner.name: unknown learner {schema.shown(learner['name'])}; {schema.suggestion(learner['name'], LEARNERS)}"
        )
    return _caught("env.", lambda: registry.check_name(env["name"])) + found


def _env_config(env: Mapping[str, Any]) -> EnvConfig:
    options = schema.completed(_without(env, "name", "params"), _option_schema(env["name"]) or _open_schema(env))
    return EnvConfig(env["name"], options, dict(env.get("params", {})))


def _env_problems(env: Mapping[str, Any]) -> list[str]:
    params = env.get("params", {})
    if not isinstance(params, dict):
        return [f"env.params: expected a table, got {schema.shown(params)}"]
    known = registry.param_schema(env["name"]) or {name: Field(float | bool | list, None) for name in params}
    option_schema = _option_schema(env["name"]) or _open_schema(env)
    return [
        *schema.problems(_without(env, "name", "params"), option_schema, "env."),
        *schema.problems(params, known, "env.params."),
    ]


def _option_schema(name: str) -> Schema:
    return schema.of_function(registry.ENVS[name].signature) if name in registry.ENVS else {}


def _open_schema(env: Mapping[str, Any]) -> Schema:
    """For environments that tell their options only when they are built."""
    return {name: Field(bool | int | float | str | list) for name in _without(env, "name", "params")}


def train_schema() -> Schema:
    """What `[train]` takes."""
    either = {
        "num_updates": Field(int, None, "updates to train for"),
        "total_steps": Field(float, None, "environment steps to train for, instead of num_updates"),
    }
    return schema.of_dataclass(RolloutConfig) | schema.of_dataclass(Schedule) | either


def _train_problems(train: Mapping[str, Any]) -> list[str]:
    found = schema.problems(train, train_schema(), "train.")
    if len(train.keys() & {"num_updates", "total_steps"}) != 1:
        found.append("train: expected exactly one of num_updates and total_steps")
    least = dict.fromkeys(train, 1) | {"eval_every": 0, "checkpoint_every": 0}
    if type(devices := train.get("devices")) is int and devices not in distributed.COUNTS:
        *few, most = distributed.COUNTS
        found.append(f"train.devices: expected {', '.join(map(str, few))}, {most} or all, got {devices}")
        least.pop("devices")
    found += too_small(train, least, "train.")
    if not found and _train_parts(train)["schedule"].num_updates >= 2**31:
        found.append("train.total_steps: expected less than 2^31 updates")
    return found


def too_small(values: Mapping[str, Any], least: Mapping[str, int], path: str) -> list[str]:
    """What is wrong with the numbers below their least value, one line each."""
    numbers = {name: value for name, value in values.items() if name in least and type(value) in (int, float)}
    return [f"{path}{name}: expected at least {least[name]}, got {n}" for name, n in numbers.items() if n < least[name]]


def _train_parts(train: Mapping[str, Any]) -> dict[str, Any]:
    values = schema.completed(train, train_schema())
    total_steps = values.pop("total_steps")
    if total_steps is not None:
        values["num_updates"] = math.ceil(total_steps / (values["num_envs"] * values["num_steps"]))
    rollout = {name: values.pop(name) for name in schema.of_dataclass(RolloutConfig)}
    return {"rollout": RolloutConfig(**rollout), "schedule": Schedule(**values)}


def _without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}


def _caught(path: str, check: Callable[[], Any]) -> list[str]:
    """The message of the ValueError that `check` raises, as a list of one problem below `path`."""
    try:
        check()
    except ValueError as error:
        return [f"{path}{error}"]
    return []


# building ---------------------------------------------------------------------------------------------------------------------


def build_env(env: EnvConfig, source: str) -> tuple[Environment, PyTree]:
    """The environment and its params.

    Raises:
      ConfigError: a value that the environment refuses.
    """
    try:
        return registry.make(env.name, params=env.params, **env.options)
    except ValueError as error:
        raise ConfigError(f"{source}: env.{error}") from error


def build(config: Config, *, make_mesh: Callable[[distributed.Devices], Mesh] = distributed.mesh) -> tuple[Trainer, Schedule]:
    """The run that a config describes, on devices of its own or on those that `make_mesh` finds for as many.

    Raises:
      ConfigError: values that do not fit each other, or the environment.
    """
    rollout, learner_type, fields = config.rollout, LEARNERS[config.learner.name], config.learner.fields

    def checked(path: str, make: Callable[[], _Built]) -> _Built:
        try:
            return make()
        except ValueError as error:
            raise ConfigError(f"{config.source}: {_field_path(path, str(error), config)}") from error

    env, params = build_env(config.env, config.source)
    network = checked("network.", lambda: actor_critic(env.spec, **config.network))
    sizes = dict(vars(rollout))
    devices = sizes.pop("devices")
    if devices is not None:
        if config.num_seeds > 1:
            raise ConfigError(f"{config.source}: num_seeds: expected 1 with train.devices, got {config.num_seeds}")
        sizes["mesh"] = checked("train.", lambda: make_mesh(devices))
    trainer = Trainer(env=env, params=params, learner=learner_type(network=network, **fields), **sizes)
    checked("train.", trainer.validate)
    return trainer, config.schedule


def _field_path(path: str, message: str, config: Config) -> str:
    """The message below the table that holds the field that it begins with, `path` if none does."""
    field, colon, rest = message.partition(":")
    if field.startswith(("env.", "learner.", "network.", "train.")):
        return message
    if field == "mesh":
        field, message = "devices", f"devices{colon}{rest}"
    tables = {
        "train.": vars(config.rollout),
        "learner.": config.learner.fields,
        "network.": config.network,
        "env.": config.env.options,
    }
    table = path if field in tables.get(path, ()) else next((name for name, held in tables.items() if field in held), path)
    return f"{table}{message}"


# writing ----------------------------------------------------------------------------------------------------------------------


def resolved_toml(config: Config) -> str:
    """The config with every default, as TOML that `read` turns into an equal config.

    What is None is left out, or `none` where that is not its default.
    """
    known = learner_schemas()[config.learner.name]
    unset = {name: "none" for name, value in config.learner.fields.items() if value is None and known[name].default is not None}
    document = {
        "seed": config.seed,
        "num_seeds": config.num_seeds,
        "init_from": config.init_from,
        "env": {"name": config.env.name, **config.env.options, "params": config.env.params},
        "learner": {"name": config.learner.name, **config.learner.fields, **unset},
        "network": config.network,
        "train": vars(config.schedule) | vars(config.rollout),
    }
    return to_toml(document)


def to_toml(document: Mapping[str, Any]) -> str:
    """Tables as TOML, without the values that are None. Keys with dots stand for nested tables."""
    return "\n".join(_table_lines(document, "")).lstrip() + "\n"


def _table_lines(table: Mapping[str, Any], path: str) -> list[str]:
    """Plain values first, as TOML demands, then the tables in the table."""
    lines = [
        f"{name} = {_literal(value)}" for name, value in table.items() if value is not None and not isinstance(value, Mapping)
    ]
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            lines += ["", f"[{path}{name}]", *_table_lines(value, f"{path}{name}.")]
    return lines


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)
