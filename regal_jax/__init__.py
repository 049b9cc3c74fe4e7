"""Place and schedule computation graphs on devices: BRKGA and its baselines, batched in JAX.

Start with `optimize` and `optimize_many`; `from_jax` and `load_graph` make graphs of programs and files.
"""

from typing import TYPE_CHECKING

from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.api import Comparison, Improvement, compare, optimize, optimize_many, order
    from regal_jax.errors import (
        ClusterError,
        ConfigError,
        FormatError,
        GraphError,
        InfeasiblePlanWarning,
        MissingExtraError,
        PlanError,
    )
    from regal_jax.examples import load_example
    from regal_jax.execution import CompiledProgram, apply_to_onnx, apply_to_torch, compile, execute
    from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder, TransferModel
    from regal_jax.heuristics import ListSearchConfig, OrderSearchConfig, PeakSearchConfig
    from regal_jax.importers import (
        DeviceProfile,
        from_hlo,
        from_jax,
        from_onnx,
        from_torch,
        load_graph,
        save_graph,
    )
    from regal_jax.plan import Contraction, Objective, Plan, PlanComparison, PlanStatus, contract
    from regal_jax.robust import Proposals, Selection, propose, select
    from regal_jax.search import AnnealingConfig, BrkgaConfig
    from regal_jax.solvers import (
        Annealing,
        ApproximateDp,
        Auto,
        Brkga,
        CpSat,
        DepthFirstDp,
        Gflownet,
        Heuristic,
        ListSearch,
        LocalSearch,
        OrderSearch,
        PeakSearch,
        Portfolio,
        RandomOrders,
        RandomSearch,
        TopoformerBeam,
        TopoformerSamples,
    )

__version__ = "0.2.0"

__all__ = [
    "Annealing",
    "AnnealingConfig",
    "ApproximateDp",
    "Auto",
    "Brkga",
    "BrkgaConfig",
    "Cluster",
    "ClusterError",
    "Comparison",
    "CompiledProgram",
    "ComputationGraph",
    "ConfigError",
    "Contraction",
    "CpSat",
    "DepthFirstDp",
    "DeviceProfile",
    "FormatError",
    "Gflownet",
    "GraphBuilder",
    "GraphError",
    "Heuristic",
    "Improvement",
    "InfeasiblePlanWarning",
    "ListSearch",
    "ListSearchConfig",
    "LocalSearch",
    "MissingExtraError",
    "Objective",
    "OrderSearch",
    "OrderSearchConfig",
    "PeakSearch",
    "PeakSearchConfig",
    "Plan",
    "PlanComparison",
    "PlanError",
    "PlanStatus",
    "Portfolio",
    "Proposals",
    "RandomOrders",
    "RandomSearch",
    "Selection",
    "TopoformerBeam",
    "TopoformerSamples",
    "TransferModel",
    "__version__",
    "apply_to_onnx",
    "apply_to_torch",
    "compare",
    "compile",
    "contract",
    "execute",
    "from_hlo",
    "from_jax",
    "from_onnx",
    "from_torch",
    "load_example",
    "load_graph",
    "optimize",
    "optimize_many",
    "order",
    "propose",
    "save_graph",
    "select",
]

# The command's --help and programs that use only the host must not wait for JAX.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "api": ("Comparison", "Improvement", "compare", "optimize", "optimize_many", "order"),
        "errors": (
            "ClusterError",
            "ConfigError",
            "FormatError",
            "GraphError",
            "InfeasiblePlanWarning",
            "MissingExtraError",
            "PlanError",
        ),
        "examples": ("load_example",),
        "execution": ("CompiledProgram", "apply_to_onnx", "apply_to_torch", "compile", "execute"),
        "graph": ("Cluster", "ComputationGraph", "GraphBuilder", "TransferModel"),
        "heuristics": ("ListSearchConfig", "OrderSearchConfig", "PeakSearchConfig"),
        "importers": (
            "DeviceProfile",
            "from_hlo",
            "from_jax",
            "from_onnx",
            "from_torch",
            "load_graph",
            "save_graph",
        ),
        "plan": ("Contraction", "Objective", "Plan", "PlanComparison", "PlanStatus", "contract"),
        "robust": ("Proposals", "Selection", "propose", "select"),
        "search": ("AnnealingConfig", "BrkgaConfig"),
        "solvers": (
            "Annealing",
            "ApproximateDp",
            "Auto",
            "Brkga",
            "CpSat",
            "DepthFirstDp",
            "Gflownet",
            "Heuristic",
            "ListSearch",
            "LocalSearch",
            "OrderSearch",
            "PeakSearch",
            "Portfolio",
            "RandomOrders",
            "RandomSearch",
            "TopoformerBeam",
            "TopoformerSamples",
        ),
    },
    ["__version__"],
)
