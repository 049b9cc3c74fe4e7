"""What regal_jax costs: throughput, phases, compile time, memory. Run with ``python -m benchmarks``."""
