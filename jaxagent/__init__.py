"""Reinforcement learning on thousands of parallel episodes, whole inside one compiled JAX program.

    import jaxagent as ja

    env, params = ja.make("MiniGrid-DoorKey-8x8-v0")
    trainer = ja.Trainer(env, params, ja.PPO(network=ja.actor_critic(env.spec)), num_envs=256, num_steps=64)
"""

from jaxagent.envs.base import Environment
from jaxagent.envs.registry import make
from jaxagent.envs.vector import VectorEnv
from jaxagent.evaluation import evaluate, summarise
from jaxagent.learners import LEARNERS
from jaxagent.learners.ppo import PPO
from jaxagent.networks.actor_critic import actor_critic
from jaxagent.rollout import unroll
from jaxagent.train import RunState, Trainer
from jaxagent.trained import load
from jaxagent.types import Batch, EnvSpec, Policy, PolicyInput, Transition

__version__ = "0.1.0"

__all__ = [
    "LEARNERS",
    "PPO",
    "Batch",
    "EnvSpec",
    "Environment",
    "Policy",
    "PolicyInput",
    "RunState",
    "Trainer",
    "Transition",
    "VectorEnv",
    "actor_critic",
    "evaluate",
    "load",
    "make",
    "summarise",
    "unroll",
]
