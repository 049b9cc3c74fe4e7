"""The command ``regal-jax``."""

try:
    from regal_jax.cli.main import main
except KeyboardInterrupt:
    # The command has not begun, and a traceback through its modules would tell nothing.
    import sys

    print("regal-jax: interrupted", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
