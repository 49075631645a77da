"""Flax modules: what agents compute with."""
