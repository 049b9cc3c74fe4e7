"""The source of solvers from outside of the package, on which kept results depend."""

import contextlib
import dataclasses
import hashlib
import inspect
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["is_of_package", "outside_sources"]

_KNOWN: Final = {__name__.partition(".")[0], *sys.stdlib_module_names} - {"__main__"}


def is_of_package(solver: Any) -> bool:
    """Whether the package has the class of the solver."""
    return type(solver).__module__.startswith("regal_jax.")


def outside_sources(solver: Any) -> dict[str, str]:
    """``module:name`` to a digest of the source, for the classes of a solver that are not of the package.

    Classes of settings and base classes count. What their modules import does not. Of a class in a notebook
    its methods count.

    Args:
      solver: The solver.
    """
    found: dict[str, str] = {}
    for kind in _classes(solver):
        for base in kind.__mro__:
            if base.__module__.partition(".")[0] not in _KNOWN:
                found[f"{base.__module__}:{base.__qualname__}"] = _digest(base)
    return dict(sorted(found.items()))


def _classes(value: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from _classes(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _classes(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _classes(each)


def _digest(kind: type) -> str:
    """Digest of the file of a class, or of its methods where it has none, as in a notebook."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        source = pathlib.Path(file).read_bytes() if file else _methods(kind)
    except OSError:
        return ""
    return hashlib.sha256(source).hexdigest()[:16]


def _methods(kind: type) -> bytes:
    """Name and source of each method; those that are made, as a dataclass's, have none."""
    found = []
    for name, value in sorted(vars(kind).items()):
        if inspect.isfunction(value):
            with contextlib.suppress(OSError):
                found.append(f"{name}\n{inspect.getsource(value)}")
    return "\0".join(found).encode()
