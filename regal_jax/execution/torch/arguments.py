"""The arguments of a call in the order in which a module was traced with them."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.utils import _pytree as pytree

from regal_jax.errors import ConfigError

__all__ = ["Arguments"]


class Arguments:
    """The structure of the arguments that a module was traced with.

    Args:
      module: The module.
      args: The positional arguments.
      kwargs: The keyword arguments.
    """

    def __init__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._count, self._names = len(args), list(kwargs)
        self._spec: Any = pytree.tree_structure((tuple(args), dict(kwargs)))
        self._parameters = list(inspect.signature(module.forward).parameters.values())

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors and other values of a call, in the order of the trace.

        Dicts may have another order, and arguments may be given by place or by name.

        Raises:
          ConfigError: They have another structure.
        """
        try:
            return self._spec.flatten_up_to(self._as_traced(args, kwargs))
        except (ValueError, KeyError) as error:
            count = len(pytree.tree_leaves((args, dict(kwargs))))
            reason = f"; {str(error).splitlines()[0]}" if count == self._spec.num_leaves else ""
            raise ConfigError(
                f"PlannedModule: got {count} arguments and the plan is for {self._spec.num_leaves} "
                f"(tensors in lists and dicts counted each){reason}; apply a plan for these arguments"
            ) from None

    def _as_traced(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The same arguments, with as many by place, and the same ones by name, as in the trace."""
        if len(args) == self._count and kwargs.keys() == set(self._names):
            return tuple(args), dict(kwargs)
        places = [p.name for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        named = {**dict(zip(places, args, strict=False)), **kwargs}
        if len(named) != len(args) + len(kwargs) or len(named) != self._count + len(self._names):
            raise ValueError("some are given twice, or are not in the trace")
        return tuple(named[name] for name in places[: self._count]), {k: named[k] for k in self._names}
