"""`TraceSpec`: how to make one graph of a corpus."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from regal_jax.errors import FormatError

__all__ = ["TraceSpec"]


@dataclasses.dataclass(frozen=True)
class TraceSpec:
    """One graph of one model.

    Attributes:
      source: Name of the source that traces it (`regal_jax.corpus.sources.SOURCES`).
      model: Name of the model, unique within its source.
      family: Architecture family, shared by all sources (`regal_jax.corpus.families`).
      form: One of `regal_jax.datasets.FORMS`.
      constructor: Description of how the model is built, for readers.
    """

    source: str
    model: str
    family: str
    form: str
    constructor: str

    @property
    def key(self) -> str:
        """``SOURCE/MODEL.FORM``, which ``--only`` matches and which is the file's path below ``graphs``."""
        return f"{self.source}/{re.sub(r'[^A-Za-z0-9_.-]', '_', self.model)}.{self.form}"

    def to_json(self) -> dict[str, str]:
        """The spec as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "TraceSpec":
        """The spec with the fields of ``document``; other fields are ignored.

        Raises:
          FormatError: A field is missing or is not a string.
        """
        values = {field.name: document.get(field.name) for field in dataclasses.fields(cls)}
        for name, value in values.items():
            if not isinstance(value, str):
                raise FormatError(f"spec: {name} is {value!r}, not a text; build the corpus again")
        return cls(**values)  # pyright: ignore[reportArgumentType]
