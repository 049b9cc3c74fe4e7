"""Reasons why a program cannot run in an order; `regal_jax.compile` then tries the next one."""

__all__ = ["DonationLost", "NotSupported"]


class DonationLost(Exception):
    """A result cannot be put into the buffer of the argument that it overwrites."""


class NotSupported(Exception):
    """The compiled program has a form in which its memory cannot be assigned anew."""
