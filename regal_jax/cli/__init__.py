"""The command ``regal-jax``."""

from regal_jax.cli.main import main

__all__ = ["main"]
