"""Environments by name: `make("MiniGrid-DoorKey-8x8-v0") -> (env, params)`.

A new environment is one file with a `make` and one line in `ENVS`. Environments of gymnax are found by their id as well: they
come through `jaxagent.interop.gymnax`, which stands above this package and is therefore loaded by name, when one is asked for.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from jaxagent import schema
from jaxagent.envs import babyai, gridworld, minigrid, tools
from jaxagent.envs.base import Environment, cast_param
from jaxagent.envs.grid import GridParams
from jaxagent.envs.tools.base import ToolEnv
from jaxagent.types import PyTree

GYMNAX_PREFIX = "gymnax/"
_GYMNAX_MODULE = "jaxagent.interop.gymnax"


class Entry(NamedTuple):
    """How to build a registered environment, and what a user may vary in it.

    Attributes:
      make: `make(name, **options) -> (env, params)`.
      signature: the function whose keyword arguments are the options.
      params: the dataclass of the params.
    """

    make: Callable[..., tuple[Environment, PyTree]]
    signature: Callable[..., Any]
    params: type


ENVS: dict[str, Entry] = {
    **{name: Entry(gridworld.make, build, gridworld.CollectorParams) for name, build in gridworld.ENVS.items()},
    **{name: Entry(minigrid.make, minigrid.make, GridParams) for name in minigrid.ENVS},
    **{name: Entry(babyai.make, babyai.make, GridParams) for name in babyai.ENVS},
    babyai.MIX: Entry(babyai.make_mix, babyai.make_mix, babyai.MixParams),
    **{name: Entry(tools.make, build, type(build().world.default_params)) for name, build in tools.ENVS.items()},
}

# what gymnax registers, so that a name is known, or its spelling corrected, without the seconds that importing gymnax takes
GYMNAX_IDS = (
    "Acrobot-v1",
    "Asterix-MinAtar",
    "BernoulliBandit-misc",
    "Breakout-MinAtar",
    "CartPole-v1",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "DiscountingChain-bsuite",
    "FourRooms-misc",
    "Freeway-MinAtar",
    "FrozenLake-misc",
    "GaussianBandit-misc",
    "MNISTBandit-bsuite",
    "MemoryChain-bsuite",
    "MetaMaze-misc",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "PointRobot-misc",
    "Pong-misc",
    "Reacher-misc",
    "Seaquest-MinAtar",
    "SimpleBandit-bsuite",
    "SpaceInvaders-MinAtar",
    "Swimmer-misc",
    "UmbrellaChain-bsuite",
)


def names() -> list[str]:
    """All environments of this package, sorted. Those of gymnax are not among them."""
    return sorted(ENVS)


def make(name: str, *, params: Mapping[str, Any] | None = None, **options: Any) -> tuple[Environment, PyTree]:
    """Builds an environment and its params.

    Args:
      name: one of `names()`, an id of gymnax, or `gymnax/ID`.
      params: fields of the params to set, by name: numbers, or nested lists of them in the field's shape. They stay traced.
      **options: what is static about this environment, such as `obs`.

    Raises:
      ValueError: an unknown name, option or field, or a value that does not fit.
    """
    check_name(name)
    if name not in ENVS:
        build = importlib.import_module(_GYMNAX_MODULE).make
    else:
        build = ENVS[name].make
        _check_known("option", options, option_defaults(name))
    options = schema.checked_arguments(ENVS[name].signature if name in ENVS else build, options)
    env, defaults = build(name, **options)
    given = {} if params is None else params
    chosen = override(defaults, given)
    _check_max_steps(env, chosen)
    if isinstance(env, ToolEnv):
        env.check_params(chosen)
    if isinstance(chosen, babyai.MixParams) and "weights" in given:
        babyai.check_weights("params.weights", given["weights"], np.size(chosen.weights))
    return env, chosen


def check_name(name: str) -> None:
    """Raises ValueError with the nearest known names where `make` could not build `name`."""
    known = (*names(), *GYMNAX_IDS)
    if not isinstance(name, str):
        raise ValueError(f"name: expected the name of an environment, got {name!r}")
    if name in known or name.startswith(GYMNAX_PREFIX):
        return
    near = get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `jaxagent envs` lists them"
    raise ValueError(f"name: expected the name of an environment, got {name!r}{hint}")


def option_defaults(name: str) -> dict[str, Any]:
    """Options of a registered environment and their defaults; empty for those of gymnax, which say so only when built."""
    if name not in ENVS:
        return {}
    parameters = inspect.signature(ENVS[name].signature).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def written_option(value: Any) -> str:
    """An option's value as it can be given on the command line, or `all 96 BabyAI levels`."""
    return f"all {len(value)} BabyAI levels" if value == tuple(babyai.ENVS) else schema.written(value)


def param_schema(name: str, *, build: bool = False) -> schema.Schema:
    """Fields of an environment's params; those of gymnax only with `build`, which loads it and takes seconds."""
    if name not in ENVS and not build:
        return {}
    fields = dataclasses.fields(ENVS[name].params if name in ENVS else make(name)[1])
    return {field.name: schema.Field(_hint(field.default), None, traced=True) for field in fields}


def _hint(default: Any) -> Any:
    """What a field of params takes, as far as its default tells."""
    if default is dataclasses.MISSING or default is None:
        return float | bool | list
    return {"b": bool, "f": float}.get(np.asarray(default).dtype.kind, int) if np.ndim(default) == 0 else list


def override(params: PyTree, values: Mapping[str, Any]) -> PyTree:
    """Returns `params`, a dataclass, with some fields set, each cast to its field's type and shape.

    Raises:
      ValueError: an unknown field, or a value of another kind or shape.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"params: expected a dict of fields to set, got {type(values).__name__}")
    _check_known("field", values, [field.name for field in dataclasses.fields(params)], path="params.")
    return dataclasses.replace(
        params, **{name: cast_param(name, value, getattr(params, name)) for name, value in values.items()}
    )


def _check_max_steps(env: Environment, params: PyTree) -> None:
    """Raises ValueError for a step limit beyond the static bound, which would silently hold instead."""
    given = getattr(params, "max_steps", None)
    if given is not None and np.any(np.asarray(given) > env.spec.max_steps):
        raise ValueError(f"params.max_steps: expected at most {env.spec.max_steps}, the bound of this environment, got {given}")


def _check_known(what: str, given: Collection[str], known: Collection[str], *, path: str = "") -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(known)) or 'none'}"
            raise ValueError(f"{path}{name}: unknown {what}; {hint}")
