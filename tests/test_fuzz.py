"""Changed files are either read or refused with an error of one line."""

import subprocess
import sys
import time

import fuzz
import fuzz_formats
import pytest

from regal_jax import errors
from regal_jax.errors import FormatError
from regal_jax.storage.documents import parse_json, parse_toml


@pytest.mark.parametrize("name", fuzz_formats.FORMATS)
def test_mutated_files_are_read_or_refused_in_one_line(name, tmp_path):
    if name == "onnx":
        pytest.importorskip("onnx")
    ends, wrong = fuzz.fuzz(name, 40, 0, tmp_path)
    assert not wrong
    assert len(ends) > 1 or name in ("references", "choices", "checkpoint")


@pytest.mark.slow
def test_a_hundred_thousand_mutated_files():
    command = [sys.executable, fuzz.__file__, "4000", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1" + "0" * 400, "a whole number of 401 digits"),
        ("9" * 5000, "a whole number of 5000 digits"),
        ("1e999", "1e999 is not allowed"),
        ("NaN", "NaN is not allowed"),
        ("[" * 65 + "]" * 65, "nests too deep"),
        ("[" * 100_000 + "]" * 100_000, "nests too deep"),
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
        (b"\xff", "byte 0 is not UTF-8"),
        ("{", "not JSON: line 1, column 2"),
    ],
)
def test_json_is_refused_in_one_line(text, message):
    with pytest.raises(FormatError, match=message) as error:
        parse_json(text)
    assert "\n" not in str(error.value)


def test_a_key_that_occurs_twice_is_found_in_linear_time():
    keys = ", ".join(f'"op{i}": 0' for i in range(50_000))
    began = time.process_time()
    with pytest.raises(FormatError, match="the key 'op49999' twice"):
        parse_json(f'{{{keys}, "op49999": 0}}')
    assert time.process_time() - began < 10  # Where keys are compared in pairs, a minute.


def test_json_is_read():
    assert parse_json("[" * 64 + "]" * 64)
    assert parse_json(b'{"a": [1, -2.5, "\\u00e9", null]}') == {"a": [1, -2.5, "é", None]}
    assert parse_json("1" + "0" * 300) == 10**300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1" + "0" * 400, "a whole number of 1329 bits"),
        ("a = " + "9" * 5000, "not TOML: .*4300 digits"),
        ("a = " + "[" * 1000 + "]" * 1000, "nests too deep"),
        (".".join("a" * 1000) + " = 1", "nests too deep"),
        ("a = ", "not TOML: "),
    ],
)
def test_toml_is_refused_in_one_line(text, message):
    with pytest.raises(FormatError, match=message) as error:
        parse_toml(text)
    assert "\n" not in str(error.value)


def test_toml_is_read():
    assert parse_toml("a = [1, inf]\n[b.c]\nd = 'e'") == {"a": [1, float("inf")], "b": {"c": {"d": "e"}}}


def test_a_message_is_one_line_whatever_it_quotes():
    for name in errors.__all__:
        if name != "MissingExtraError":
            assert str(getattr(errors, name)("a\nb\r\x00\u2028\ud800 é")) == "a\\nb\\r\\x00\\u2028\\ud800 é"
