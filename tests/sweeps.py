"""Small sweeps that tests share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiny

from jaxagent import config
from jaxagent.sweep import spec
from jaxagent.sweep.spec import Sweep

BASE = tiny.document(num_envs=8, num_updates=8)
LR = {"learner.lr": {"log_uniform": [1e-4, 1e-1]}}


def sweep(
    plan: Mapping[str, Any] | None = None, space: Mapping[str, Any] | None = None, fixed: Mapping[str, Any] | None = None
) -> Sweep:
    """Parsed as from a file; `plan` is the table `[sweep]`, `space` varies the learning rate unless given."""
    document = {"base": "base.toml", "sweep": dict(plan or {}), "space": dict(space or LR), "fixed": dict(fixed or {})}
    return spec.parse(document, "sweep.toml", lambda _: BASE)


def write(directory: Path, plan: Mapping[str, Any], space: Mapping[str, Any] | None = None) -> Path:
    """The same as files. Returns the path of the spec."""
    (directory / "base.toml").write_text(config.to_toml(BASE))
    path = directory / "spec.toml"
    path.write_text(config.to_toml({"base": "base.toml", "sweep": plan, "space": space or LR}))
    return path
