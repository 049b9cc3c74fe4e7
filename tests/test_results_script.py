"""The commands of docs/results are ones that `regal-jax` takes."""

import pathlib
import re
import shlex
import tomllib

import pytest

from regal_jax.cli.parser import build_parser
from regal_jax.experiments import method_names
from regal_jax.learning import TrainConfig
from regal_jax.robust import SOURCES

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = (ROOT / "benchmarks" / "results.sh").read_text(encoding="utf-8").replace("\\\n", " ")


def commands():
    """The words of each command; one in a loop over suites is there once for each suite."""
    suites = []
    for line in SCRIPT.splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["for", "suite"]:
            suites = [word.rstrip(";") for word in words[3:-1]]
        elif words[:1] == ["regal-jax"]:
            looped = suites if any("$suite" in word for word in words) else [""]
            yield from ([word.replace("$suite", suite) for word in words[1:]] for suite in looped)


COMMANDS = list(commands())


def test_there_are_all_kinds_of_commands():
    assert {words[0] for words in COMMANDS} == {"dataset", "corpus", "tune", "train", "evaluate"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_parser_takes_every_command(words):
    args = build_parser().parse_args(words)
    if words[0] == "evaluate":
        known = SOURCES if "robust_scheduling" in str(args.config) else method_names()
        assert set(args.methods or ()) <= {*known, *(name for name, _ in args.policy or ())}


def test_the_settings_of_a_policy_from_nothing_are_those_of_a_training():
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- nothing\.toml -->\n```toml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    config = TrainConfig.from_document(tomllib.loads(found[1]))
    assert config.policy.prior == "none"
    assert not config.policy.placements
    assert not config.policy.orders
