"""`apply_to_onnx`: an ONNX model with its nodes in the order of a plan."""

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import FormatError, PlanError
from regal_jax.execution.onnx.order import NodeOrders
from regal_jax.graph import ComputationGraph
from regal_jax.importers.files import PathLike, at_path, graph_name
from regal_jax.importers.onnx_model import OnnxOps, onnx_ops, read_onnx
from regal_jax.importers.onnx_nodes import subgraphs
from regal_jax.importers.onnx_values import import_onnx
from regal_jax.plan import Plan, contract
from regal_jax.plan.contraction import contract_for
from regal_jax.plan.verify import check_graph
from regal_jax.runtime.interrupts import interruptible

__all__ = ["DEVICE_KEY", "apply_to_onnx", "external_tensors"]

DEVICE_KEY: Final = "regal_jax.device"
"""Key of the device in the metadata of a node."""


@interruptible()
def apply_to_onnx(plan: Plan, model: PathLike | Any, **options: Any) -> Any:
    """The same ONNX model with its nodes in the order of ``plan``.

    - The nodes of the model's graph stand in the order in which the plan runs their ops. Bodies of ``If``,
      ``Loop`` and ``Scan``, and local functions, stay as they are.
    - A node that calls a local function stands where the plan runs the last op of the function.
    - A ``Constant``, or a ``ConstantOfShape`` of a constant, is a parameter in the plan, see `from_onnx`. It
      stands directly before the first node that needs it, or at the end if none does.
    - The device of each node is in its ``metadata_props`` under `DEVICE_KEY`, as a decimal number.
    - Everything else is copied: initializers, references to external data, opset imports, metadata.

    ONNX Runtime runs nodes in the order of the file if ``SessionOptions.execution_order`` is
    ``ExecutionOrder.PRIORITY_BASED`` and ``graph_optimization_level`` is ``ORT_DISABLE_ALL``. ``Shape`` and
    ``Size`` nodes then run as soon as they can, regardless of their place.

    Args:
      plan: A plan of the model's graph, for any number of devices, or of the result of `contract` for that
        graph with its default settings.
      model: Path of an ``.onnx`` file, or a ``ModelProto``, which is not changed.
      **options: The options of `regal_jax.from_onnx` with which the graph of the plan was made. ``in_place``
        may be omitted.

    Returns:
      A ``ModelProto`` that ``onnx.checker`` accepts. External data is not read: save the result in the
      folder of ``model``.

    Raises:
      PlanError: ``plan`` is of another graph or is invalid, or puts the ops of one node on several
        devices.
      FormatError: ``model`` is not a model, or ``onnx.checker`` refuses it.
      GraphError, ConfigError, MissingExtraError: As `regal_jax.from_onnx`.

    Examples:
      >>> from onnx import TensorProto, helper
      >>> from regal_jax import apply_to_onnx, from_onnx, order
      >>> x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in "xy")
      >>> nodes = [helper.make_node("Relu", ["x"], ["u"]), helper.make_node("Neg", ["u"], ["y"])]
      >>> model = helper.make_model(helper.make_graph(nodes, "net", [x], [y]))
      >>> made = apply_to_onnx(order(from_onnx(model)), model)
      >>> [(node.op_type, node.metadata_props[0].value) for node in made.graph.node]
      [('Relu', '0'), ('Neg', '0')]
    """
    if not isinstance(model, (str, os.PathLike)):
        return _applied(plan, model, options)
    loaded = read_onnx(model)
    with at_path(model):
        return _applied(plan, loaded, {"name": graph_name(model), **options})


def _applied(plan: Plan, model: Any, options: dict[str, Any]) -> Any:
    check_kind("plan", plan, Plan)
    ops, plan = _matched(plan, model, options)
    plan.verify(ops.graph)
    orders = NodeOrders(model, ops)
    index = np.array([ops.graph.op_index[name] for name in plan.op_names], dtype=np.int64)
    computes = plan.timeline.op[plan.timeline.port < 0]
    order = orders.planned(index[computes].tolist())
    placement = np.empty_like(plan.placement)
    placement[index] = plan.placement
    made = import_onnx().ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend([model.graph.node[i] for i in order])
    for node, device in zip(made.graph.node, _devices(model, orders, placement, order), strict=True):
        if device is not None:
            _set_device(node, device)
    _check(made)
    return made


def _matched(plan: Plan, model: Any, options: dict[str, Any]) -> tuple[OnnxOps, Plan]:
    """The ops of ``model``, with shared buffers if ``plan`` has them, and the plan of all of them."""
    ops = onnx_ops(model, **options)
    try:
        return ops, _plan_of(plan, ops.graph)
    except PlanError as error:
        if "in_place" not in options:
            with warnings.catch_warnings(action="ignore"):  # The first call has issued them.
                ops = onnx_ops(model, in_place=True, **options)
            with contextlib.suppress(PlanError):
                return ops, _plan_of(plan, ops.graph)
        raise error


def _plan_of(plan: Plan, graph: ComputationGraph) -> Plan:
    """``plan``, or its expansion if it is a plan of a contraction of ``graph``."""
    if plan.graph_hash != graph.content_hash and set(plan.op_names) < set(graph.op_names):
        devices = plan.cluster.num_devices
        for made in (
            contract_for(graph, plan.cluster, plan.objective),
            contract(graph, devices=devices),
            contract(graph),
        ):
            if made.graph.content_hash == plan.graph_hash:
                return made.expand(plan)
    check_graph(plan, graph)
    return plan


def _devices(
    model: Any, orders: NodeOrders, placement: np.ndarray, order: Sequence[int]
) -> Iterator[int | None]:
    """The device of each node of ``order``; ``None`` for a constant that is not in the graph."""
    found: dict[int, set[int]] = {}
    of_parameter: dict[str, int] = {}
    for op, (i, device) in enumerate(zip(orders.node.tolist(), placement.tolist(), strict=True)):
        if i < 0:
            of_parameter[orders.ops.graph.op_names[op]] = device
        else:
            found.setdefault(i, set()).add(device)
    for i in order:
        node = model.graph.node[i]
        devices = found.get(i) or {of_parameter[value] for value in node.output if value in of_parameter}
        if len(devices) > 1:
            raise PlanError(
                f"node {node.name or i!r} calls the local function {node.op_type!r}, whose ops the plan puts "
                f"on the devices {sorted(devices)}; inline the functions of the model with "
                "onnx.inliner.inline_local_functions, and plan what that makes"
            )
        yield devices.pop() if devices else None


def _set_device(node: Any, device: int) -> None:
    for entry in node.metadata_props:
        if entry.key == DEVICE_KEY:
            entry.value = str(device)
            return
    node.metadata_props.add(key=DEVICE_KEY, value=str(device))


def _check(model: Any) -> None:
    """Refuses models that ``onnx.checker`` refuses. External data may be missing."""
    onnx = import_onnx()
    if any(True for _ in external_tensors(model)):
        light = onnx.ModelProto()
        light.CopyFrom(model)
        for tensor in external_tensors(light):
            name, kind = tensor.name, tensor.data_type
            tensor.Clear()
            tensor.name, tensor.data_type, tensor.dims[:] = name, kind, [0]
        model = light
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise FormatError(f"onnx.checker refuses the model: {reason}; mend the model") from None


def external_tensors(model: Any) -> Iterator[Any]:
    """The tensors of a ``ModelProto`` whose data is in separate files."""

    def of_node(node: Any) -> Iterator[Any]:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
        for body in subgraphs(node):
            yield from of_graph(body)

    def of_graph(graph: Any) -> Iterator[Any]:
        yield from graph.initializer
        for node in graph.node:
            yield from of_node(node)

    external = import_onnx().TensorProto.EXTERNAL
    yield from (tensor for tensor in of_graph(model.graph) if tensor.data_location == external)
    for function in model.functions:
        for node in function.node:
            yield from (tensor for tensor in of_node(node) if tensor.data_location == external)
