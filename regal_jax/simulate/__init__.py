"""The simulator, from decisions to timelines: one contract, several implementations."""

from regal_jax.simulate.simulate import IMPLEMENTATIONS, SimulationResult, simulate

__all__ = ["IMPLEMENTATIONS", "SimulationResult", "simulate"]
