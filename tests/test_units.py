"""Quantities in the notation of users."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regal_jax.graph.units import format_bytes, format_time, parse_bandwidth, parse_bytes, parse_time


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (0, 0),
        (12, 12),
        (12.9, 12),
        ("512", 512),
        ("512B", 512),
        ("1KiB", 1024),
        ("1kB", 1000),
        ("16GiB", 16 * 2**30),
        ("16GB", 16 * 10**9),
        (" 1.5 mib ", 3 * 2**19),
        ("2TiB", 2**41),
        ("1e3KB", 10**6),
        (".5GiB", 2**29),
        ("inf", math.inf),
        (math.inf, math.inf),
        ("1PiB", 2**50),
    ],
)
def test_bytes(text, value):
    assert parse_bytes(text) == value


def test_sizes_round_up_and_capacities_down():
    assert (parse_bytes("1.5"), parse_bytes("1.5", round_up=True)) == (1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "16 GiB GiB",
        "1iB",
        "16XB",
        "-1",
        -1,
        "nan",
        math.nan,
        None,
        True,
        [],
        "1e",
        "1e400B0",
        "0x10",
    ],
)
def test_bad_bytes(text):
    with pytest.raises(ValueError, match="memory: ") as caught:
        parse_bytes(text, "memory")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        (5, "ms", 5),
        ("5", "ms", 5),
        ("5us", "us", 5),
        ("5us", "ns", 5000),
        ("5 µs", "us", 5),
        ("5 μs", "us", 5),
        ("2S", "ms", 2000),
        ("1.5ms", "s", 0.0015),
        ("0ns", "s", 0),
        ("2\u017f", "s", 2),
    ],
)
def test_times(text, unit, value):
    assert parse_time(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["", "us", "5 minutes", "-5us", "nan", -0.1, None, False, "5usus", 10**400])
def test_bad_times(text):
    with pytest.raises(ValueError, match="latency: "):
        parse_time(text, "s", "latency")


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        (7, "us", 7),
        ("7", "us", 7),
        ("50GB/s", "s", 50e9),
        ("50GB/s", "us", 50e3),
        ("1 GiB / s", "ms", 2**30 / 1e3),
        ("inf", "us", math.inf),
        ("50gb/s", "s", 50e9),
    ],
)
def test_bandwidths(text, unit, value):
    assert parse_bandwidth(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", [0, "0GB/s", -1, "50GB", "50GB/h", "nan", None, "10Gb/s", "10Gib/s"])
def test_bad_bandwidths(text):
    with pytest.raises(ValueError, match="bandwidth: "):
        parse_bandwidth(text, "s")


def test_what_is_below_zero_is_shown_as_it_was_written():
    for parse, value in (
        (parse_bytes, "-5GiB"),
        (parse_bytes, -5),
        (lambda text: parse_time(text, "s"), "-5us"),
        (lambda text: parse_bandwidth(text, "s"), " -5GB/s"),
    ):
        with pytest.raises(ValueError, match=f"must be zero or more, got {value!r}$"):
            parse(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (16 * 2**30, "16.00 GiB"),
        (math.inf, "unlimited"),
        (2**40 - 5, "1.00 TiB"),
    ],
)
def test_format_bytes(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "us", "0 s"),
        (1.5, "us", "1.5 us"),
        (1234.5, "us", "1.234 ms"),
        (2, "ns", "2 ns"),
        (5000, "s", "5000 s"),
        (123456, "s", "123,456 s"),
        (0.25, "ns", "0.25 ns"),
    ],
)
def test_format_time(value, unit, text):
    assert format_time(value, unit) == text


@given(st.floats(1e-9, 1e12))
def test_what_is_written_reads_back(value):
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=0.01, abs=1)
    if value < 9999:  # Thousands are set apart for people.
        assert parse_time(format_time(value, "s"), "s") == pytest.approx(value, rel=1e-3)
