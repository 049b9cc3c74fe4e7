"""External programs that run on the same graphs: the file that they read and the line that they print."""

import os
import pathlib
import re
import subprocess
import tempfile

import numpy as np

from benchmarks.cases import GraphCase
from benchmarks.timing import Contender, Outcome, Skipped
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph

__all__ = ["check_peer", "peer", "peer_text", "plain_case", "plain_graph"]

_LINE = re.compile(
    r"ops (\d+) evaluations (\d+) best ([-+.\w]+) seconds ([-+.\w]+) evaluations_per_second ([-+.\w]+)"
)


def plain_graph(graph: ComputationGraph) -> None:
    """Checks that a graph has only features that other programs support.

    Raises:
      ConfigError: An op does not have exactly one output, or the graph has more than runtimes, sizes and data
        edges.
    """
    lacks = {
        "an op without exactly one output": not np.array_equal(graph.tensor_op, np.arange(graph.num_ops)),
        "control edges": len(graph.control_source) > 0,
        "a runtime for each device": graph.runtime.ndim != 1,
        "scratch memory": bool(graph.temp_bytes.any()),
        "tensors to keep": bool(graph.tensor_keep.any()),
        "residents": bool(graph.resident.any()),
        "ops tied to devices": any(allowed is not None for allowed in graph.allowed_devices),
        "colocation groups": any(group is not None for group in graph.colocation_group),
    }
    for what, is_there in lacks.items():
        if is_there:
            raise ConfigError(
                f"graph {graph.name!r} has {what}; a peer supports only ops of one output, and data edges"
            )


def plain_case(case: GraphCase) -> list[ComputationGraph]:
    """The graphs of a case that a peer can run.

    Raises:
      Skipped: A peer cannot run the case.
    """
    if case.proposal != "uniform":
        raise Skipped(f"a peer supports only the uniform proposal, not {case.proposal}")
    if case.transfer != "blocking":
        raise Skipped(f"a peer supports only blocking transfers that take no time, not {case.transfer}")
    graphs = case.make_graphs()
    for graph in graphs:
        plain_graph(graph)
    return graphs


def peer_text(graph: ComputationGraph) -> str:
    """The graph in the format of peers: ``N``, then ``runtime size npred pred...`` op by op.

    Ops are in topological order and numbered by it.

    Raises:
      ConfigError: The format cannot hold the graph.
    """
    plain_graph(graph)
    order = graph.topological_order
    number = np.argsort(order)
    offset, tensor = graph.inputs
    lines = [str(graph.num_ops)]
    for op in order.tolist():
        # Tensor t is the one output of op t.
        predecessors = sorted(number[tensor[offset[op] : offset[op + 1]]].tolist())
        numbers = (f"{graph.runtime[op]:.17g}", graph.tensor_bytes[op], len(predecessors), *predecessors)
        lines.append(" ".join(map(str, numbers)))
    return "\n".join(lines) + "\n"


def check_peer(binary: str) -> str:
    """The path of an executable program.

    Raises:
      ConfigError: There is no such program.
    """
    path = pathlib.Path(binary).absolute()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ConfigError(f"--peer: {binary!r} is no program that can be run; compile it first")
    return str(path)


def _run_once(binary: str, file: pathlib.Path, case: GraphCase, seed: int) -> Outcome:
    objective = "makespan" if case.objective == "makespan" else "peak"
    settings = (case.devices, case.evaluations, case.population, objective, seed)
    command = [binary, str(file), *map(str, settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _LINE.search(done.stdout)
    rate = float(found[5]) if found else 0.0
    if done.returncode or not found or not rate > 0:
        said = " ".join((done.stderr or done.stdout).split())[:200]
        raise ConfigError(f"--peer: {binary!r} ended with {done.returncode} and said {said!r}")
    # The seconds have only four decimals, too few for small runs.
    return Outcome(max(int(found[2]) / rate, 1e-9), int(found[2]), float(found[3]))


def peer(binary: str, case: GraphCase, label: str = "peer") -> Contender:
    """The peer's own search on the graphs of a case, one after another; it reports its own seconds.

    Raises:
      Skipped: The peer cannot run the case.
    """
    texts = [peer_text(graph) for graph in plain_case(case)]

    def run() -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = []
            for i, text in enumerate(texts):
                file = pathlib.Path(folder) / f"{i}.txt"
                file.write_text(text, encoding="ascii")
                outcomes.append(_run_once(binary, file, case, case.seed + i))
        return Outcome(
            sum(o.seconds for o in outcomes),
            sum(o.evaluations or 0 for o in outcomes),
            sum(o.best or 0.0 for o in outcomes) / len(outcomes),
        )

    return Contender(label, run, warm=False)
