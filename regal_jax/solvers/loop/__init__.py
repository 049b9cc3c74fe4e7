"""The loop that runs all solvers: warm starts, turns, batches, stopping and results."""
