"""The simulator: from decisions to timelines, and from preferences to schedules; several implementations."""

from regal_jax.simulate.generate import GENERATORS, generate_schedules
from regal_jax.simulate.simulate import IMPLEMENTATIONS, SimulationResult, simulate

__all__ = ["GENERATORS", "IMPLEMENTATIONS", "SimulationResult", "generate_schedules", "simulate"]
