"""The config of a run that takes a second, for tests of all that is around a run."""

from typing import Any

from jaxagent import config


def document(seed: int = 0, **train: Any) -> dict[str, Any]:
    """The parsed file, with settings of `[train]`."""
    return {
        "seed": seed,
        "env": {"name": "Collector-v0"},
        "learner": {"name": "ppo", "num_epochs": 1, "num_minibatches": 1},
        "network": {"torso": "mlp", "hidden": [8]},
        "train": {"num_envs": 4, "num_steps": 8, "num_updates": 4, "segment": 2, "eval_episodes": 4, **train},
    }


def toml(seed: int = 0, **train: Any) -> str:
    """The file."""
    return config.to_toml(document(seed, **train))
