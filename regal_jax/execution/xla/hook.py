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
from typing import Any, Final

import jax

from regal_jax.errors import ConfigError, PlanError
from regal_jax.execution.xla.donation import alias_instructions, elide_copies
from regal_jax.execution.xla.errors import DonationLost, NotSupported
from regal_jax.execution.xla.module_proto import new_executable, new_module, new_result
from regal_jax.execution.xla.repacking import repack
from regal_jax.execution.xla.sequence import Orders, put_orders
from regal_jax.storage.varint import read_varint

__all__ = [
    "can_repack",
    "check_support",
    "compile_lowered",
    "compile_ordered",
    "compile_recorded",
    "module_of",
    "text_of",
]

_NAME: Final = "regal_jax_order"
_ATTRIBUTE: Final = "mhlo.frontend_attributes"
_PLATFORM: Final = "cpu"
_REPACKED: Final = ("0.10.", "0.11.")
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
            "(jax.extend.xla.register_hlo_module_transformation); use JAX 0.10.2 or 0.11, or jax.jit"
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


def compile_ordered(
    lowered: jax.stages.Lowered, options: Mapping[str, Any], orders: Orders, tag: str, alias: Any
) -> jax.stages.Compiled:
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
    try:
        if not moved:
            raise NotSupported(
                "buffers are not moved in programs that call Python, or in this version of JAX"
            )
        executable = _executable(compiled)
        changed = _repacked(executable.serialize(), alias)
        devices = _devices(executable.local_devices())
        return _replaced(compiled, executable.client.deserialize_executable(changed, devices))
    except NotSupported as error:
        if alias.entries:
            raise DonationLost(str(error)) from None
        return compiled


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
    repack(result, text_of(module), alias)
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

    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        file = io.BytesIO()
        module.operation.write_bytecode(file=file)
        clone = ir.Module.parse(file.getvalue())
        attributes = clone.operation.attributes
        held = (
            {a.name: a.attr for a in ir.DictAttr(attributes[_ATTRIBUTE])} if _ATTRIBUTE in attributes else {}
        )
        attributes[_ATTRIBUTE] = ir.DictAttr.get({**held, _NAME: ir.StringAttr.get(tag)})
    made: Any = copy.copy(lowered)
    made._lowering = copy.copy(made._lowering)
    made._lowering._hlo, made._lowering._executable = clone, None
    return made


def _executable(compiled: jax.stages.Compiled) -> Any:
    return compiled.runtime_executable()


def _devices(devices: Any) -> Any:
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    return _jax.DeviceList(tuple(devices))


def _replaced(compiled: jax.stages.Compiled, executable: Any) -> jax.stages.Compiled:
    """A compiled program that runs another executable of the same signature."""
    held: Any = compiled
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
