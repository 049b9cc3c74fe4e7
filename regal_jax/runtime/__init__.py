"""The process: how many cores it has, loops that Numba compiles, Ctrl-C, packages that load what is used.

Nothing is imported here: `import regal_jax` needs `lazy` alone.
"""
