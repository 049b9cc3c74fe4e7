"""Entry point of ``regal-jax``: parse, run, and turn every expected failure into one line.

Exit codes:

- 0: done;
- 1: `verify` refutes a plan;
- 2: bad input;
- 3: no plan found fits the memory, or none can;
- 4: another process of a training run has ended;
- 130: interrupted before there was a result (training: before its end);
- 143: ended by SIGTERM, which acts like Ctrl-C.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from regal_jax.cli import machine
from regal_jax.cli.parser import build_parser
from regal_jax.cli.streams import steady_streams
from regal_jax.cli.terminate import TERMINATED, sigterm_acts_like_ctrl_c
from regal_jax.errors import InfeasiblePlanWarning, ResourceError
from regal_jax.runtime.interrupts import interruptible

__all__ = ["main"]


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"regal-jax: warning: {' '.join(str(message).split())}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: The arguments; those of the process by default.

    Returns:
      The exit code.
    """
    args = argparse.Namespace()
    with steady_streams():
        try:
            with sigterm_acts_like_ctrl_c() as terminated:
                try:
                    args = build_parser().parse_args(argv)
                    code = _run(args)
                except KeyboardInterrupt:
                    print(f"regal-jax: {'terminated' if terminated() else 'interrupted'}", file=sys.stderr)
                    code = 130
                    if getattr(args, "distributed", False):
                        machine.end_among_others(TERMINATED if terminated() else code)
            # Not 0, even if results were saved: the job may have to run again.
            return TERMINATED if terminated() else code
        finally:
            machine.end_quickly()


def _run(args: argparse.Namespace) -> int:
    try:
        # Within the import of a compiled module, an interrupt could end the process with a core dump.
        with interruptible(), warnings.catch_warnings(action="always", category=UserWarning):
            warnings.showwarning = _show_warning
            # The commands report this themselves.
            warnings.simplefilter("ignore", InfeasiblePlanWarning)
            return args.run(args)
    except BrokenPipeError:  # The reader of a pipe that a result was written to (--out /dev/stdout) has gone.
        return 0
    except (ValueError, ImportError, OSError, ResourceError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.filename and error.strerror:
            text = f"{os.fsdecode(error.filename)}: {error.strerror}; check the path"
        print(f"regal-jax {args.command}: error: {text}", file=sys.stderr)
        return 2
    except (MemoryError, RecursionError) as error:
        print(f"regal-jax {args.command}: error: input too large ({type(error).__name__})", file=sys.stderr)
        return 2
    except (AssertionError, RuntimeError):
        reason = machine.why_jax_cannot_start()
        if not reason:
            raise
        print(f"regal-jax {args.command}: error: {reason}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
