"""Sources of real graphs: one module per library, imported in worker processes only.

A module has ``specs() -> list[TraceSpec]`` and ``trace(spec, profile) -> ComputationGraph``. It imports its
library at the top, so that a worker imports it once.
"""

import dataclasses
from typing import Final

from regal_jax.runtime.versions import version_of

__all__ = ["SOURCES", "Source"]


@dataclasses.dataclass(frozen=True)
class Source:
    """One row of `SOURCES`.

    Attributes:
      name: Name for ``--sources``.
      module: The module that traces its models.
      packages: The distributions that it needs; the first has its models.
      extra: Name of the extra of regal-jax that installs them.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    extra: str = "corpus"

    def versions(self) -> dict[str, str | None]:
        """The installed version of each package; ``None`` if it is absent."""
        return {package: version_of(package) for package in self.packages}


SOURCES: Final[dict[str, Source]] = {
    source.name: source
    for source in (
        Source("keras-applications", f"{__name__}.keras_applications", ("keras", "jax", "optax")),
        Source("keras-hub", f"{__name__}.keras_hub_backbones", ("keras-hub", "keras", "jax", "optax")),
        Source("flax", f"{__name__}.flax_models", ("flax", "jax", "optax")),
        Source("timm", f"{__name__}.timm_models", ("timm", "torch")),
        Source("transformers", f"{__name__}.transformers_models", ("transformers", "torch")),
    )
}
"""The sources by name, in the order in which they are built."""
