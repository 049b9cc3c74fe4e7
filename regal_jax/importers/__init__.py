"""Foreign programs and file formats, each into the same `regal_jax.graph.ComputationGraph`.

`load_graph` and `save_graph` choose the format by the file's name (`FORMATS`); ``parse_*`` and ``format_*``
work on text. Importing this package loads no optional extra.
"""

from regal_jax.importers.cost_graph import format_cost_graph, parse_cost_graph
from regal_jax.importers.native import format_native, parse_native
from regal_jax.importers.onnx_cost import CostModel, Roofline
from regal_jax.importers.onnx_model import from_onnx
from regal_jax.importers.registry import FORMATS, FileFormat, load_graph, save_graph
from regal_jax.importers.stg import format_stg, parse_stg
from regal_jax.importers.wfformat import parse_wfformat

__all__ = [
    "FORMATS",
    "CostModel",
    "FileFormat",
    "Roofline",
    "format_cost_graph",
    "format_native",
    "format_stg",
    "from_onnx",
    "load_graph",
    "parse_cost_graph",
    "parse_native",
    "parse_stg",
    "parse_wfformat",
    "save_graph",
]
