"""Learners, by name. A new one is one file and one line here."""

from jaxagent.learners.bc import BC
from jaxagent.learners.ppo import PPO

LEARNERS = {"bc": BC, "ppo": PPO}
