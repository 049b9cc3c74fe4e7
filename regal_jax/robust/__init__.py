"""Many good and different schedules of a graph, and the choice of one by its cost on a target."""

from regal_jax.robust.candidates import Candidates
from regal_jax.robust.choice import cover
from regal_jax.robust.diversity import (
    Diversity,
    chain_successors,
    diversity,
    graph_edit_distances,
    start_distances,
    time_scale,
)
from regal_jax.robust.genetic import BrkgaPopulation, BrkgaRuns, ScenarioRuns
from regal_jax.robust.propose import Proposals, propose
from regal_jax.robust.scenarios import DrawnScenarios, Scenarios
from regal_jax.robust.select import Selection, select
from regal_jax.robust.sources import (
    LEARNED,
    LOADERS,
    SOURCES,
    ListSchedules,
    Proposer,
    RandomSchedules,
    SampledSchedules,
    Source,
    automatic_source,
    make_source,
)
from regal_jax.robust.targets import (
    BANDWIDTH_DELAY,
    LATENCY_DELAY,
    NOISE,
    TARGETS,
    SimulatedTarget,
    Target,
    bandwidth_limited,
    latency_limited,
    make_target,
    noisy,
    speedup,
)
from regal_jax.robust.timing import start_times

__all__ = [
    "BANDWIDTH_DELAY",
    "LATENCY_DELAY",
    "LEARNED",
    "LOADERS",
    "NOISE",
    "SOURCES",
    "TARGETS",
    "BrkgaPopulation",
    "BrkgaRuns",
    "Candidates",
    "Diversity",
    "DrawnScenarios",
    "ListSchedules",
    "Proposals",
    "Proposer",
    "RandomSchedules",
    "SampledSchedules",
    "ScenarioRuns",
    "Scenarios",
    "Selection",
    "SimulatedTarget",
    "Source",
    "Target",
    "automatic_source",
    "bandwidth_limited",
    "chain_successors",
    "cover",
    "diversity",
    "graph_edit_distances",
    "latency_limited",
    "make_source",
    "make_target",
    "noisy",
    "propose",
    "select",
    "speedup",
    "start_distances",
    "start_times",
    "time_scale",
]
