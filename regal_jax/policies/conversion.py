"""Weights files of format version 5, whose configs had other fields.

`regal_jax.policies.load_policy` reads such files directly. To rewrite files without a change of weights:

    python -m regal_jax.policies.conversion FILE [FILE ...]
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from regal_jax.errors import ConfigError, FormatError
from regal_jax.plan import Objective
from regal_jax.policies.ablation import Ablation
from regal_jax.policies.choices import FeatureSet, Placement, Transfers
from regal_jax.policies.config import PolicyConfig
from regal_jax.policies.priors import MAKERS
from regal_jax.storage.documents import parse_json

__all__ = ["EARLIER", "rewrite", "translated"]

EARLIER: Final = "5"
"""The version that this module translates."""

_FIELDS: Final = (
    "num_devices", "network", "parametrisation", "first", "second", "rounds", "width", "features", "balance",
    "uniform", "guided_share", "share_rounds", "initial_bias", "initial_affinity_bias", "cuts", "cut_gain",
    "order", "order_gain", "reach", "transfers",
)  # fmt: skip
_NAMES: Final = {
    "features": ("own", "plain", "structural", "ordered", "scheduled"),
    "balance": ("work", "bytes"),
    "parametrisation": ("mean-variance", "alpha-beta"),
    "transfers": ("uniform", "reader", "reader-there", "midway", "schedule"),
}
_WITHOUT: Final = ("own", "plain")
"""Features of policies that had no prior."""
_SAME: Final = ("num_devices", "network", "rounds", "width", "guided_share", "reach")
_PRIORS: Final = {"own": "none", "plain": "none", "ordered": "memory", "scheduled": "schedule"}


def translated(fields: Mapping[str, Any]) -> PolicyConfig:
    """The config that the fields of version 5 stand for.

    Raises:
      ConfigError: A field is missing or unknown, a value is invalid, or there is an order by levels together
        with another prior, which no policy of this release can have.
    """
    _check(fields)
    has_prior = bool(_cuts(fields) or fields["order_gain"])
    # Structural features include levels and cuts, whether or not the policy has a prior of them.
    prior = _PRIORS.get(fields["features"], "levels" if has_prior else "none")
    if fields["order_gain"] and fields["order"] != prior:
        raise ConfigError(
            f"policy: an order by {fields['order']!r} with {fields['features']!r} features; train the policy "
            "again"
        )
    own: dict[str, Any] = {name: fields[name] for name in _SAME}
    if fields["parametrisation"] == "mean-variance":
        own |= {"means": fields["first"], "variances": fields["second"]}
    objective = Objective.PEAK_MEMORY if fields["balance"] == "bytes" else Objective.MAKESPAN
    return PolicyConfig(objective=objective, prior=prior, ablation=_ablation(fields, prior), **own)


def _ablation(fields: Mapping[str, Any], prior: str) -> Ablation:
    """The differences from the priors of this release, and the scales."""
    cuts, maker = _cuts(fields), MAKERS[prior]
    bins = {}
    if fields["parametrisation"] == "alpha-beta":
        bins = {"alphas": fields["first"], "betas": fields["second"]}
    return Ablation(
        features=FeatureSet(fields["features"] if fields["features"] in _WITHOUT else "structural"),
        placements=None if cuts in ((), maker.placements) else tuple(map(Placement, cuts)),
        transfers=None if fields["transfers"] == maker.transfers else Transfers(fields["transfers"]),
        placement_scale=fields["cut_gain"] if cuts else 0.0,
        order_scale=fields["order_gain"],
        priority_bias=fields["initial_bias"],
        affinity_bias=fields["initial_affinity_bias"],
        uniform=fields["uniform"],
        share_rounds=fields["share_rounds"],
        **bins,
    )


def _cuts(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The placement priors that the policy had."""
    if fields["num_devices"] == 1 or fields["features"] in _WITHOUT or not fields["cut_gain"]:
        return ()
    return tuple(fields["cuts"])


def _check(fields: Mapping[str, Any]) -> None:
    if sorted(fields) != sorted(_FIELDS):
        other = ", ".join(sorted(set(fields) ^ set(_FIELDS)))
        raise ConfigError(f"policy: {other} missing or unknown in a config of version {EARLIER}")
    for name, known in _NAMES.items():
        if fields[name] not in known:
            raise ConfigError(
                f"policy: {name} is {fields[name]!r}; version {EARLIER} knows {', '.join(known)}"
            )


def rewrite(path: str) -> None:
    """Rewrites a file of version 5; a file of this version stays as it is.

    Strings of its metadata are kept. The settings of its training (``training``) get the new names.

    Raises:
      FormatError: The file cannot be loaded; see `regal_jax.policies.load_policy`.
      OSError: The file cannot be read or written.
    """
    # Imported here because these modules import this one.
    from regal_jax.policies.weights import load_policy, read_metadata, read_version, save_policy

    policy = load_policy(path)
    if read_version(path) != EARLIER:
        return
    metadata = read_metadata(path)
    if "training" in metadata:
        metadata["training"] = _training(metadata["training"])
    save_policy(path, policy, metadata)


def _training(text: str) -> str:
    """Settings of a run, with the new names of the policy's settings; a text of another kind as it is."""
    try:
        settings = parse_json(text)
    except FormatError:
        return text
    policy = settings.get("policy") if isinstance(settings, Mapping) else None
    if not isinstance(policy, Mapping) or sorted(policy) != sorted(_FIELDS):
        return text
    return json.dumps({**settings, "policy": dataclasses.asdict(translated(policy))})


def main(arguments: Sequence[str]) -> int:
    """Rewrites each file; returns the exit code, 2 for bad input.

    Raises:
      SystemExit: The help was asked for, or an option is unknown.
    """
    parser = argparse.ArgumentParser(
        prog="python -m regal_jax.policies.conversion",
        description=f"Rewrite weights files of format version {EARLIER} in place; others stay as they are.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="a file of weights")
    paths = parser.parse_args(arguments).files
    try:
        if not paths:
            raise ConfigError("FILE: give the weights files to rewrite")
        for path in paths:
            rewrite(path)
            sys.stdout.write(f"{path}\n")
    except (ValueError, OSError) as error:
        if isinstance(error, OSError):
            error = f"{error.filename}: {error.strerror}; check the path"
        sys.stderr.write(f"regal_jax.policies.conversion: error: {' '.join(str(error).split())}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
