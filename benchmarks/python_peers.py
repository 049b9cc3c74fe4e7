"""BRKGA of other libraries with a decoder in plain Python, which a user would otherwise write."""

import dataclasses
import importlib
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from benchmarks.cases import GraphCase
from benchmarks.peers import plain_case
from benchmarks.python_decoder import PythonDecoder
from benchmarks.timing import Contender, Outcome, Skipped

__all__ = ["PEERS"]

_Search = Callable[[GraphCase, PythonDecoder, int], tuple[int, float]]
"""Function ``(case, decoder, seed)`` -> evaluations and best objective."""


def _module(package: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Skipped(f"needs the package {package!r}: pip install --group bench") from None


def _pymoo(case: GraphCase, decoder: PythonDecoder, seed: int) -> tuple[int, float]:
    core = _module("pymoo", "pymoo.core.problem")
    algorithm = _module("pymoo", "pymoo.algorithms.soo.nonconvex.brkga")
    config, which = case.config(), case.objective != "makespan"

    class Problem(core.ElementwiseProblem):
        def __init__(self) -> None:
            super().__init__(n_var=decoder.num_keys, n_obj=1, xl=0.0, xu=1.0)

        def _evaluate(self, x: np.ndarray, out: dict[str, Any], *_: Any, **__: Any) -> None:
            out["F"] = decoder(x.tolist())[which]

    search = algorithm.BRKGA(
        n_elites=config.elites,
        n_offsprings=config.children,
        n_mutants=config.mutants,
        bias=config.elite_bias,
    )
    search.setup(Problem(), termination=("n_eval", _spent(case)), seed=seed, verbose=False)
    while search.has_next():
        search.next()
    return int(search.evaluator.n_eval), float(search.opt[0].F[0])


def _mp_ipr(case: GraphCase, decoder: PythonDecoder, seed: int) -> tuple[int, float]:
    package = "brkga-mp-ipr"
    types = _module(package, "brkga_mp_ipr.types")
    enums = _module(package, "brkga_mp_ipr.enums")
    algorithm = _module(package, "brkga_mp_ipr.algorithm")
    config, which = case.config(), case.objective != "makespan"

    class Decoder:
        evaluations, best = 0, np.inf

        def decode(self, chromosome: list[float], rewrite: bool) -> float:
            del rewrite
            value = decoder(list(chromosome))[which]
            self.evaluations += 1
            self.best = min(self.best, value)
            return value

    params = types.BrkgaParams()
    params.population_size = config.population
    params.elite_percentage = config.elites / config.population
    params.mutants_percentage = config.mutants / config.population
    params.num_elite_parents, params.total_parents = 1, 2
    params.num_independent_populations = 1
    # Counted here, since release 0.9.1 keeps chromosomes other than its elites and reports their fitness.
    counted = Decoder()
    search = algorithm.BrkgaMpIpr(
        decoder=counted,
        sense=enums.Sense.MINIMIZE,
        seed=seed,
        chromosome_size=decoder.num_keys,
        params=params,
    )
    search.set_bias_custom_function(lambda rank: config.elite_bias if rank == 1 else 1 - config.elite_bias)
    search.initialize()
    if generations := config.generations(case.evaluations):
        search.evolve(generations)
    return counted.evaluations, float(counted.best)


def _spent(case: GraphCase) -> int:
    """Evaluations of whole generations within the budget."""
    config = case.config()
    return config.first_evaluations + config.generations(case.evaluations) * config.step_evaluations


def _peer(label: str, modules: tuple[str, str], search: _Search) -> Callable[[GraphCase], Contender]:
    def make(case: GraphCase) -> Contender:
        _module(*modules)
        decoders = [PythonDecoder(graph, case.devices) for graph in plain_case(case)]

        def run() -> Outcome:
            began = time.perf_counter()
            found = [search(case, decoder, case.seed + i) for i, decoder in enumerate(decoders)]
            seconds = time.perf_counter() - began
            return Outcome(seconds, sum(e for e, _ in found), sum(b for _, b in found) / len(found))

        # Loads modules that are imported at first use; a whole warm-up round would take long.
        search(dataclasses.replace(case, evaluations=case.population), decoders[0], case.seed)
        return Contender(label, run, warm=False)

    return make


PEERS: Final[Mapping[str, Callable[[GraphCase], Contender]]] = MappingProxyType(
    {
        "pymoo": _peer("pymoo", ("pymoo", "pymoo.algorithms.soo.nonconvex.brkga"), _pymoo),
        "brkga-mp-ipr": _peer("brkga-mp-ipr", ("brkga-mp-ipr", "brkga_mp_ipr.algorithm"), _mp_ipr),
    }
)
"""Name -> function that makes a contender for a case; `Skipped` names a missing package."""
