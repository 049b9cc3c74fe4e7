"""Whole numbers as protocol buffers write them: seven bits a byte, the lowest first."""

__all__ = ["read_varint"]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends.

    Raises:
      ValueError: The data ends in the middle of the number, or the number has more than 64 bits.
    """
    number = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("the data ends in the middle of a number")
