"""Gzip: content is compressed by the name of its file, and decompressed by its first bytes."""

import gzip
import io
import os
import zlib
from typing import Final

from regal_jax.errors import FormatError

__all__ = ["beginning", "packed", "unpacked"]

_MAGIC: Final = b"\x1f\x8b"


def packed(path: str | os.PathLike[str], data: bytes) -> bytes:
    """``data``, compressed if ``path`` ends in ``.gz``; equal data give equal files."""
    return gzip.compress(data, mtime=0) if os.fspath(path).endswith(".gz") else data


def beginning(data: bytes) -> bytes:
    """The first bytes of a file, decompressed if they are those of gzip; nothing if it is damaged."""
    if not data.startswith(_MAGIC):
        return data
    try:
        return zlib.decompressobj(zlib.MAX_WBITS + 16).decompress(data, 2**16)
    except zlib.error:
        return b""


def unpacked(data: bytes, limit: int) -> bytes:
    """``data``, decompressed if its first bytes are those of gzip.

    Raises:
      FormatError: It is larger than ``limit``, or is damaged gzip.
    """
    if data.startswith(_MAGIC):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(f"damaged gzip ({error}); fetch or write the file again") from None
    if len(data) > limit:
        raise FormatError(f"more than {limit // 2**20} MiB unpacked; check that this is the right file")
    return data
