"""Packages that load their names at first use."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["lazily"]


def lazily(
    package: str,
    modules: Mapping[str, Sequence[str]],
    more: Sequence[str] = (),
    extras: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``(__getattr__, __dir__)`` of a package.

    Args:
      package: Name of the package.
      modules: Module of the package -> names that it defines.
      more: Other names of the package.
      extras: Optional dependency of its modules -> the extra that installs it.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from regal_jax.errors import MissingExtraError
        from regal_jax.runtime.interrupts import interruptible

        with interruptible():
            try:
                module = importlib.import_module(f"{package}.{module_of[name]}")
            except ModuleNotFoundError as error:
                absent = (error.name or "").partition(".")[0]
                if extras is None or absent not in extras:
                    raise
                raise MissingExtraError(absent, extras[absent]) from None
            except AttributeError as error:
                # As an `AttributeError` it would say that the package does not have the name.
                raise ImportError(
                    f"{package}.{name} cannot be loaded ({error}); installed packages do not fit together: "
                    "install regal-jax again"
                ) from error
            return getattr(module, name)

    return get, lambda: sorted([*module_of, *more])
