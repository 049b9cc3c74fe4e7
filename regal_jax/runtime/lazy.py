"""Packages that load their names at first use."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["lazily"]


def lazily(
    package: str, modules: Mapping[str, Sequence[str]], more: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``(__getattr__, __dir__)`` of a package.

    Args:
      package: Name of the package.
      modules: Module of the package -> names that it defines.
      more: Other names of the package.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from regal_jax.runtime.interrupts import interruptible

        with interruptible():
            return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    return get, lambda: sorted([*module_of, *more])
