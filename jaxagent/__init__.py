"""Reinforcement learning on thousands of parallel episodes, whole inside one compiled JAX program.

    import jaxagent as ja

    env, params = ja.make("MiniGrid-DoorKey-8x8-v0")
    trainer = ja.Trainer(env, params, ja.PPO(network=ja.actor_critic(env.spec)), num_envs=256, num_steps=64)

Names are loaded when they are first used, so that the command line answers at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxagent import interop as interop
    from jaxagent.envs.base import Environment as Environment
    from jaxagent.envs.registry import make as make
    from jaxagent.envs.vector import VectorEnv as VectorEnv
    from jaxagent.evaluation import evaluate as evaluate
    from jaxagent.evaluation import summarise as summarise
    from jaxagent.learners import LEARNERS as LEARNERS
    from jaxagent.learners.bc import BC as BC
    from jaxagent.learners.grpo import GRPO as GRPO
    from jaxagent.learners.ppo import PPO as PPO
    from jaxagent.learners.rejection import Rejection as Rejection
    from jaxagent.networks.actor_critic import actor_critic as actor_critic
    from jaxagent.planners.expert import expert as expert
    from jaxagent.planners.scripted import scripted as scripted
    from jaxagent.rollout import unroll as unroll
    from jaxagent.train import RunState as RunState
    from jaxagent.train import Trainer as Trainer
    from jaxagent.trained import load as load
    from jaxagent.types import Batch as Batch
    from jaxagent.types import EnvSpec as EnvSpec
    from jaxagent.types import Policy as Policy
    from jaxagent.types import PolicyInput as PolicyInput
    from jaxagent.types import Transition as Transition

__version__ = "0.1.0"

_ORIGINS = {
    "BC": "learners.bc",
    "Batch": "types",
    "EnvSpec": "types",
    "Environment": "envs.base",
    "GRPO": "learners.grpo",
    "LEARNERS": "learners",
    "PPO": "learners.ppo",
    "Policy": "types",
    "PolicyInput": "types",
    "Rejection": "learners.rejection",
    "RunState": "train",
    "Trainer": "train",
    "Transition": "types",
    "VectorEnv": "envs.vector",
    "actor_critic": "networks.actor_critic",
    "evaluate": "evaluation",
    "expert": "planners.expert",
    "load": "trained",
    "make": "envs.registry",
    "scripted": "planners.scripted",
    "summarise": "evaluation",
    "unroll": "rollout",
}
__all__ = sorted([*_ORIGINS, "interop"])


def __getattr__(name: str) -> Any:
    if name == "interop":
        return importlib.import_module("jaxagent.interop")
    if name not in _ORIGINS:
        raise AttributeError(f"module 'jaxagent' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"jaxagent.{_ORIGINS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
