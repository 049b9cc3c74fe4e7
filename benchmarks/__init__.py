"""Benchmarks of throughput, phases, compile time and memory. Run with ``python -m benchmarks``."""
