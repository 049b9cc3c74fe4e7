"""Foreign programs and file formats, each into the same `regal_jax.graph.ComputationGraph`."""
