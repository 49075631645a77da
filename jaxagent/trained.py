"""A trained agent for use elsewhere."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagent import checkpoint, config, distributed
from jaxagent.envs.base import Environment
from jaxagent.errors import UsageError
from jaxagent.loop import Program
from jaxagent.rundir import find
from jaxagent.train import Trainer
from jaxagent.types import Agent, Policy, PyTree


class Loaded(NamedTuple):
    """What a run trained: `policy.act(agent, carry, inputs, key)` acts greedily in `env` with `params`."""

    env: Environment
    params: PyTree
    policy: Policy
    agent: Agent


def load(run: str | Path, *, step: int | None = None, seed_index: int = 0) -> Loaded:
    """Loads the agent of a run directory.

    Args:
      run: the directory.
      step: which checkpoint; the newest sound one unless given.
      seed_index: which of the run's seeds.

    Raises:
      UsageError: no run, or no such seed.
      CheckpointError: no such checkpoint, or none that is sound.
    """
    trainer, learner = _restored(Path(run), step, seed_index)
    return Loaded(trainer.env, trainer.params, trainer.learner.policy(greedy=True), trainer.learner.agent(learner))


def network_params(run: Path) -> PyTree:
    """The network's parameters that another run can begin with (`warm_start`); of several seeds the first's. See `load`."""
    trainer, learner = _restored(run, None, 0)
    return trainer.learner.network_params(learner)


def _restored(run: Path, step: int | None, seed_index: int) -> tuple[Trainer, PyTree]:
    """The trainer of a run, and its learner's state."""
    directory = find(run)
    settings = config.read(directory.config)
    if not 0 <= seed_index < settings.num_seeds:
        raise UsageError(f"seed_index: expected 0 <= seed_index < {settings.num_seeds}, got {seed_index}")
    trainer, schedule = config.build(settings, make_mesh=lambda _: distributed.local_mesh())
    program = Program(trainer, schedule, seed=settings.seed, num_seeds=settings.num_seeds)
    like = {"trainer": program.trainer, "state": program.shapes()}
    restored = checkpoint.restore(directory.checkpoints, like, step=step).tree
    trainer, learner = restored["trainer"], restored["state"].learner
    if settings.num_seeds > 1:
        learner = jax.tree.map(lambda leaf: jnp.asarray(leaf[seed_index]), learner)
    return trainer, learner
