"""Learners, by name. A new one is one file and one line here."""

from jaxagent.learners.bc import BC
from jaxagent.learners.grpo import GRPO
from jaxagent.learners.ppo import PPO

LEARNERS = {"bc": BC, "grpo": GRPO, "ppo": PPO}
