"""``regal-jax propose``: many plans of one graph, the best on a target. Heavy imports stay inside."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from regal_jax.checks import counted
from regal_jax.cli import machine
from regal_jax.cli.arguments import Subparsers, count, folder_name, seed
from regal_jax.cli.clusters import cluster_of
from regal_jax.cli.resume import Question, previous_results
from regal_jax.cli.sources import load, made_folder
from regal_jax.errors import ConfigError
from regal_jax.runtime.interrupts import first_interrupt_waits

if TYPE_CHECKING:
    from regal_jax.graph import Cluster, ComputationGraph
    from regal_jax.robust import Proposals

__all__ = ["add_propose"]

_INFEASIBLE: Final = 3
_SOURCES: Final = (
    "auto", "brkga", "brkga-runs", "scenario-runs", "list-scheduling", "random", "gflownet", "ppo",
)  # fmt: skip
_CHOICES: Final = ("scenarios", "proxy")
_TARGETS: Final = ("noisy", "bandwidth", "latency")
_BEST: Final = "best.json"
_NAMES: Final = re.compile(r"plan-\d{3,}\.json|best\.json")
"""Files that a run writes."""

_EPILOG: Final = """\
A cost model is never exactly right. 'propose' makes many plans that are good by the cost model and differ
from each other. Try the best few of them on the real devices (docs/robust.md). --target tries them on a
model of devices that differs from the cost model:

  noisy      runtimes were profiled wrongly
  bandwidth  transfers are slow
  latency    every transfer starts late

DIR gets plan-000.json and so on. By default the first is the best by the cost model, and each of the others
the one that adds most to those before it where costs differ (--choose). With --target, DIR also gets
best.json, the best plan on the target. 'regal-jax show DIR/plan-000.json' describes a plan.
The plans replace those of an earlier run for the same graph and cluster; others in DIR are an error.

examples:
  regal-jax propose model.onnx --keep 20 --out-dir plans
  regal-jax propose model.onnx --source brkga --count 1000 --keep 100 --target bandwidth --out-dir plans
  regal-jax propose model.onnx --source brkga-runs --evaluations 50 --out-dir plans
  regal-jax propose --example mlp --devices 2 --transfer delay:nvlink4 --source list-scheduling

exit codes: 0 done; 2 bad input; 3 no plan fits the memory; 130 interrupted.
"""


def add_propose(subparsers: Subparsers, add_source: Callable[[argparse.ArgumentParser], None]) -> None:
    """Adds the command to the parser.

    Args:
      subparsers: Subparsers of the parser.
      add_source: Adds the arguments that name a graph.
    """
    propose = subparsers.add_parser(
        "propose",
        help="propose many good and different plans of a graph",
        description="Propose many plans of one graph, keep the best ones, and choose one on a target.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source(propose)
    propose.add_argument("--devices", type=count, default=4, help="number of devices (default 4)")
    propose.add_argument(
        "--memory", default="inf", help="capacity of each device, or one each: 16GiB,8GiB (default inf)"
    )
    propose.add_argument(
        "--transfer",
        metavar="MODEL:LINK",
        default="free",
        help="how data moves by the cost model, as in 'optimize' (default free)",
    )
    propose.add_argument(
        "--source",
        type=str.lower,
        choices=_SOURCES,
        default="auto",
        help="source of the plans (default auto: gflownet or ppo, as the --weights are, else scenario-runs)",
    )
    propose.add_argument(
        "--weights", metavar="FILE", help="of gflownet or ppo; 'default' for those that ship"
    )
    propose.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="of gflownet: lower is better in the mean and less diverse (default 0.005)",
    )
    propose.add_argument(
        "--count",
        type=count,
        default=1000,
        help="plans to propose; brkga proposes whole populations, at least so many (default 1000)",
    )
    propose.add_argument("--keep", type=count, default=100, help="plans to keep (default 100)")
    propose.add_argument(
        "--choose",
        choices=_CHOICES,
        default=_CHOICES[0],
        help="plans to keep: those that together do best where costs differ from the cost model, or those "
        "that are best by the cost model (default scenarios)",
    )
    propose.add_argument(
        "--evaluations",
        type=count,
        help="budget of each run of brkga, brkga-runs and scenario-runs (default: their own)",
    )
    propose.add_argument("--seed", type=seed, default=0, help="(default 0)")
    propose.add_argument("--target", choices=_TARGETS, help="model of the devices on which plans are tried")
    propose.add_argument("--k", type=count, metavar="K", help="plans to try on the target (default all kept)")
    propose.add_argument(
        "--out-dir", type=folder_name, metavar="DIR", help="save the plans here; DIR is created"
    )
    propose.add_argument("--quiet", action="store_true", help="no summary")
    propose.set_defaults(run=_propose, nodes=1, between=None)


def _propose(args: argparse.Namespace) -> int:
    from regal_jax.robust import propose

    if args.k is not None and args.target is None:
        raise ConfigError("--k: goes with --target; give both or neither")
    options = _options(args)
    cluster = cluster_of(args)
    machine.use_all_cores()
    graph = load(args.file, args)
    folder = None if args.out_dir is None else os.fspath(made_folder(args.out_dir))
    earlier = [] if folder is None else _earlier(folder, graph, cluster)
    found = propose(
        graph,
        cluster,
        count=args.count,
        keep=args.keep,
        source=args.source,
        weights=args.weights,
        choose=args.choose,
        seed=args.seed,
        **options,
    )
    with first_interrupt_waits():  # What was found is saved.
        for plan in found:
            plan.verify(graph)
        return _chosen(args, graph, found, folder, earlier)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The given options that only some sources have, checked before the graph is read."""
    from regal_jax.robust.sources import automatic_source, check_options

    source = automatic_source(args.weights) if args.source == "auto" else args.source
    return check_options(source, temperature=args.temperature, evaluations=args.evaluations)


def _chosen(
    args: argparse.Namespace,
    graph: "ComputationGraph",
    found: "Proposals",
    folder: str | None,
    earlier: Sequence[str],
) -> int:
    """Chooses on the target, tells, and saves."""
    from regal_jax.robust import select

    if not args.quiet:
        print(found)
    chosen = None if args.target is None else select(found, args.target, args.k)
    if chosen is not None and not args.quiet:
        print(f"on the {args.target} target:")
        print(
            f"  {chosen.best:.6g} {graph.time_unit}, plan {chosen.index} of the {len(chosen.tried)} that "
            f"were tried; plan 0 takes {chosen.measured[0]:.6g} {graph.time_unit}, {chosen.gain:.3f} times "
            "as long"
        )
    if folder is not None:
        names = found.save(folder)
        if chosen is not None:
            chosen.plan.save(os.path.join(folder, _BEST))
            names.append(_BEST)
        for path in earlier:
            if os.path.basename(path) not in names:
                os.unlink(path)
        if not args.quiet:
            best = f", the best on the target as {_BEST}" if chosen is not None else ""
            print(f"saved {counted(len(found), 'plan')} to {folder}{best}")
    if found[0].feasible:
        return 0
    from regal_jax.plan.summary import shortage

    least = min(found, key=lambda plan: float(plan.overflow.sum()))
    print(f"regal-jax propose: {shortage(least, starts=False)}", file=sys.stderr)
    return _INFEASIBLE


def _earlier(folder: str, graph: "ComputationGraph", cluster: "Cluster") -> list[str]:
    """The files of an earlier run in ``folder``, all of which have plans of ``graph`` on ``cluster``."""
    names = sorted(name for name in os.listdir(folder) if _NAMES.fullmatch(name))
    paths = [os.path.join(folder, name) for name in names]
    previous_results([graph] * len(paths), Question(cluster, "makespan", {}, ()), paths)
    return paths
