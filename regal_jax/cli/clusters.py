"""The cluster that a command's arguments describe."""

import argparse
from typing import TYPE_CHECKING

from regal_jax.checks import counted
from regal_jax.errors import ConfigError

if TYPE_CHECKING:
    from regal_jax.graph import Cluster

__all__ = ["cluster_of"]


def cluster_of(args: argparse.Namespace) -> "Cluster":
    """The cluster that the arguments describe."""
    from regal_jax.graph import MAX_DEVICES, Cluster

    if args.devices > MAX_DEVICES:
        raise ConfigError(f"--devices: must be at most {MAX_DEVICES}, got {args.devices}")
    if args.nodes > 1 and args.between is None:
        raise ConfigError(f"--nodes {args.nodes}: give the link of the machines, too: --between LINK")
    if args.nodes == 1 and args.between is not None:
        raise ConfigError("--between LINK needs several machines; give their number, too: --nodes N")
    if args.devices % args.nodes:
        raise ConfigError(f"--nodes: {args.devices} devices do not make {args.nodes} equal machines")
    capacities = args.memory.split(",")
    if len(capacities) not in (1, args.devices):
        raise ConfigError(
            f"--memory: {len(capacities)} capacities for {counted(args.devices, 'device')}; give 1 or all"
        )
    memory = capacities * (args.devices // len(capacities))
    if args.between is None:
        return Cluster(memory, args.transfer)
    # A cluster of two devices checks the link; a single device has none.
    pair = Cluster.uniform(2, transfer=args.transfer)
    return Cluster.nodes(
        args.nodes,
        args.devices // args.nodes,
        within=pair.links[0],
        between=args.between,
        memory=memory,
        transfer=pair.transfer,
    )
