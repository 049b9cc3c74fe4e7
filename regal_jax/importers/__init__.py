"""Importers of programs and file formats, which make a `regal_jax.graph.ComputationGraph`.

`load_graph` and `save_graph` choose the format by the file's name (`FORMATS`); ``parse_*`` and ``format_*``
work on text. Importing this package loads no optional extra.
"""

from typing import TYPE_CHECKING

from regal_jax.importers.cost_graph import format_cost_graph, parse_cost_graph
from regal_jax.importers.hlo_program import from_hlo, parse_hlo
from regal_jax.importers.native import format_native, parse_native
from regal_jax.importers.onnx_model import from_onnx
from regal_jax.importers.registry import FORMATS, FileFormat, find_format, load_graph, save_graph
from regal_jax.importers.roofline import PROFILES, DeviceProfile
from regal_jax.importers.stg import format_stg, parse_stg
from regal_jax.importers.torch_module import from_torch
from regal_jax.importers.wfformat import parse_wfformat
from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.importers.jax_program import from_jax
    from regal_jax.importers.measured import MeasuredProfile

__all__ = [
    "FORMATS",
    "PROFILES",
    "DeviceProfile",
    "FileFormat",
    "MeasuredProfile",
    "find_format",
    "format_cost_graph",
    "format_native",
    "format_stg",
    "from_hlo",
    "from_jax",
    "from_onnx",
    "from_torch",
    "load_graph",
    "parse_cost_graph",
    "parse_hlo",
    "parse_native",
    "parse_stg",
    "parse_wfformat",
    "save_graph",
]


# Only these need jax; reading a file must not import it.
__getattr__, __dir__ = lazily(
    __name__, {"jax_program": ("from_jax",), "measured": ("MeasuredProfile",)}, [*globals()]
)
