"""Solvers: the ways to plan graphs, each an immutable value with its settings, and their registry."""

from typing import TYPE_CHECKING

from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.solvers.constructive import CpSat, Heuristic
    from regal_jax.solvers.gflownet import Gflownet
    from regal_jax.solvers.guide import Guide, PolicyLike
    from regal_jax.solvers.orders import ApproximateDp, DepthFirstDp, OrderSearch, RandomOrders
    from regal_jax.solvers.portfolio import Auto, Portfolio
    from regal_jax.solvers.protocol import (
        Agenda,
        Constructive,
        DeviceSolver,
        DeviceStage,
        HostSolver,
        HostStage,
        Instance,
        Solver,
    )
    from regal_jax.solvers.registry import (
        Entry,
        own_entries,
        parse_settings,
        register,
        solver,
        solver_names,
        solvers,
        with_settings,
    )
    from regal_jax.solvers.searches import Annealing, Brkga, ListSearch, LocalSearch, PeakSearch, RandomSearch
    from regal_jax.solvers.topoformer import TopoformerBeam, TopoformerSamples

__all__ = [
    "Agenda",
    "Annealing",
    "ApproximateDp",
    "Auto",
    "Brkga",
    "Constructive",
    "CpSat",
    "DepthFirstDp",
    "DeviceSolver",
    "DeviceStage",
    "Entry",
    "Gflownet",
    "Guide",
    "Heuristic",
    "HostSolver",
    "HostStage",
    "Instance",
    "ListSearch",
    "LocalSearch",
    "OrderSearch",
    "PeakSearch",
    "PolicyLike",
    "Portfolio",
    "RandomOrders",
    "RandomSearch",
    "Solver",
    "TopoformerBeam",
    "TopoformerSamples",
    "own_entries",
    "parse_settings",
    "register",
    "solver",
    "solver_names",
    "solvers",
    "with_settings",
]

# The command's help reads the registry, and need not wait for JAX.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "constructive": ("CpSat", "Heuristic"),
        "gflownet": ("Gflownet",),
        "guide": ("Guide", "PolicyLike"),
        "orders": ("ApproximateDp", "DepthFirstDp", "OrderSearch", "RandomOrders"),
        "portfolio": ("Auto", "Portfolio"),
        "topoformer": ("TopoformerBeam", "TopoformerSamples"),
        "registry": (
            "Entry",
            "own_entries",
            "parse_settings",
            "register",
            "solver",
            "solver_names",
            "solvers",
            "with_settings",
        ),
        "searches": ("Annealing", "Brkga", "ListSearch", "LocalSearch", "PeakSearch", "RandomSearch"),
        "protocol": (
            "Agenda",
            "Constructive",
            "DeviceSolver",
            "DeviceStage",
            "HostSolver",
            "HostStage",
            "Instance",
            "Solver",
        ),
    },
)
