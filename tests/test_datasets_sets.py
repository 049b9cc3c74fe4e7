"""Sets of graphs: a build that is killed and resumed gives the same files."""

import errno
import hashlib
import io
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from tqdm import tqdm

from regal_jax.datasets import Recipe, build_set, choose, draw_candidate, read_set
from regal_jax.datasets.choices import Choice, settle
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import topology_hash

SMALL = Recipe(least_ops=5, most_ops=12)
TINY = Recipe(("barabasi-albert",), least_ops=3, most_ops=5)
"""A recipe with so few topologies that members often coincide."""
SIZES = {"train": 9, "validation": 2, "test": 3}


class Even:
    """Keeps graphs with an even number of ops; a class, so that it can be sent to another process."""

    def __call__(self, graphs):
        return [graph.num_ops % 2 == 0 for graph in graphs]


def tree(folder):
    folder = pathlib.Path(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def by_hand(recipe, seed, split, index, keep, taken=(), attempt=0):
    """The oracle: a plain loop over the candidates."""
    while True:
        candidate = draw_candidate(recipe, seed, split, index, attempt)
        if keep([candidate.graph])[0] and topology_hash(candidate.graph) not in taken:
            return attempt, topology_hash(candidate.graph)
        attempt += 1


def test_files_are_the_members_under_their_hashes(tmp_path):
    manifest = build_set(tmp_path / "set", sizes=SIZES, recipe=SMALL, keep=Even())
    found = read_set(tmp_path / "set")
    assert len(found.graphs) == 14
    assert not found.broken
    assert {s: found.splits.count(s) for s in SIZES} == SIZES == manifest["splits"]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["manifest.json", *sorted(SIZES)]
    for name, graph in zip(found.names, found.graphs, strict=True):
        assert name.endswith(f"/graph_{topology_hash(graph)}.pbtxt")
        assert graph.num_ops % 2 == 0
    taken = []
    for row in manifest["members"]:
        expected = by_hand(SMALL, 0, row["split"], row["index"], Even(), taken)
        assert (row["attempt"], row["hash"]) == expected
        assert len(row["rejected"]) + row["repeated"] == row["attempt"]
        taken.append(row["hash"])
    counted = manifest["candidates"].values()
    assert sum(c["kept"] for c in counted) == 14
    assert sum(c["rejected"] for c in counted) == sum(len(row["rejected"]) for row in manifest["members"]) > 0
    assert json.loads((tmp_path / "set" / "manifest.json").read_text())["members"] == json.loads(
        json.dumps(manifest["members"])
    )


@pytest.mark.parametrize("archive", [pytest.param(False, marks=pytest.mark.slow), True])
def test_one_and_two_processes_write_the_same_bytes(tmp_path, archive):
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        build_set(
            folder, sizes={"train": 70, "test": 3}, recipe=SMALL, keep=Even(), jobs=jobs, archive=archive
        )
    assert tree(tmp_path / "1") == tree(tmp_path / "2")
    assert len(tree(tmp_path / "1")) == (3 if archive else 74)


@pytest.mark.parametrize("recipe", [SMALL, TINY])
def test_a_smaller_set_is_the_beginning_of_a_larger_one(tmp_path, recipe):
    large = build_set(tmp_path / "large", sizes={"train": 30}, recipe=recipe, seed=3)
    small = build_set(tmp_path / "small", sizes={"train": 10}, recipe=recipe, seed=3)
    assert small["members"] == large["members"][:10]
    files, all_files = tree(tmp_path / "small"), tree(tmp_path / "large")
    files.pop("manifest.json")
    assert files.items() <= all_files.items()


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_members_alone_are_those_of_the_whole(batch):
    whole = choose(SMALL, 7, "train", range(40), keep=Even())
    alone = choose(SMALL, 7, "train", [31, 5, 18], keep=Even(), batch=batch)
    assert alone == [whole[31], whole[5], whole[18]]


def test_no_topology_twice_within_or_across_splits(tmp_path):
    manifest = build_set(tmp_path / "set", sizes={"train": 20, "validation": 5, "test": 5}, recipe=TINY)
    assert manifest["repeated"] > 0
    taken = []
    for row in manifest["members"]:  # The rule of `settle` by a plain loop.
        attempt, fingerprint = by_hand(TINY, 0, row["split"], row["index"], lambda g: [True], taken)
        assert (row["attempt"], row["hash"]) == (attempt, fingerprint)
        taken.append(fingerprint)
    hashes = [topology_hash(graph) for graph in read_set(tmp_path / "set").graphs]
    assert sorted(hashes) == sorted(taken)
    assert len(set(hashes)) == 30


def test_the_first_of_two_keeps_a_planted_topology():
    def member(split, index, attempt, fingerprint):
        return Choice(split, index, attempt, "erdos-renyi", fingerprint)

    planted = [member("test", 0, 0, "a"), member("train", 1, 0, "a"), member("train", 0, 2, "b")]
    planted += [member("validation", 4, 0, "c")]

    def again(choice, taken):
        assert (choice.split, choice.index, list(taken)) == ("test", 0, ["b", "a", "c"])
        return member("test", 0, 5, "d")

    settled = settle(planted, again)
    assert [(c.split, c.index, c.hash) for c in settled] == [
        ("train", 0, "b"), ("train", 1, "a"), ("validation", 4, "c"), ("test", 0, "d")
    ]  # fmt: skip


def test_topologies_run_out(tmp_path, monkeypatch):
    monkeypatch.setattr("regal_jax.datasets.choices.MAX_ATTEMPTS", 200)
    with pytest.raises(
        ConfigError, match="train graph 2: none of 200 candidates passed the filter and was new"
    ):
        build_set(tmp_path / "set", sizes={"train": 3}, recipe=Recipe(("erdos-renyi",), 1, 1))
    with pytest.raises(ConfigError, match="train graph 0: none of 200"):
        build_set(
            tmp_path / "none", sizes={"train": 1}, recipe=SMALL, keep=lambda graphs: [False] * len(graphs)
        )


KILLED = """
import os, pathlib, signal, sys
from regal_jax.datasets import Recipe, build_set

count, write = 0, pathlib.Path.write_bytes

def half_then_die(self, data):
    global count
    count += 1
    if count == 4:  # The fourth file of a run is left half written, under its temporary name.
        write(self, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, data)

pathlib.Path.write_bytes = half_then_die
build_set(sys.argv[1], sizes={"train": 5, "test": 2}, recipe=Recipe(least_ops=5, most_ops=12),
          archive=bool(int(sys.argv[2])))
"""


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("archive", [pytest.param(False, marks=pytest.mark.slow), True])
def test_killed_again_and_again_the_set_is_the_same(tmp_path, archive):
    build_set(tmp_path / "whole", sizes={"train": 5, "test": 2}, recipe=SMALL, archive=archive)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(int(archive))]
    codes = []
    while not codes or codes[-1] != 0:
        codes.append(subprocess.run(command, env=environment(), check=False, timeout=60).returncode)
        assert len(codes) < 9
        assert codes[-1] in (0, -signal.SIGKILL)
    assert len(codes) >= 3
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")
    assert not list((tmp_path / "killed").rglob(".*"))


@pytest.mark.parametrize(
    "damage", [pathlib.Path.unlink, lambda path: os.truncate(path, path.stat().st_size - 9)]
)
@pytest.mark.parametrize("archive", [False, True])
def test_a_finished_set_is_mended_without_the_filter(tmp_path, archive, damage):
    settings = {"sizes": SIZES, "recipe": SMALL, "filter_settings": {"rule": "even"}, "archive": archive}
    build_set(tmp_path / "set", keep=Even(), **settings)
    before = tree(tmp_path / "set")
    victim = next(path for path in (tmp_path / "set").rglob("*") if path.is_file() and path.suffix != ".json")
    damage(victim)
    assert tree(tmp_path / "set") != before
    victim.with_name(f".{victim.name}.77.tmp").write_text("half")
    build_set(tmp_path / "set", keep=lambda _: pytest.fail("filtered again"), **settings)
    assert tree(tmp_path / "set") == before


def test_a_set_of_other_random_numbers_is_not_mixed(tmp_path, monkeypatch):
    settings = {"sizes": {"train": 2}, "recipe": SMALL}
    build_set(tmp_path / "set", **settings)
    before = tree(tmp_path / "set")
    monkeypatch.setattr(
        "regal_jax.datasets.build.draw_candidate",
        lambda recipe, seed, *member: draw_candidate(recipe, seed + 1, *member),
    )
    with pytest.raises(ConfigError, match=r"graph_\w+\.pbtxt: the graph drawn for it has another topology"):
        build_set(tmp_path / "set", **settings)
    assert tree(tmp_path / "set") == before


@pytest.mark.parametrize("archive", [False, True])
def test_bars_reach_their_ends_and_are_closed(tmp_path, archive):
    bars = []

    def progress(*args, **options):
        bars.append(tqdm(*args, **options, file=io.StringIO()))
        return bars[-1]

    def shown():
        found = [(bar.desc.rstrip(": "), bar.initial, bar.n, bar.total, bar.disable) for bar in bars]
        bars.clear()
        return found

    settings = {"sizes": {"train": 2, "test": 1}, "recipe": SMALL, "archive": archive, "progress": progress}
    build_set(tmp_path / "set", **settings)
    assert shown() == [("choosing", 0, 3, 3, True), ("writing", 0, 3, 3, True)]
    build_set(tmp_path / "set", **settings)  # The set is complete.
    assert shown() == [("writing", 0, 3, 3, True)]
    read_set(tmp_path / "set", progress=progress)
    assert shown() == [("reading", 0, 3, None, True)]
    with pytest.raises(ZeroDivisionError):
        build_set(tmp_path / "broken", **settings, keep=lambda _: [1 // 0])
    assert shown() == [("choosing", 0, 0, 3, True)]


ORPHANS = """
import os, pathlib, sys, time
from regal_jax.datasets import Recipe, build_set

class Slow:
    def __call__(self, graphs):
        pathlib.Path(sys.argv[1] + ".pids", str(os.getpid())).touch()
        time.sleep(60)
        return [True] * len(graphs)

if __name__ == "__main__":
    build_set(sys.argv[1], sizes={"train": 130}, recipe=Recipe(least_ops=5, most_ops=12), keep=Slow(), jobs=2)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    pids = tmp_path / "set.pids"
    pids.mkdir()
    (tmp_path / "script.py").write_text(textwrap.dedent(ORPHANS))
    parent = subprocess.Popen([sys.executable, tmp_path / "script.py", tmp_path / "set"], env=environment())
    _wait_for(lambda: len(list(pids.iterdir())) == 2)
    parent.kill()
    parent.wait()
    _wait_for(lambda: not any(_running(int(path.name)) for path in pids.iterdir()))


def _wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("nothing happened for a minute")


def _running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("room", [0, 1, 3, 6])
def test_a_full_disk_is_one_line_and_no_loss(tmp_path, monkeypatch, room):
    write = pathlib.Path.write_bytes
    left = room

    def full(self, data):
        nonlocal left
        left -= 1
        if left < 0:
            write(self, data[:7])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return write(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "write_bytes", full)
        with pytest.raises(
            FormatError, match=r"No space left on device; mend that and run the same"
        ) as error:
            build_set(tmp_path / "set", sizes=SIZES, recipe=SMALL)
    assert "\n" not in str(error.value)
    build_set(tmp_path / "set", sizes=SIZES, recipe=SMALL)
    build_set(tmp_path / "whole", sizes=SIZES, recipe=SMALL)
    assert tree(tmp_path / "set") == tree(tmp_path / "whole")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_while_packing_leaves_no_archive(tmp_path, monkeypatch):
    def full(path, mode):
        return open("/dev/full" if "w" in mode else path, mode)

    monkeypatch.setattr("regal_jax.datasets.store.open", full, raising=False)
    with pytest.raises(FormatError, match="No space left on device"):
        build_set(tmp_path / "set", sizes=SIZES, recipe=SMALL, archive=True)
    assert not list((tmp_path / "set").glob("*.tar.gz"))


def test_other_settings_are_refused(tmp_path):
    build_set(tmp_path / "set", sizes=SIZES, recipe=SMALL)
    others = {"seed": {"seed": 1}, "archive": {"archive": True}, "recipe": {"recipe": TINY}}
    others |= {"filter": {"keep": Even()}, "sizes": {"sizes": {"train": 9}}}
    for name, other in others.items():
        message = f"a set was begun there with {name} .*use the same settings, or name a new folder"
        with pytest.raises(ConfigError, match=message):
            build_set(tmp_path / "set", **{"sizes": SIZES, "recipe": SMALL, **other})


def test_folders_with_other_things_are_left_alone(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is a file; name a new folder"):
        build_set(tmp_path / "file", sizes=SIZES)
    with pytest.raises(ConfigError, match="not empty, and no set was begun there"):
        build_set(tmp_path, sizes=SIZES)
    for text in ("{", "[]", '{"format": "other"}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ConfigError, match=r"manifest\.json: not the manifest of a set"):
            build_set(tmp_path, sizes=SIZES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": {}}, "sizes: no graph in any split"),
        ({"sizes": {"train": 0}}, "sizes: no graph in any split"),
        ({"sizes": {"dev": 3}}, "sizes: unknown split 'dev'; use train, validation, test"),
        ({"sizes": {"train": -1}}, "train: must be a whole number of at least 0, got -1"),
        ({"sizes": SIZES, "seed": -1}, "seed: must be"),
        ({"sizes": SIZES, "jobs": 0}, "jobs: must be"),
        ({"sizes": {"train": "3"}}, "train: must be a whole number of at least 0, got '3'"),
        ({"sizes": SIZES, "batch": 0}, "batch: must be"),
        (
            {"sizes": SIZES, "keep": lambda graphs: [True] * len(graphs), "jobs": 2},
            "keep: <function .* cannot be sent to other processes; give a function that a module defines",
        ),
        (
            {"sizes": SIZES, "keep": len, "filter_settings": {"x": math.nan}},
            r"filter_settings: give texts, finite numbers, .*, got \{'x': nan\}",
        ),
        (
            {"sizes": SIZES, "keep": len, "filter_settings": {"x": np.float32("inf")}},
            "filter_settings: give texts, finite numbers",
        ),
    ],
)
def test_bad_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        build_set(tmp_path / "set", **arguments)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topologies": ("ring",)}, "topology: unknown 'ring'; use one of erdos-renyi"),
        ({"topologies": ()}, "topologies: none"),
        ({"topologies": (["ring"],)}, "topologies: give a str, got list"),
        ({"least_ops": 0}, "least_ops: must be"),
        ({"most_ops": 49}, "most_ops: must be a whole number of at least 50, got 49"),
        ({"control": 2}, "control: must be a number from 0 to 1"),
        ({"parameters": {"ring": {}}}, "parameters: for 'ring'"),
        ({"parameters": {"erdos-renyi": 3}}, "parameters of erdos-renyi: give a Mapping, got int"),
        ({"parameters": {"erdos-renyi": {3: 4}}}, "erdos-renyi: no parameter '3'"),
        ({"parameters": {"erdos-renyi": {"probability": math.nan}}}, "probability"),
        ({"parameters": {"erdos-renyi": {"p": 1}}}, "erdos-renyi: no parameter 'p'; it has probability"),
    ],
)
def test_bad_recipes_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Recipe(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 0, "test", 0, 0), "recipe: give a Recipe, got NoneType"),
        ((SMALL, -1, "test", 0, 0), "seed: must be a whole number of at least 0, got -1"),
        ((SMALL, 0, "tset", 0, 0), "split: there is no 'tset'; use one of train, validation, test"),
        ((SMALL, 0, "test", -1, 0), "index: must be a whole number of at least 0, got -1"),
        ((SMALL, 0, "test", 0, 1.5), "attempt: must be a whole number of at least 0, got 1.5"),
    ],
)
def test_bad_candidates_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        draw_candidate(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "tset"}, "split: there is no 'tset'"),
        ({"indices": 5}, "indices: give a list of the members, got 5"),
        ({"indices": [0, -1]}, "indices: must be a whole number of at least 0, got -1"),
        ({"batch": 0}, "batch: must be a whole number of at least 1, got 0"),
        ({"keep": 3}, "keep: 3 is no function"),
        (
            {"keep": lambda _: [True]},
            r"keep: returned \[True\] for 64 graphs; return a list with one value for",
        ),
        ({"keep": lambda _: None}, "keep: returned None for 64 graphs"),
    ],
)
def test_bad_choices_are_refused(arguments, message):
    settings = {"split": "test", "indices": [0], "keep": Even(), **arguments}
    with pytest.raises(ConfigError, match=message):
        choose(SMALL, 0, **settings)


def test_a_filter_with_too_few_answers_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"keep: returned \[True\] for 6 graphs"):
        build_set(tmp_path / "set", sizes={"test": 3}, recipe=SMALL, keep=lambda _: [True])


def test_numbers_of_numpy_are_numbers(tmp_path):
    links = {"barabasi-albert": {"links": np.int64(2)}}
    options = {"recipe": Recipe(("barabasi-albert",), np.int64(5), np.int64(9), parameters=links)}
    made = build_set(
        tmp_path / "set", sizes={"test": np.int64(2)}, seed=np.int64(3), keep=Even(), **options,
        filter_settings={"share": np.float32(0.5), "limits": (np.int8(1), 2)},
    )  # fmt: skip
    plain = {"recipe": Recipe(("barabasi-albert",), 5, 9, parameters={"barabasi-albert": {"links": 2}})}
    settings = {"share": 0.5, "limits": [1, 2]}
    assert made == build_set(
        tmp_path / "set", sizes={"test": 2}, seed=3, keep=Even(), **plain, filter_settings=settings
    )
    assert made["settings"]["filter"] == settings


def test_a_set_of_one_graph(tmp_path):
    build_set(tmp_path / "set", sizes={"test": 1}, recipe=Recipe(least_ops=1, most_ops=1))
    assert read_set(tmp_path / "set").splits == ["test"]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["manifest.json", "test"]
