"""Forms of PyTorch models, and the handling of a torchvision that cannot be imported."""

import contextlib
import enum
import importlib
import importlib.machinery
import io
import logging
import sys
import types
import warnings
from typing import Any, Final

import torch

from regal_jax.graph import ComputationGraph
from regal_jax.importers.torch_module import from_torch

__all__ = [
    "FORMS",
    "hide_broken_torchvision",
    "meta_tensor",
    "quiet",
    "stub_broken_torchvision",
    "trace_module",
]

FORMS: Final = ("forward", "gradient")
"""Forms in which PyTorch models are traced, without an Adam update, which adds ten ops per parameter."""


def trace_module(
    module: torch.nn.Module, inputs: dict[str, Any] | tuple[Any, ...], form: str, *, profile: str, name: str
) -> ComputationGraph:
    """The graph of one form of a module on the ``meta`` device."""
    module.train(form != "forward")
    args = () if isinstance(inputs, dict) else inputs
    kwargs = inputs if isinstance(inputs, dict) else {}
    with quiet():
        # Statistics of training mode are kept, so that the graphs of all versions agree.
        return from_torch(
            module, *args, kwargs=kwargs, form=form, donate_state=False, profile=profile, name=name
        )


def meta_tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


@contextlib.contextmanager
def quiet() -> Any:
    """Suppresses the messages that libraries print for every model."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _torchvision_works() -> bool:
    """Whether torchvision can be imported; removes the modules that a failed import leaves behind.

    PyPI has torchvision for one build of PyTorch only. With another build (CPU only, for example) its
    compiled ops are missing and the import raises `RuntimeError`.
    """
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError, OSError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return False
    return True


def hide_broken_torchvision() -> None:
    """Makes a torchvision that cannot be imported look absent, which transformers can handle."""
    if not _torchvision_works():
        sys.modules["torchvision"] = None  # pyright: ignore[reportArgumentType]


def stub_broken_torchvision() -> None:
    """Puts empty modules in the place of a torchvision that cannot be imported.

    timm imports names from it for data and for conversions. A trace of a model uses none of them, so it
    suffices that the names exist.
    """
    if _torchvision_works():
        return
    names = (
        "", ".transforms", ".transforms.functional", ".datasets", ".ops", ".ops.misc", ".models",
        ".models.feature_extraction", ".utils",
    )  # fmt: skip
    for name in names:
        module = types.ModuleType(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.__path__ = []
        module.__getattr__ = _anything  # pyright: ignore[reportAttributeAccessIssue]
        sys.modules[module.__name__] = module
        parent, _, child = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    modes = "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS"
    interpolation = enum.Enum("InterpolationMode", modes)
    for name in ("torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules[name].InterpolationMode = interpolation  # pyright: ignore[reportAttributeAccessIssue]


def _anything(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (torch.nn.Module,), {})
