"""The process: CPU cores, loops compiled by Numba, Ctrl-C, and lazy packages.

Nothing is imported here, since `import regal_jax` needs only `lazy`.
"""
