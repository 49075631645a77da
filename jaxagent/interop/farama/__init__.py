"""Farama's `minigrid`, both ways: its live environments as ours, at the state they are in, and states of ours as its own."""

from jaxagent.interop.farama.reading import from_farama
from jaxagent.interop.farama.writing import to_farama

__all__ = ["from_farama", "to_farama"]
