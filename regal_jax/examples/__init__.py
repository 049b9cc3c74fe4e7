"""Real models with their training steps, as graphs: `load_example`."""

from regal_jax.examples.kept import kept_example
from regal_jax.examples.registry import DEFAULT_EXAMPLE, EXAMPLES, Example, TrainingStep, load_example

__all__ = ["DEFAULT_EXAMPLE", "EXAMPLES", "Example", "TrainingStep", "kept_example", "load_example"]
