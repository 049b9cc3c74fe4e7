"""``regal-jax compile``: an example's training step, in an order of instructions that takes less memory."""

import argparse
from typing import Any

from regal_jax.cli.arguments import Subparsers, count, seconds, seed
from regal_jax.cli.sources import check_writable
from regal_jax.errors import ConfigError

__all__ = ["add_compile"]


def add_compile(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "compile",
        help="compile an example with XLA in an order that takes less memory",
        description="Compile the training step of an example for the CPU, search for an order of its "
        "instructions that takes less memory, and print what XLA reports for both. Nothing is run.",
    )
    parser.add_argument("--example", metavar="NAME", help="a model; see 'show' (default moe-small)")
    parser.add_argument("--batch-size", type=count, metavar="B", help="of its inputs (default: its own)")
    parser.add_argument("--evaluations", type=count, default=2000, help="search budget (default 2000)")
    parser.add_argument("--time-limit", type=seconds, metavar="S", help="stop the search after S seconds")
    parser.add_argument("--seed", type=seed, default=0, help="(default 0)")
    parser.add_argument(
        "--candidates", type=count, default=2, help="most orders that XLA compiles (default 2)"
    )
    parser.add_argument("--method", metavar="NAME", default="order-search", help="(default order-search)")
    parser.add_argument("--no-cache", action="store_true", help="search again, even if an order is stored")
    parser.add_argument(
        "--out", metavar="FILE", help="save the order as JSON, for regal_jax.compile(plan=FILE)"
    )
    parser.set_defaults(run=_compile)


def _compile(args: argparse.Namespace) -> int:
    if args.out:
        check_writable(args.out)
    import jax

    from regal_jax.examples import DEFAULT_EXAMPLE, EXAMPLES
    from regal_jax.execution import compile

    name = args.example or DEFAULT_EXAMPLE
    if name not in EXAMPLES:
        raise ConfigError(f"example: there is no {name!r}; use one of {', '.join(EXAMPLES)}")
    step = EXAMPLES[name].build(args.batch_size)
    method: Any = args.method
    with jax.default_device(jax.devices("cpu")[0]):
        program = compile(
            step.fn,
            *step.args,
            donate_argnums=step.donate_argnums,
            method=method,
            time_limit=args.time_limit,
            evaluations=args.evaluations,
            seed=args.seed,
            cache=not args.no_cache,
            candidates=args.candidates,
        )
    print(f"{name}\n{program.report()}")
    if args.out:
        program.save_schedule(args.out)
        print(f"saved to {args.out}")
    return 0
