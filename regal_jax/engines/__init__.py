"""Engines: workers in other processes and on other machines, as of now those of a Ray cluster.

An engine moves bytes and plain values. It knows neither graphs nor plans, and imports neither JAX nor Ray
before it runs.
"""

from regal_jax.engines.names import check_engine_name, engine_of, opened
from regal_jax.engines.protocol import Engine, Item, Message
from regal_jax.engines.ray_engine import RayEngine

__all__ = ["Engine", "Item", "Message", "RayEngine", "check_engine_name", "engine_of", "opened"]
