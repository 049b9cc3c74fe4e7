"""Compilation with another order of instructions; all uses of private parts of JAX and jaxlib are here.

`jax.extend.xla` is public but experimental; the other parts are private. `check_support` refuses versions
that lack any of them.
"""

import contextlib
import copy
import dataclasses
import io
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import jax

from regal_jax.errors import ConfigError, PlanError
from regal_jax.execution.xla.donation import alias_instructions, elide_copies
from regal_jax.execution.xla.errors import DonationLost, NotSupported
from regal_jax.execution.xla.module_proto import new_executable, new_module, new_result
from regal_jax.execution.xla.repacking import repack
from regal_jax.execution.xla.sequence import Orders, put_orders
from regal_jax.storage.varint import read_varint

__all__ = [
    "Ordered",
    "can_repack",
    "check_support",
    "compile_lowered",
    "compile_ordered",
    "compile_recorded",
    "load_compiled",
    "module_of",
    "text_of",
]

_NAME: Final = "regal_jax_order"
_ATTRIBUTE: Final = "mhlo.frontend_attributes"
_PLATFORM: Final = "cpu"
_MAIN: Final = "main"
_REPACKED: Final = ("0.10.", "0.11.", "0.12.")
"""Versions of JAX in whose compiled programs buffers are moved."""


def check_support() -> None:
    """Checks that JAX has all that this module uses.

    Raises:
      ConfigError: JAX lacks something.
    """
    try:
        from jax.extend.xla import PipelineStage, clear_hlo_module_transformation
        from jax.extend.xla import register_hlo_module_transformation as register
        from jaxlib._hlo import HloModule  # pyright: ignore[reportMissingModuleSource]
        from jaxlib.mlir import ir

        missing = not (callable(register) and callable(clear_hlo_module_transformation))
        missing = missing or not hasattr(PipelineStage, "POST_SCHEDULER") or not hasattr(ir, "Module")
        missing = missing or not hasattr(HloModule, "from_serialized_hlo_module_proto")
    except (ImportError, AttributeError):
        missing = True
    if missing:
        raise ConfigError(
            f"regal_jax.compile: JAX {jax.__version__} has no hook behind XLA's scheduler "
            "(jax.extend.xla.register_hlo_module_transformation); use JAX 0.10.2 to 0.12, or jax.jit"
        )


def module_of(compiled: jax.stages.Compiled) -> Any:
    """The ``HloModuleProto`` of a compiled program, with its schedule.

    Raises:
      ConfigError: The program is not for a single CPU.
    """
    executable = _executable(compiled)
    modules, devices = executable.hlo_modules(), executable.local_devices()
    if len(devices) != 1 or len(modules) != 1:
        raise ConfigError(
            f"regal_jax.compile: the program is for {len(devices)} devices; give arguments on one"
        )
    if devices[0].platform != _PLATFORM:
        raise ConfigError(
            f"regal_jax.compile: XLA takes orders for CPUs, and the program is for "
            f"{devices[0].platform!r}; use jax.jit, or jax.default_device"
        )
    module = new_module()
    module.ParseFromString(modules[0].as_serialized_hlo_module_proto())
    return module


def text_of(module: Any) -> str:
    """The text of an ``HloModuleProto``."""
    from jaxlib._hlo import HloModule  # pyright: ignore[reportMissingModuleSource]

    return HloModule.from_serialized_hlo_module_proto(module.SerializeToString()).to_string()


def compile_lowered(lowered: jax.stages.Lowered, options: Mapping[str, Any]) -> jax.stages.Compiled:
    """The program, compiled in XLA's own order."""
    return lowered.compile(dict(options))


def compile_recorded(
    lowered: jax.stages.Lowered, options: Mapping[str, Any], fingerprint: str
) -> jax.stages.Compiled:
    """The program in XLA's own order, with the names of instructions to which its orders refer.

    JAX's persistent cache ignores names: without a tag it may return the same program with other names.
    """
    return _tagged(lowered, f"regal_jax-{fingerprint}").compile(dict(options))


class Ordered(NamedTuple):
    """A program in given orders.

    Attributes:
      compiled: The program.
      serialized: What `load_compiled` reads; ``None`` if JAX's persistent cache stores the program.
    """

    compiled: jax.stages.Compiled
    serialized: bytes | None


def compile_ordered(
    lowered: jax.stages.Lowered, options: Mapping[str, Any], orders: Orders, tag: str, alias: Any
) -> Ordered:
    """The program in given orders, with its donated arguments.

    The tag becomes an attribute of the module. The hook recognises the module by it, and JAX's persistent
    cache distinguishes it from the program in XLA's order.

    Args:
      lowered: The program.
      options: Options of the compiler.
      orders: See `put_orders`.
      tag: A text that is unique to the orders.
      alias: The ``input_output_alias`` of the module in XLA's order.

    Raises:
      PlanError: The orders are of another program, or the hook failed.
      DonationLost: Donated arguments would not stay donated.
      jax.errors.JaxRuntimeError: XLA refuses the program.
    """
    moved = can_repack(lowered)
    if moved:
        tag = f"{tag}-{uuid.uuid4().hex}"
    with _ordering(tag, orders) as request, _unkept(moved):
        try:
            compiled = _tagged(lowered, tag).compile(dict(options))
        except jax.errors.JaxRuntimeError as error:
            # XLA passes on only the text of an exception of the hook.
            if request.error is None or isinstance(request.error, (PlanError, DonationLost)):
                raise (request.error or error) from None
            kind = type(request.error).__name__
            raise PlanError(f"the hook behind XLA's scheduler failed ({kind}: {request.error})") from None
    serialized = _executable(compiled).serialize() if moved else None
    try:
        if serialized is None:
            raise NotSupported(
                "buffers are not moved in programs that call Python, or in this version of JAX"
            )
        changed = _repacked(serialized, alias)
        return Ordered(_with_executable(compiled, changed), changed)
    except NotSupported as error:
        if alias.entries:
            raise DonationLost(str(error)) from None
        return Ordered(compiled, serialized)


def load_compiled(
    lowered: jax.stages.Lowered, options: Mapping[str, Any], serialized: bytes
) -> jax.stages.Compiled:
    """A program that `compile_ordered` serialised, without compiling it.

    JAX's part of it comes from a program with the same arguments and results that computes nothing.

    Args:
      lowered: The program, as `compile_ordered` took it.
      options: Options of the compiler for the program that computes nothing.
      serialized: From the same version of jaxlib, and for this kind of processor.
    """
    with _unkept(True):
        return _with_executable(
            _with_module(lowered, _without_steps(lowered)).compile(dict(options)), serialized
        )


def _without_steps(lowered: jax.stages.Lowered) -> Any:
    """The module of a program, which returns an argument or zeros for each result."""
    from jaxlib.mlir import ir

    clone = _module_copy(lowered)
    with clone.context, ir.Location.unknown():
        for function in list(clone.body.operations):
            attributes = function.operation.attributes
            if ir.StringAttr(attributes["sym_name"]).value != _MAIN:
                function.operation.erase()
                continue
            block = function.operation.regions[0].blocks[0]
            for step in reversed(list(block.operations)):
                step.operation.erase()
            made = {str(argument.type): argument for argument in block.arguments}
            types = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value).results
            with ir.InsertionPoint(block):
                for kind in types:
                    if str(kind) not in made:
                        made[str(kind)] = _zeros(kind, block)
                ir.Operation.create("func.return", operands=[made[str(kind)] for kind in types])
    return clone


def _zeros(kind: Any, block: Any) -> Any:
    """Zeros of a type of tensors, at the end of a block."""
    from jaxlib.mlir import ir

    element = str(ir.RankedTensorType(kind).element_type)
    zero = "(0.0,0.0)" if element.startswith("complex") else "0.0" if "f" in element else "0"
    scalar = f"tensor<{element}>"
    text = f'"stablehlo.constant"() {{value = dense<{"false" if element == "i1" else zero}> : {scalar}}}'
    constant = ir.Operation.parse(f"%0 = {text} : () -> {scalar}")
    block.append(constant)
    return ir.Operation.create(
        "stablehlo.broadcast_in_dim",
        results=[kind],
        operands=[constant.operation.results[0]],
        attributes={"broadcast_dimensions": ir.DenseI64ArrayAttr.get([])},
    ).results[0]


def can_repack(lowered: jax.stages.Lowered) -> bool:
    """Whether the memory of the compiled program can be assigned anew.

    XLA ends the process if it reads a program that it does not accept, so that other versions are left alone.
    """
    held: Any = lowered
    return jax.__version__.startswith(_REPACKED) and not held._lowering.compile_args.get("host_callbacks")


def _repacked(serialized: bytes, alias: Any) -> bytes:
    """A compiled program, as the runtime serialises it, with a better assignment of memory.

    Raises:
      NotSupported: The program does not have the form of a program for CPUs.
      DonationLost: See `repack`.
    """
    outer, result = new_executable(), new_result()
    try:
        length, start = read_varint(serialized, 0)
        outer.ParseFromString(serialized[start + length :])
        result.ParseFromString(outer.serialized_executable)
    except Exception as error:
        raise NotSupported(f"the compiled program is in an unknown form ({type(error).__name__})") from None
    module = result.hlo_module.hlo_module
    if not module.computations or not module.schedule.sequences:
        raise NotSupported("the compiled program is in an unknown form")
    module.input_output_alias.CopyFrom(alias)
    try:
        repack(result, text_of(module), alias)
    except (NotSupported, DonationLost):
        raise
    except Exception as error:
        # A form that nobody has seen must not prevent the compilation.
        raise NotSupported(f"its buffers are unknown ({type(error).__name__}: {error})") from None
    outer.serialized_executable = result.SerializeToString()
    return serialized[: start + length] + outer.SerializeToString()


@contextlib.contextmanager
def _unkept(never: bool) -> Iterator[None]:
    """Keeps programs that this thread compiles out of JAX's persistent cache, if ``never``.

    A program that was read from the cache has lost its symbols and cannot be serialised to restore donation.
    A unique tag prevents such reads; this prevents useless writes.
    """
    from jax._src import config

    least = getattr(config, "persistent_cache_min_compile_time_secs", None)
    with least(float("inf")) if never and least is not None else contextlib.nullcontext():
        yield


@dataclasses.dataclass(eq=False)
class _Request:
    tag: bytes
    orders: Orders
    error: Exception | None = None


_lock = threading.Lock()
_requests: list[_Request] = []


@contextlib.contextmanager
def _ordering(tag: str, orders: Orders) -> Iterator[_Request]:
    """Gives modules with the tag the orders while the block runs; the hook is registered as long as any
    block runs."""
    from jax.extend.xla import PipelineStage, clear_hlo_module_transformation
    from jax.extend.xla import register_hlo_module_transformation as register

    request = _Request(tag.encode(), orders)
    with _lock:
        if not _requests:
            register(_transform, name=_NAME, stage=PipelineStage.POST_SCHEDULER, platforms=_PLATFORM)
        _requests.append(request)
    try:
        yield request
    finally:
        with _lock:
            _requests.remove(request)
            if not _requests:
                clear_hlo_module_transformation(_NAME, PipelineStage.POST_SCHEDULER, _PLATFORM)


def _transform(serialized: bytes) -> bytes | None:
    """The hook, which XLA calls for every module that it compiles, in one of its own threads."""
    request = next((r for r in list(_requests) if r.tag in serialized), None)
    if request is None:
        return None
    try:
        module = new_module()
        module.ParseFromString(serialized)
        elide_copies(module)
        put_orders(module, request.orders)
        alias_instructions(module)
        return module.SerializeToString()
    except Exception as error:
        request.error = error
        raise


def _tagged(lowered: jax.stages.Lowered, tag: str) -> jax.stages.Lowered:
    """A copy of a lowered program whose module has the tag."""
    from jaxlib.mlir import ir

    clone = _module_copy(lowered)
    with clone.context:
        attributes = clone.operation.attributes
        held = (
            {a.name: a.attr for a in ir.DictAttr(attributes[_ATTRIBUTE])} if _ATTRIBUTE in attributes else {}
        )
        attributes[_ATTRIBUTE] = ir.DictAttr.get({**held, _NAME: ir.StringAttr.get(tag)})
    return _with_module(lowered, clone)


def _module_copy(lowered: jax.stages.Lowered) -> Any:
    from jaxlib.mlir import ir

    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        file = io.BytesIO()
        module.operation.write_bytecode(file=file)
        return ir.Module.parse(file.getvalue())


def _with_module(lowered: jax.stages.Lowered, module: Any) -> jax.stages.Lowered:
    """A copy of a lowered program with another module of the same signature."""
    made: Any = copy.copy(lowered)
    made._lowering = copy.copy(made._lowering)
    made._lowering._hlo, made._lowering._executable = module, None
    return made


def _executable(compiled: jax.stages.Compiled) -> Any:
    return compiled.runtime_executable()


def _devices(devices: Any) -> Any:
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    return _jax.DeviceList(tuple(devices))


def _with_executable(compiled: jax.stages.Compiled, serialized: bytes) -> jax.stages.Compiled:
    """A compiled program that runs another executable of the same signature."""
    held: Any = compiled
    own = _executable(compiled)
    executable = own.client.deserialize_executable(serialized, _devices(own.local_devices()))
    unloaded = dataclasses.replace(held._executable._unloaded_executable, xla_executable=executable)
    params = held._params
    return jax.stages.Compiled(
        unloaded.load(),
        params.const_args,
        held.args_info,
        held.out_tree,
        no_kwargs=held._no_kwargs,
        in_types=params.in_types,
        out_types=params.out_types,
    )
