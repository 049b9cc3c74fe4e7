"""Named links between devices, and the text form of transfer models and links."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from regal_jax.graph.units import Quantity

__all__ = ["DEFAULT_LINK", "LINKS", "Link", "NamedLink", "link_name", "parse_link", "parse_transfer"]


class Link(NamedTuple):
    """A connection from one device to another.

    Attributes:
      latency: Time of a transfer of 0 bytes.
      bandwidth: Bytes per time unit, in one direction.
    """

    latency: Quantity
    bandwidth: Quantity


class NamedLink(NamedTuple):
    """A kind of hardware link, between one pair of devices, in one direction.

    Attributes:
      latency: Latency of a small message between accelerators, as measured in a program.
      bandwidth: Bandwidth that large messages reach in practice.
      nominal: Bandwidth of the data sheet.
      basis: Sources of the numbers; ``[assumed]`` marks numbers without a published source.
    """

    latency: str
    bandwidth: str
    nominal: str
    basis: str

    @property
    def link(self) -> Link:
        """The latency and bandwidth that transfers use."""
        return Link(self.latency, self.bandwidth)


_TORUS: Final = "next neighbours on the torus; 90 % of it, and latency [assumed]"

# docs/links.md shows this table and says more about it.
LINKS: Final[Mapping[str, NamedLink]] = {
    "nvlink3": NamedLink(
        "3us", "230GB/s", "300GB/s", "A100 data sheet; measured: NVIDIA/nccl-tests issues 149 and 123"
    ),
    "nvlink4": NamedLink(
        "3us", "375GB/s", "450GB/s", "H100 data sheet; measured: NVIDIA/nccl issues 1264 and 1487"
    ),
    "nvlink5": NamedLink(
        "3us",
        "750GB/s",
        "900GB/s",
        "B200 data sheet; share of it as for nvlink4 [assumed]; latency: NVIDIA/nccl-tests issue 333",
    ),
    "pcie3x16": NamedLink(
        "10us", "12.5GB/s", "15.75GB/s", "PCI-SIG; 80 % of it, and latency as for pcie4x16 [assumed]"
    ),
    "pcie4x16": NamedLink(
        "10us",
        "25GB/s",
        "31.5GB/s",
        "PCI-SIG; measured: NVIDIA/nvbandwidth issue 15; latency between 4us (lukealonso/p2pmark, peers) "
        "and 12 to 17us (NVIDIA/nccl issue 1127, through the host) [assumed]",
    ),
    "pcie5x16": NamedLink(
        "10us", "54GB/s", "63GB/s", "PCI-SIG; measured: lukealonso/p2pmark; latency as for pcie4x16 [assumed]"
    ),
    "infinity-fabric-mi300": NamedLink(
        "5us", "50GB/s", "64GB/s", "MI300X data sheet, one of seven links; the rest [assumed]"
    ),
    "ici-v4": NamedLink("2us", "40GB/s", "45GB/s", f"jax-ml/scaling-book, tpus.md; {_TORUS}"),
    "ici-v5e": NamedLink("2us", "45GB/s", "50GB/s", f"Google Cloud's page on v5e, 400 GB/s a chip; {_TORUS}"),
    "ici-v5p": NamedLink(
        "2us", "90GB/s", "100GB/s", f"Google Cloud's page on v5p, 1200 GB/s a chip; {_TORUS}"
    ),
    "infiniband-hdr": NamedLink(
        "5us", "22GB/s", "25GB/s", "200 Gbit/s; measured: NVIDIA/nccl-tests issue 62; latency [assumed]"
    ),
    "infiniband-ndr": NamedLink(
        "5us", "45GB/s", "50GB/s", "400 Gbit/s; 90 % of it, as for infiniband-hdr, and latency [assumed]"
    ),
    "ethernet-10g": NamedLink("50us", "1.1GB/s", "1.25GB/s", "10 Gbit/s; TCP, 90 % of it [assumed]"),
    "ethernet-25g": NamedLink("50us", "2.8GB/s", "3.125GB/s", "25 Gbit/s; TCP, 90 % of it [assumed]"),
    "ethernet-100g": NamedLink("50us", "10GB/s", "12.5GB/s", "100 Gbit/s; TCP, 80 % of it [assumed]"),
}
"""Every link that has a name."""

DEFAULT_LINK: Final = "pcie4x16"
"""The link of a cluster if none is given: the one in most machines with two devices."""


def link_name(link: Link) -> str | None:
    """The name of the link with exactly this latency and bandwidth in `LINKS`; ``None`` for none."""
    return next((name for name, named in LINKS.items() if named.link == link), None)


def parse_link(text: object, what: str) -> Link:
    """The link that ``"nvlink4"`` or ``"latency=5us,bandwidth=50GB/s"`` means; missing parts cost nothing.

    Args:
      text: One of `LINKS`, or one or two quantities, which are not parsed here; a `Link` is returned as it
        is.
      what: Name of the value in the error message.

    Raises:
      ValueError: ``text`` is neither; the message lists the names.
    """
    if isinstance(text, Link):
        return text
    if not isinstance(text, str):
        raise ValueError(f"{what}: give a link as text, e.g. {DEFAULT_LINK!r}, got {text!r}")
    if text in LINKS:
        return LINKS[text].link
    options: dict[str, str] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if key not in ("latency", "bandwidth") or not equals:
            raise ValueError(
                f"{what}: no link is called {text!r}; use one of {', '.join(LINKS)}, or numbers such as "
                "'latency=5us,bandwidth=50GB/s'"
            )
        if key in options:
            raise ValueError(f"{what}: {key} twice in {text!r}; give it once")
        options[key] = value
    return Link(options.get("latency", 0.0), options.get("bandwidth", float("inf")))


def parse_transfer(text: str, models: tuple[str, ...]) -> tuple[str, Link | None]:
    """Splits ``MODEL``, ``MODEL:LINK`` or ``LINK`` (then blocking) into model and link.

    Args:
      text: E.g. ``"blocking"``, ``"delay:nvlink4"``, ``"pcie4x16"``, ``"blocking:latency=5us"``,
        ``"latency=5us"``.
      models: The names of the models, blocking first.

    Raises:
      ValueError: ``text`` is none of these; the message lists the names.
    """
    model, colon, rest = (part.strip() for part in text.partition(":"))
    if model in LINKS and not colon:
        return models[0], LINKS[model].link
    if "=" in model and not colon:
        return models[0], parse_link(text, f"transfer {text!r}")
    if model not in models:
        raise ValueError(
            f"transfer: cannot read {text!r}; use a model ({', '.join(models)}), "
            f"a link ({', '.join(LINKS)}), or both, e.g. 'delay:nvlink4'"
        )
    return model, parse_link(rest, f"transfer {text!r}") if colon else None
