"""A long search finds what exhaustive search and CP-SAT prove to be the best."""


# Filled in when the exact solvers land.
