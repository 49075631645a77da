"""A sweep as a TOML file: what is varied, how it is drawn, for how long each setting is trained, and what is best.

    base = "ppo_collector.toml"              # the config that the settings below change; beside this file

    [sweep]
    seeds = 2                                # of each trial: the base's seed and those after it
    samples = 256                            # draws of the axes that are ranges or choices
    total_steps = 300_000                    # environment steps of each lane, instead of the base's
    scheduler = "halving"                    # see `Plan`

    [fixed]                                  # settings that differ from the base's in all trials
    train.num_envs = 64

    [space]
    learner.lr = { log_uniform = [1e-4, 1e-2] }
    learner.entropy_coef = { uniform = [0.0, 0.3] }
    learner.num_epochs = { grid = [2, 4] }   # each with each of the other grids, and as many samples for each

Axes are `grid` (crossed), `list` (all lists of equal length advance together), and those that are sampled: `uniform`,
`log_uniform`, `int` (bounds included) and `choice`. Everything is checked, and every trial built, before anything compiles.
"""

import dataclasses
import hashlib
import itertools
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxagent import config, schema
from jaxagent.config import Config
from jaxagent.errors import ConfigError, DataError
from jaxagent.schema import Field
from jaxagent.train import Trainer

SAMPLED = ("uniform", "log_uniform", "int", "choice")
KINDS = ("grid", "list", *SAMPLED)
FLOATS = ("uniform", "log_uniform")  # those of SAMPLED that are for traced floats
_TABLES = ("env", "env.params", "learner", "network", "train")  # of a config, which hold the settings
_BUDGETS = ("num_updates", "total_steps")
_MOST_TRIALS = 100_000
_ONE_DEVICE = "not for sweeps, whose lanes are on one device each"


@dataclass(frozen=True)
class Plan:
    """The table `[sweep]`.

    Attributes:
      seeds: runs of each trial, with the base's seed and those after it.
      samples: draws of the sampled axes, for each combination of the others.
      sampler: `random`; `sobol`, a scrambled Sobol sequence, which covers the space more evenly; `tpe`, Optuna's, which draws
        `batch` trials at a time and learns from those before.
      sampler_seed: of the draws.
      batch: trials that `tpe` draws at a time.
      total_steps: environment steps of each lane, instead of the base's budget.
      num_updates: updates of each lane, likewise.
      objective: what is best: any mean or rate of the evaluation at the end, such as success_rate or turns_mean, and before the
        end of the training's last segment; success_rate, or return_mean where the environment knows no success, unless given.
      mode: whether the objective is to be large (`max`) or small (`min`).
      scheduler: `none` trains every trial to the end. `halving` stops all but the best 1 in `eta` at each rung (ASHA). `pbt`
        lets the worst fifth take over the state and the settings of the best at each rung, and changes those (PBT).
      rungs: stops at which lanes are looked at and saved, the end included.
      eta: each rung of `halving` is this many times as long as the one before it.
      width: lanes trained at once; as many as fit unless given.
      optuna: storage of an Optuna study that mirrors the ledger: a URL of a database, or the path of a journal.
    """

    seeds: int = 1
    samples: int = 1
    sampler: Literal["random", "sobol", "tpe"] = "random"
    sampler_seed: int = 0
    batch: int = 16
    total_steps: float | None = None
    num_updates: int | None = None
    objective: str | None = None
    mode: Literal["max", "min"] = "max"
    scheduler: Literal["none", "halving", "pbt"] = "none"
    rungs: int = 4
    eta: int = 4
    width: int | None = None
    optuna: str | None = None


@dataclass(frozen=True)
class Axis:
    """One setting that is varied."""

    name: str  # dotted path
    kind: str  # of KINDS
    values: tuple[Any, ...]  # the values of a grid, list or choice; the bounds of a range

    def at(self, quantile: float) -> Any:
        """The value of a sampled axis at a quantile in [0, 1)."""
        if self.kind == "choice":
            return self.values[int(quantile * len(self.values))]
        low, high = self.values
        if self.kind == "int":
            return low + int(quantile * (high - low + 1))
        if self.kind == "log_uniform":
            return float(np.clip(low * (high / low) ** quantile, low, high))
        return float(low + quantile * (high - low))


@dataclass(frozen=True)
class Trial:
    """One setting of everything that is varied.

    Attributes:
      id: ten hex digits of a hash of all that the run is made of but its seed.
      settings: what differs from the base config, by dotted path.
      config: the whole.
      trainer: what it builds.
    """

    id: str
    settings: Mapping[str, Any]
    config: Config
    trainer: Trainer

    @property
    def num_updates(self) -> int:
        return self.config.schedule.num_updates


@dataclass(frozen=True)
class Sweep:
    """A checked spec.

    Attributes:
      source: the file.
      base: the base config's path, from where the sweep is started.
      plan: the table `[sweep]`.
      fixed: settings of all trials, by dotted path.
      axes: what is varied.
      document: the base config's content.
    """

    source: str
    base: str
    plan: Plan
    fixed: Mapping[str, Any]
    axes: tuple[Axis, ...]
    document: Mapping[str, Any]

    def trial(self, settings: Mapping[str, Any]) -> Trial:
        """Checks and builds one trial from its values of the axes.

        Raises:
          ConfigError: a value that its field refuses, values that do not fit each other, or too few updates for the rungs.
        """
        changed = {**self.fixed, **settings}
        source = f"{self.source}: a trial"
        try:
            made = config.parse(config.replaced(self.document, changed), source)
            trainer, schedule = config.build(made)
        except ConfigError as error:
            raise ConfigError(self._in_terms_of_the_spec(str(error), source)) from error
        self._check_rungs(schedule.num_updates)
        same = dataclasses.replace(schedule, eval_every=0, checkpoint_every=0, keep=1)  # no part in what is trained
        identity = config.resolved_toml(dataclasses.replace(made, seed=0, num_seeds=1, schedule=same))
        return Trial(hashlib.sha256(identity.encode()).hexdigest()[:10], changed, made, trainer)

    def _in_terms_of_the_spec(self, complaint: str, source: str) -> str:
        """A complaint about a trial's config, where it names a field that the spec sets, as one about the spec."""
        told = {axis.name: f"space.{axis.name}" for axis in self.axes} | {name: f"fixed.{name}" for name in self.fixed}
        told |= {f"train.{name}": f"sweep.{name}" for name in _BUDGETS if getattr(self.plan, name) is not None}
        for name, ours in told.items():
            complaint = complaint.replace(f"{source}: {name}:", f"{self.source}: {ours}:")
        for axis in self.axes:
            if axis.kind in FLOATS:  # of an environment's params only the environment knows which are integers
                line = f"space.{axis.name}: {_no_float(axis, 'int, choice, grid or list')}"
                pattern = rf"space\.{re.escape(axis.name)}: expected an integer\b.*"
                complaint = re.sub(pattern, line, complaint)
        return complaint

    def _check_rungs(self, num_updates: int) -> None:
        fitting, halving = most_rungs(self.plan, num_updates), self.plan.scheduler == "halving"
        if self.plan.rungs > fitting:
            why = f", each {self.plan.eta} times as long as the one before" if halving else ""
            raise ConfigError(
                f"{self.source}: sweep.rungs: expected at most {fitting}, since a trial has {num_updates} updates to end them "
                f"at{why}, got {self.plan.rungs}"
            )

    @property
    def seeds(self) -> range:
        first = self.document.get("seed", 0)
        return range(first, first + self.plan.seeds)

    @property
    def name(self) -> str:
        return Path(self.source).stem

    def combinations(self) -> list[dict[str, Any]]:
        """Values of the grids and lists: each combination of grids with each place of the lists."""
        grids = [axis for axis in self.axes if axis.kind == "grid"]
        lists = [axis for axis in self.axes if axis.kind == "list"]
        places = [_named(lists, row) for row in zip(*(axis.values for axis in lists), strict=True)] or [{}]
        crossed = [_named(grids, row) for row in itertools.product(*(axis.values for axis in grids))]
        return [{**one, **other} for one in crossed for other in places]

    @property
    def sampled(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.kind in SAMPLED)

    def settings(self) -> list[dict[str, Any]]:
        """The values of the axes in each trial, where they can be known before any is trained (all samplers but `tpe`)."""
        if self.plan.sampler == "tpe":
            return []
        combinations, draws = self.combinations(), self._draws()
        return [{**fixed, **drawn} for fixed, drawn in itertools.product(combinations, draws)]

    def extremes(self) -> list[dict[str, Any]]:
        """Settings that may be drawn, though they need not be: each end of a range and each choice, beside one trial's rest."""
        middle = {axis.name: axis.at(0.5) for axis in self.sampled}
        first = next(iter(self.settings()), middle)
        ends = [(axis, value) for axis in self.sampled for value in axis.values]
        return [{**first, axis.name: value} for axis, value in ends]

    def _draws(self) -> list[dict[str, Any]]:
        if not self.sampled:
            return [{}]
        quantiles = _quantiles(self.plan, [axis.name for axis in self.sampled])
        return [_named(self.sampled, [axis.at(q) for axis, q in zip(self.sampled, row, strict=True)]) for row in quantiles]


def most_rungs(plan: Plan, num_updates: int) -> int:
    """How many rungs can end at different updates."""
    if plan.scheduler != "halving":
        return num_updates
    rungs = 1
    while num_updates > plan.eta ** (rungs - 1):
        rungs += 1
    return rungs


def _named(axes: Sequence[Axis], values: Sequence[Any]) -> dict[str, Any]:
    return {axis.name: value for axis, value in zip(axes, values, strict=True)}


def _quantiles(plan: Plan, names: Sequence[str]) -> np.ndarray:
    """`[samples, axes]` in [0, 1). Each axis of the random sampler has its own stream, so a new axis changes no other."""
    if plan.sampler == "sobol":
        from scipy.stats import qmc

        sequence = qmc.Sobol(len(names), rng=np.random.default_rng(plan.sampler_seed))
        drawn = sequence.random_base2(max(0, math.ceil(math.log2(plan.samples))))[: plan.samples]
        return np.minimum(drawn, np.nextafter(1.0, 0.0))
    streams = [np.random.default_rng([plan.sampler_seed, *name.encode()]) for name in names]
    return np.stack([stream.random(plan.samples) for stream in streams], axis=1)


# reading ----------------------------------------------------------------------------------------------------------------------


def read(path: Path) -> Sweep:
    """Reads and checks a spec, its base config included.

    Raises:
      ConfigError: what is wrong, in at most five lines.
    """
    return parse(config.read_toml(path), str(path), config.read_toml)


def parse(document: Mapping[str, Any], source: str, load: Callable[[Path], Mapping[str, Any]]) -> Sweep:
    """Checks a parsed spec; `load` reads the base config.

    Raises:
      ConfigError: see `read`.
    """
    tables = {"base": Field(str), "sweep": Field(dict, None), "fixed": Field(dict, None), "space": Field(dict)}
    config.refuse(source, schema.problems(document, tables, ""))
    plan_table = document.get("sweep", {})
    unknown = schema.problems(plan_table, plan_schema(), "sweep.", how="docs/sweeps.md lists them")
    config.refuse(source, [*unknown, *_plan_problems(plan_table)])
    plan = Plan(**schema.completed(plan_table, plan_schema()))
    path = Path(source).parent / document["base"]
    base = load(path)
    if config.parse(base, str(path)).rollout.devices is not None:
        config.refuse(str(path), [f"train.devices: {_ONE_DEVICE}"])
    fixed, axes = _flat(document.get("fixed", {})), _flat(document["space"], until=_is_axis)
    budget = {f"train.{name}": getattr(plan, name) for name in _BUDGETS if getattr(plan, name) is not None}
    config.refuse(source, _setting_problems(fixed, axes, budget))
    sweep = Sweep(source, str(path), plan, {**fixed, **budget}, tuple(_axis(name, table) for name, table in axes.items()), base)
    try:
        completed = config.parse(config.replaced(base, sweep.fixed), source)
    except ConfigError as error:
        raise ConfigError(sweep._in_terms_of_the_spec(str(error), source)) from error
    fields = {name: known for name, _, known in config.settings(completed)}
    begun = [] if completed.init_from is None else _network_problems(sweep)
    config.refuse(source, [*_field_problems(sweep, fields), *begun, *_size_problems(sweep)])
    return sweep


def plan_schema() -> schema.Schema:
    """What `[sweep]` takes."""
    return schema.of_dataclass(Plan)


def _plan_problems(table: Mapping[str, Any]) -> list[str]:
    least = {"seeds": 1, "samples": 1, "sampler_seed": 0, "batch": 1, "total_steps": 1, "num_updates": 1, "rungs": 1, "eta": 2}
    found = config.too_small(table, least | {"width": 1}, "sweep.")
    if len(table.keys() & set(_BUDGETS)) == 2:
        found.append("sweep: expected at most one of num_updates and total_steps")
    if table.get("sampler") == "tpe" and table.get("scheduler", "none") != "none":
        found.append("sweep.sampler: tpe learns from trials that were trained to the end; expected scheduler none")
    return found


def _flat(
    table: Mapping[str, Any], until: Callable[[str, Any], bool] = lambda name, value: False, path: str = ""
) -> dict[str, Any]:
    """Nested tables as dotted paths."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        deeper = isinstance(value, Mapping) and value and not until(f"{path}{name}", value)
        found |= _flat(value, until, f"{path}{name}.") if deeper else {f"{path}{name}": value}
    return found


def _is_axis(name: str, value: Any) -> bool:
    """Whether a table says how a setting is varied; else it holds settings, or what should be some."""
    return name not in _TABLES and any(not isinstance(inner, Mapping) for inner in value.values())


def _axis(name: str, table: Mapping[str, Any]) -> Axis:
    ((kind, values),) = table.items()
    return Axis(name, kind, tuple(float(value) if kind in FLOATS else value for value in values))


def _setting_problems(fixed: Mapping[str, Any], axes: Mapping[str, Any], budget: Mapping[str, Any]) -> list[str]:
    """What can be said without knowing the fields."""
    found = [] if axes else ["space: empty; expected at least one setting to vary"]
    for name in fixed.keys() & axes.keys():
        found.append(f"fixed.{name}: varied in space as well")
    for name in sorted({"train.num_updates", "train.total_steps"} & (fixed.keys() | axes.keys())):
        where = "fixed" if name in fixed else "space"
        ours = next(iter(budget), name).replace("train.", "sweep.")
        found.append(f"{where}.{name}: expected {ours} alone" if budget else f"{where}.{name}: expected {ours} instead")
    if "train.devices" in fixed.keys() | axes.keys():
        found.append(f"train.devices: {_ONE_DEVICE}")
    if "init_from" in axes:
        found.append("space.init_from: cannot be varied; expected a run in fixed")
    for name in sorted({"seed", "num_seeds"} & (fixed.keys() | axes.keys())):
        found.append(f"{name}: cannot be varied; sweep.seeds says how many seeds a trial has")
    for name in sorted({"env.name", "learner.name"} & axes.keys()):
        found.append(f"space.{name}: cannot be varied; expected a spec for each")
    for name, table in axes.items():
        found += _axis_problems(f"space.{name}", table)
    return found


def _axis_problems(path: str, table: Any) -> list[str]:
    if not isinstance(table, Mapping):
        return [f"{path}: expected a table such as {{ log_uniform = [1e-4, 1e-2] }}, got {schema.shown(table)}"]
    if len(table) != 1:
        return [f"{path}: expected one kind, got {' and '.join(map(schema.shown_key, table)) or 'none'}"]
    ((kind, values),) = table.items()
    if kind not in KINDS:
        return [f"{path}.{schema.shown_key(kind)}: unknown kind; {schema.suggestion(kind, KINDS)}"]
    if not isinstance(values, list):
        return [f"{path}.{kind}: expected a list, got {schema.shown(values)}"]
    if not values:
        return [f"{path}.{kind}: empty; expected at least one value"]
    if kind in ("grid", "list", "choice"):
        return []
    number = int if kind == "int" else float
    if len(values) != 2 or not all(schema.accepts(value, number) for value in values):
        numbers = "integers" if kind == "int" else "finite numbers"
        return [f"{path}.{kind}: expected [least, most], two {numbers}, got {schema.shown(values)}"]
    low, high = values
    if not low < high:
        return [f"{path}.{kind}: expected the least before the most, got {schema.shown(values)}"]
    return [f"{path}.{kind}: expected positive bounds, got {low}"] if kind == "log_uniform" and low <= 0 else []


def _field_problems(sweep: Sweep, fields: Mapping[str, Field]) -> list[str]:
    """Names that the config does not have, values that their fields refuse, ranges of what cannot be traced."""
    found = []
    for axis in sweep.axes:
        path = f"space.{axis.name}"
        if axis.name not in fields:
            how = f"jaxagent train {sweep.base} --help lists them"
            found.append(f"{path}: unknown setting; {schema.suggestion(axis.name, fields, how=how)}")
            continue
        hint, traced = fields[axis.name].hint, fields[axis.name].traced or axis.name.startswith("env.params.")
        if axis.kind in FLOATS and not (traced and schema.accepts(0.5, hint)):
            kinds = "int, choice, grid or list" if schema.accepts(1, hint) else "choice, grid or list"
            found.append(f"{path}: {_no_float(axis, kinds)}")
            continue
        for value in axis.values:
            if not schema.accepts(value, hint):
                found.append(f"{path}.{axis.kind}: expected {schema.expected(hint)}, got {schema.shown(value)}")
            elif schema.is_unset(value, hint):
                found.append(f"{path}.{axis.kind}: got {schema.UNSET}; what is off needs a sweep of its own")
    return found


def _network_problems(sweep: Sweep) -> list[str]:
    """What would need another network than that of the run that trials begin with."""
    names = [axis.name for axis in sweep.axes if axis.name.startswith(("network.", "env."))]
    how = "cannot be varied with init_from, whose network is as it is"
    return [f"space.{name}: {how}" for name in names if not name.startswith("env.params.")]


def _no_float(axis: Axis, others: str) -> str:
    return f"uniform and log_uniform are for floats that are traced; expected {others}, got {axis.kind}"


def _size_problems(sweep: Sweep) -> list[str]:
    lists = {axis.name: len(axis.values) for axis in sweep.axes if axis.kind == "list"}
    if len(set(lists.values())) > 1:
        lengths = ", ".join(f"{name} {length}" for name, length in lists.items())
        return [f"space: lists advance together; expected equal lengths, got {lengths}"]
    plan = sweep.plan
    if plan.samples > 1 and not sweep.sampled:
        return [f"sweep.samples: nothing to sample; expected an axis in space that is one of {', '.join(SAMPLED)}"]
    if plan.sampler == "tpe" and sweep.sampled != sweep.axes:
        return ["sweep.sampler: tpe draws every axis; expected choice instead of grid and list"]
    if plan.scheduler == "pbt" and not any(axis.kind in FLOATS for axis in sweep.axes):
        return ["sweep.scheduler: pbt changes traced floats; expected an axis in space that is uniform or log_uniform"]
    trials = math.prod(len(axis.values) for axis in sweep.axes if axis.kind == "grid") * plan.samples
    if trials * plan.seeds > _MOST_TRIALS:
        return [f"sweep: expected at most {_MOST_TRIALS} lanes, got {trials * plan.seeds}"]
    return []


# writing ----------------------------------------------------------------------------------------------------------------------


def resolved_toml(sweep: Sweep) -> str:
    """The spec with every default, and the base config in it."""
    document = {
        "base": sweep.base,
        "sweep": dataclasses.asdict(sweep.plan),
        "fixed": {name: value for name, value in sweep.fixed.items() if name.partition(".")[2] not in _BUDGETS},
        "space": {axis.name: {axis.kind: axis.values} for axis in sweep.axes},
        "config": sweep.document,
    }
    return config.to_toml(document)


def read_resolved(path: Path) -> Sweep:
    """The sweep that `resolved_toml` wrote to a file.

    Raises:
      DataError: it cannot be read, or is not what was written.
    """
    try:
        return from_resolved(path.read_bytes().decode(), str(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as TOML: {(str(error).splitlines() or [''])[0][:160]}") from error
    except ConfigError as error:
        raise DataError(str(error)) from error


def from_resolved(text: str, source: str) -> Sweep:
    """The sweep that `resolved_toml` wrote."""
    document = tomllib.loads(text)
    base = document.pop("config", None)
    if not isinstance(base, dict):
        raise ConfigError(
            f"{source}: config: expected the base config, got {'nothing' if base is None else schema.shown(base)}"
        )
    return dataclasses.replace(parse(document, source, lambda _: base), base=document["base"])
