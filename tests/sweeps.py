"""Small sweeps that tests share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxagent.sweep import spec
from jaxagent.sweep.spec import Sweep

BASE: dict[str, Any] = {
    "env": {"name": "Collector-v0"},
    "learner": {"name": "ppo", "num_epochs": 1, "num_minibatches": 1},
    "network": {"torso": "mlp", "hidden": [8]},
    "train": {"num_envs": 8, "num_steps": 8, "num_updates": 8, "segment": 2, "eval_episodes": 4},
}
LR = {"learner.lr": {"log_uniform": [1e-4, 1e-1]}}


def sweep(plan: Mapping[str, Any] = {}, space: Mapping[str, Any] = LR, fixed: Mapping[str, Any] = {}) -> Sweep:  # noqa: B006
    """Parsed as from a file; `plan` is the table `[sweep]`."""
    document = {"base": "base.toml", "sweep": dict(plan), "space": dict(space), "fixed": dict(fixed)}
    return spec.parse(document, "sweep.toml", lambda _: BASE)


def write(directory: Path, plan: str, space: str = "learner.lr = { log_uniform = [1e-4, 1e-1] }") -> Path:
    """The same as files. Returns the path of the spec."""
    (directory / "base.toml").write_text(
        'env.name = "Collector-v0"\n'
        'learner = { name = "ppo", num_epochs = 1, num_minibatches = 1 }\n'
        'network = { torso = "mlp", hidden = [8] }\n'
        "train = { num_envs = 8, num_steps = 8, num_updates = 8, segment = 2, eval_episodes = 4 }\n"
    )
    path = directory / "spec.toml"
    path.write_text(f'base = "base.toml"\n[sweep]\n{plan}\n[space]\n{space}\n')
    return path
