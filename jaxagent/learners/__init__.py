"""Learners, by name. A new one is one file and one line here."""

from jaxagent.learners.ppo import PPO

LEARNERS = {"ppo": PPO}
