"""What learners have in common: checks of their fields, and the distribution of actions."""

import math
from typing import Any

import numpy as np

from jaxagent.networks.actor_critic import ActorCritic
from jaxagent.ops import minibatch
from jaxagent.ops.distributions import Distribution, from_action_space
from jaxagent.types import DictSpace, PyTree

# Least and greatest value of the traced fields, by name.
_RANGES = {
    "lr": (0.0, math.inf),
    "gamma": (0.0, 1.0),
    "gae_lambda": (0.0, 1.0),
    "clip_eps": (0.0, math.inf),
    "entropy_coef": (-math.inf, math.inf),
    "value_coef": (0.0, math.inf),
    "max_grad_norm": (0.0, math.inf),
    "lr_final": (0.0, math.inf),
    "clip_eps_final": (0.0, math.inf),
    "entropy_coef_final": (-math.inf, math.inf),
    "anneal_updates": (1.0, math.inf),
    "value_clip_eps": (0.0, math.inf),
    "target_kl": (0.0, math.inf),
    "adam_b1": (0.0, 1.0),
    "adam_b2": (0.0, 1.0),
    "adam_eps": (0.0, math.inf),
}


_COUNTS = ("num_epochs", "num_minibatches", "sequence_length")


def check_fields(learner: Any) -> None:
    """Raises ValueError for a field out of range, a sequence length without memory, or a final value never reached."""
    for field, (low, high) in _RANGES.items():
        value = getattr(learner, field, None)
        if value is not None and not np.all((np.asarray(value) >= low) & (np.asarray(value) <= high)):
            raise ValueError(f"{field}: expected a number in [{low:g}, {high:g}], got {value}")
    for field in _COUNTS:
        value = getattr(learner, field)
        if value is not None and value < 1:
            raise ValueError(f"{field}: expected a positive integer, got {value}")
    if learner.sequence_length is not None and not learner.network.memory:
        raise ValueError(f"sequence_length: expected None for a network without memory, got {learner.sequence_length}")
    finals = [field for field in _RANGES if field.endswith("_final") and getattr(learner, field, None) is not None]
    if finals and learner.anneal_updates is None:
        raise ValueError(f"anneal_updates: expected a number of updates where {finals[0]} is set, got None")


def check_batch(learner: Any, *, num_steps: int, num_envs: int) -> None:
    """Raises ValueError if batches `[num_steps, num_envs]` cannot be cut into equal minibatches."""
    minibatch.check_sizes(
        num_steps=num_steps,
        num_envs=num_envs,
        length=minibatch.sequence_length(learner.network.memory, learner.sequence_length, num_steps),
        num_minibatches=learner.num_minibatches,
    )


def action_distribution(network: ActorCritic, action_params: PyTree, observation: PyTree) -> Distribution:
    """The distribution that a network's output stands for, without what an `action_mask` in the observation rules out."""
    space = network.observation
    masked = isinstance(space, DictSpace) and "action_mask" in space
    return from_action_space(network.action, action_params, observation["action_mask"] if masked else None)
