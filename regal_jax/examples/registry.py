"""The examples by name. Flax and Optax are imported only when an example is built."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from regal_jax.checks import shown, whole
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph
from regal_jax.importers.jax_program import from_jax
from regal_jax.importers.roofline import DeviceProfile
from regal_jax.runtime.interrupts import interruptible

__all__ = ["DEFAULT_EXAMPLE", "EXAMPLES", "Example", "TrainingStep", "load_example"]

DEFAULT_EXAMPLE: Final = "moe-small"
"""The example that the command uses by default."""


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """A training step to trace; none of its arrays is allocated.

    Attributes:
      fn: ``fn(params, model_state, opt_state, inputs, labels)`` returns the first three, updated, and
        the loss.
      args: Its arguments, pytrees of `jax.ShapeDtypeStruct`.
      resident_argnums: Arguments that stay on the devices between steps.
      donate_argnums: Arguments whose buffers the step may reuse.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    resident_argnums: tuple[int, ...] = (0, 1, 2)
    donate_argnums: tuple[int, ...] = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Example:
    """A model and its training step: forward, backward and an Adam update, in float32.

    Attributes:
      name: Name for `load_example`.
      description: A description of one line.
      batch_size: Default batch size.
      builder: ``MODULE:FUNCTION`` below `regal_jax.examples`; takes the batch size.
    """

    name: str
    description: str
    batch_size: int
    builder: str

    def build(self, batch_size: int | None = None) -> TrainingStep:
        """The training step, with abstract arguments.

        Args:
          batch_size: Batch size of the inputs; by default that of the example.

        Raises:
          ConfigError: ``batch_size`` is not a positive whole number.
        """
        given = self.batch_size if batch_size is None else batch_size
        size = whole(given, 1)
        if size is None:
            raise ConfigError(
                f"example {self.name!r}: batch_size {shown(given)} must be a whole number above 0"
            )
        module, _, function = self.builder.partition(":")
        return getattr(importlib.import_module(f"regal_jax.examples.{module}"), function)(size)


EXAMPLES: Final[Mapping[str, Example]] = {
    example.name: example
    for example in (
        Example("mlp", "Three dense layers on 28 x 28 images: the smallest", 128, "vision:mlp"),
        Example(
            "moe-small",
            "Mixture-of-experts transformer, one block of 4 experts, width 256, 128 tokens: a good first run",
            8,
            "language:moe_small",
        ),
        Example(
            "moe",
            "Mixture-of-experts transformer, 6 blocks of 8 experts, width 512, 512 tokens",
            8,
            "language:moe",
        ),
        Example("resnet50", "ResNet-50 on 224 x 224 images", 32, "vision:resnet50"),
        Example("unet", "U-Net, five levels from 64 channels, on 256 x 256 images", 8, "vision:unet"),
        Example(
            "gpt2-small",
            "Decoder like GPT-2 small: 12 layers, width 768, 1024 tokens",
            8,
            "language:gpt2_small",
        ),
        Example(
            "lstm-lm",
            "Two-layer LSTM language model of width 650, its 35 steps unrolled (a scan would be one op)",
            20,
            "language:lstm_lm",
        ),
    )
}
"""Every example by name."""


@interruptible()
def load_example(
    name: str,
    *,
    batch_size: int | None = None,
    profile: str | DeviceProfile | Sequence[str | DeviceProfile] = "h200",
) -> ComputationGraph:
    """The graph of an example's training step, traced with shapes only.

    Parameters, model state and optimiser state are resident and donated; inputs start on device 0.

    Args:
      name: A key of `EXAMPLES`.
      batch_size: Batch size of the inputs; by default that of the example.
      profile: The device for which runtimes are estimated, as `from_jax` takes it.

    Raises:
      ConfigError: There is no such example, or the batch size is invalid.

    Examples:
      >>> from regal_jax import load_example
      >>> load_example("mlp", batch_size=8).name
      'mlp'
    """
    if not isinstance(name, str) or name not in EXAMPLES:
        raise ConfigError(f"example: there is no {name!r}; use one of {', '.join(EXAMPLES)}")
    step = EXAMPLES[name].build(batch_size)
    return from_jax(
        step.fn,
        *step.args,
        resident_argnums=step.resident_argnums,
        donate_argnums=step.donate_argnums,
        profile=profile,
        name=name,
    )
