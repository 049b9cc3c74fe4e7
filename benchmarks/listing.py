"""The list of benchmarks: ``python -m benchmarks list``."""

import argparse

from benchmarks.cases import SECTIONS, SIZES, benchmarks

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("--size", choices=SIZES, default="default", help="(default default)")


def run(args: argparse.Namespace) -> int:
    """Prints the benchmarks of each section; returns the exit code."""
    known = benchmarks(args.size)
    width = max(len(b.name) for b in known)
    for section, summary in SECTIONS.items():
        mine = [b for b in known if b.section == section]
        if mine:
            print(f"{section}: {summary}")
            print("\n".join(f"  {b.name:{width}}  {b.summary}" for b in mine))
    return 0
