"""Solvers as plain values and bytes, for a worker in another process."""

import dataclasses
import enum
import importlib
import os
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from regal_jax.errors import ConfigError
from regal_jax.solvers.guide import ORDERS
from regal_jax.solvers.protocol import Solver
from regal_jax.storage.stamps import file_stamp

__all__ = ["pack_solver", "unpack_solver"]

_FILES = ("policy", "weights")
"""Fields of solvers that may name a file of weights, or weights of the package."""


def pack_solver(solver: Solver) -> tuple[Any, list[bytes]]:
    """A solver as values for JSON, and the weights of its networks in their own format.

    Files of weights are read, so that the worker needs none of them.

    Raises:
      ConfigError: The solver or one of its settings is of a class that a worker cannot import, or a file
        cannot be read.
    """
    blobs: list[bytes] = []
    return _packed(solver, "", blobs), blobs


def unpack_solver(document: Any, blobs: Sequence[bytes], folder: str) -> tuple[Solver, dict[str, str]]:
    """The solver that `pack_solver` packed.

    Args:
      document: Its values.
      blobs: Its weights.
      folder: A folder for files of weights, which the solver may read until it is no longer used.

    Returns:
      The solver, and file in ``folder`` -> name under which it was given.
    """
    named: dict[str, str] = {}
    return _unpacked(document, blobs, pathlib.Path(folder), named), named


def _packed(value: Any, field: str, blobs: list[bytes]) -> Any:
    if isinstance(value, enum.Enum):
        return {"enum": _place(type(value)), "value": value.value}
    path = os.fspath(value) if isinstance(value, str | os.PathLike) and field in _FILES else ""
    if path and path not in _shipped(field) and os.path.isfile(path):
        file_stamp(path, field, "give a file of weights")
        blobs.append(pathlib.Path(path).read_bytes())
        return {"file": path, "blob": len(blobs) - 1}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return {type(value).__name__: [_packed(each, "", blobs) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_packed(k, "", blobs), _packed(v, "", blobs)] for k, v in value.items()]}
    if dataclasses.is_dataclass(value):
        fields = {f.name: _packed(getattr(value, f.name), f.name, blobs) for f in dataclasses.fields(value)}
        return {"class": _place(type(value)), "fields": fields}
    for name, (kind, save, _) in _networks().items():
        if isinstance(value, kind):
            blobs.append(_bytes_of(value, save))
            return {"network": name, "blob": len(blobs) - 1}
    raise ConfigError(f"engine: a solver's {field or 'setting'} is a {type(value).__name__}; use 'local'")


def _shipped(field: str) -> tuple[str, ...]:
    """Names that a field takes before those of files."""
    from regal_jax.gflownet.shipped import SHIPPED as SCHEDULES
    from regal_jax.ordering.shipped import SHIPPED as ORDERINGS
    from regal_jax.policies import DEFAULT, SHIPPED

    return ("none", DEFAULT, *SHIPPED, ORDERS) if field == "policy" else (*ORDERINGS, *SCHEDULES)


def _place(kind: type) -> str:
    """``module:name`` of a class."""
    module, name = kind.__module__, kind.__qualname__
    if module == "__main__" or "<" in name:
        raise ConfigError(
            f"engine: a worker cannot import the class {name} of {module}; put it in a module that is "
            "installed on every machine"
        )
    return f"{module}:{name}"


def _class_of(place: str) -> Any:
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _unpacked(document: Any, blobs: Sequence[bytes], folder: pathlib.Path, named: dict[str, str]) -> Any:
    def inner(value: Any) -> Any:
        return _unpacked(value, blobs, folder, named)

    match document:
        case {"enum": place, "value": value}:
            return _class_of(place)(value)
        case {"file": name, "blob": number}:
            file = folder / f"{number}.safetensors"
            file.write_bytes(blobs[number])
            named[str(file)] = name
            return str(file)
        case {"tuple": values}:
            return tuple(map(inner, values))
        case {"list": values}:
            return list(map(inner, values))
        case {"dict": pairs}:
            return {inner(key): inner(value) for key, value in pairs}
        case {"class": place, "fields": fields}:
            # The values were checked when the solver was made, and its constructor may take others.
            made = object.__new__(_class_of(place))
            for name, value in fields.items():
                object.__setattr__(made, name, inner(value))
            return made
        case {"network": name, "blob": number}:
            file = folder / f"{number}.safetensors"
            file.write_bytes(blobs[number])
            return _networks()[name][2](str(file))
        case _:
            return document


def _networks() -> dict[str, tuple[type, Callable[..., None], Callable[[str], Any]]]:
    """Name -> class of a network, and the functions that write and read it."""
    from regal_jax.gflownet import SchedulePolicy, load_gflownet, save_gflownet
    from regal_jax.ordering import Topoformer, load_topoformer, save_topoformer
    from regal_jax.policies import Policy, load_policy, save_policy

    return {
        "policy": (Policy, save_policy, load_policy),
        "topoformer": (Topoformer, save_topoformer, load_topoformer),
        "gflownet": (SchedulePolicy, save_gflownet, load_gflownet),
    }


def _bytes_of(network: Any, save: Callable[..., None]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "network.safetensors"
        save(file, network)
        return file.read_bytes()
