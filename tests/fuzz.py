"""Mutations of files for tests of readers; ``fuzz.py COUNT SEED`` tries COUNT files per format.

A file is either read, or refused by one of `regal_jax.errors` with a message of one line.
"""

import gzip
import json
import pathlib
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter

import fuzz_formats

from regal_jax import errors

OURS = tuple(getattr(errors, name) for name in errors.__all__)
SECONDS = 20
"""Time limit per file in seconds, for a busy machine."""

HUGE = "1" + "0" * 400
EVIL = (
    *("0", "-1", "1", "0.5", "-0.0", "1e308", "1e999", "-1e999", "1e-320", HUGE, "-" + HUGE, HUGE + ".5"),
    *("9" * 5000, "1" + "0" * 18, str(2**31), str(2**63 - 1), str(2**63), str(2**64), "1979-05-27", "''"),
    *("NaN", "nan", "inf", "Infinity", "-inf", "null", "true", '""', '" "', '"a\\nb"', '"a\\u0000b"'),
    *('"\\ud800"', '"é"', '"inf"', '"1e400"', '"16GiB"', '"0"', '"' + "x" * 300 + '"', '"../../x"'),
    *("[]", "{}", "[[]]", "[0]", '[""]', '{"a": 0}', "[1, 2, 3]", "[null]"),
    *("[" * 1500 + "]" * 1500, '{"a":' * 300 + "0" + "}" * 300),
)
TOKEN = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\"[^\"\n]*\"|[\w.%/-]+")
HOLE = "@@hole@@"


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from places(item, (*path, i))


def at(value, path):
    for step in path:
        value = value[step]
    return value


def mutate_json(text, rng):
    """Replaces, drops, doubles or renames one place of a document."""
    document = json.loads(text)
    path = rng.choice(list(places(document)))
    if not path:
        return rng.choice(EVIL)
    parent, last, what = at(document, path[:-1]), path[-1], rng.random()
    if what < 0.6:
        parent[last] = HOLE
        return json.dumps(document).replace(f'"{HOLE}"', rng.choice(EVIL))
    if what < 0.75:
        del parent[last]
    elif isinstance(parent, list):
        parent[last] = at(document, rng.choice(list(places(document))))
        parent.extend([parent[last]] * rng.randint(0, 2))
    elif what < 0.85:
        parent[HOLE] = parent.pop(last)
        return json.dumps(document).replace(f'"{HOLE}"', rng.choice([e for e in EVIL if e[0] == '"']))
    elif what < 0.95:
        parent[HOLE] = parent[last]
        return json.dumps(document).replace(f'"{HOLE}"', json.dumps(last))  # The key twice.
    else:
        parent[last] = json.loads(json.dumps(at(document, rng.choice(list(places(document))))))
    return json.dumps(document)


def mutate_text(text, rng):
    """Replaces a word, or drops, doubles, moves or cuts a line."""
    words = list(TOKEN.finditer(text))
    if words and rng.random() < 0.6:
        word, other = rng.choice(words), rng.choice(words)
        new = rng.choice(EVIL) if rng.random() < 0.7 else other.group()
        return text[: word.start()] + new + text[word.end() :]
    lines = text.split("\n")
    i, j, what = rng.randrange(len(lines)), rng.randrange(len(lines)), rng.random()
    if what < 0.3:
        del lines[i]
    elif what < 0.6:
        lines.insert(j, lines[i])
    elif what < 0.8:
        lines[i] = lines[i][: rng.randint(0, len(lines[i]))]
    else:
        lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


def mutate_bytes(data, rng):
    """Flips bits, cuts or repeats parts, or changes the encoding."""
    what = rng.randrange(10)
    if not data or what == 0:
        return rng.choice([b"", b"\0", b"\xff\xfe", b"\x1f\x8b", b"{", b"[", b"\n", b"{}", b"null"])
    i, n = rng.randrange(len(data)), rng.choice([1, 1, 2, 8, 64])
    if what == 1:
        return data[:i]
    if what == 2:
        return data[:i] + bytes(n) + data[i:]
    if what == 3:
        return data[:i] + rng.randbytes(n) + data[i + n :]
    if what == 4:
        return data[:i] + data[i + n :]
    if what == 5:
        return data[:i] + data[i : i + n] * rng.choice([2, 100]) + data[i + n :]
    if what == 6:
        return data.decode("latin-1").encode(rng.choice(["utf-16", "utf-8-sig", "utf-32", "utf-8"]))
    if what == 7:
        squeezed = gzip.compress(data, 1)
        return squeezed[: rng.choice([len(squeezed), rng.randrange(len(squeezed))])]
    if what == 8:
        return data + data
    return data[:i] + bytes([data[i] ^ 1 << rng.randrange(8)]) + data[i + 1 :]


def mutated(data, kind, rng):
    """``data`` after one to three mutations, of its structure or of its bytes."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        try:
            if rng.random() < 0.25:
                data = mutate_bytes(data, rng)
            elif callable(kind):
                data = kind(data, rng)
            else:
                data = {"json": mutate_json, "text": mutate_text}[kind](data.decode(), rng).encode()
        except Exception:  # An earlier mutation may have made this one impossible.
            data = mutate_bytes(data, rng)
    return data


def attempt(read, *arguments):
    """The outcome of reading: ``"read"`` or the name of one of our errors, and any defect."""

    def late(*_):
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(*arguments)
        return "read", None
    except OURS as error:
        if not str(error) or "\n" in str(error) or "\r" in str(error):
            return None, f"{type(error).__name__} of {len(str(error).splitlines())} lines: {error}"
        return type(error).__name__, None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-4:]
        trail = " < ".join(f"{pathlib.Path(f.filename).name}:{f.lineno}" for f in reversed(where))
        return None, f"{type(error).__name__}: {str(error)[:300]} ({trail})"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(name, count, seed, folder):
    """Outcomes of ``count`` mutations of one format, and the mutations that showed a defect."""
    files, kind, read, weight = fuzz_formats.FORMATS[name]
    seeds = files(pathlib.Path(folder))
    rng, ends, wrong = random.Random(f"{name} {seed}"), Counter(), []
    target = pathlib.Path(folder) / "mutated"
    target.mkdir(exist_ok=True)
    for data in seeds:
        end, problem = attempt(read, data, target)
        assert end == "read", f"{name}: an unchanged file: {end} {problem}"
    for _ in range(max(1, int(count * weight))):
        data = mutated(rng.choice(seeds), kind, rng)
        end, problem = attempt(read, data, target)
        ends[end] += 1
        if problem:
            wrong.append((problem, data[:2000]))
    return ends, wrong


def main(count, seed, only=()):
    began, total, bad = time.perf_counter(), 0, 0
    for name in only or fuzz_formats.FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            ends, wrong = fuzz(name, count, seed, folder)
        total, bad = total + sum(ends.values()), bad + len(wrong)
        sys.stdout.write(f"{name}: {dict(ends)}, {time.perf_counter() - start:.1f} s\n")
        seen = Counter(problem for problem, _ in wrong)
        for problem, times in seen.most_common(12):
            sample = next(data for other, data in wrong if other == problem)
            sys.stdout.write(f"  {times} x {problem}\n      {sample[:160]!r}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{total} files in {time.perf_counter() - began:.0f} s, {bad} wrong\n")
    return bad


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]) > 0)
