"""Learners, by name. A new one is one file and one line here."""

from jaxagent.learners.bc import BC
from jaxagent.learners.grpo import GRPO
from jaxagent.learners.ppo import PPO
from jaxagent.learners.rejection import Rejection

LEARNERS = {"bc": BC, "grpo": GRPO, "ppo": PPO, "rejection": Rejection}
