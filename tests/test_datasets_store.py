"""Reading sets: folders, archives and single files, whole and broken."""

import errno
import gzip
import io
import pathlib
import tarfile
import warnings

import pytest

from regal_jax.datasets import Recipe, build_set, generate, load_graphs, read_set
from regal_jax.errors import FormatError
from regal_jax.importers import format_cost_graph, format_native, save_graph

GOOD = format_cost_graph(generate("chain", 3, 0))


def archive(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def hashes(found):
    return sorted(graph.content_hash for graph in found.graphs)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets")
    settings = {"sizes": {"train": 4, "test": 2}, "recipe": Recipe(least_ops=3, most_ops=9)}
    build_set(root / "files", **settings)
    build_set(root / "archives", archive=True, **settings)
    return root


def test_a_folder_its_archives_and_one_archive_hold_the_same(sets, tmp_path):
    files, archives = read_set(sets / "files"), read_set(sets / "archives")
    assert files.names == archives.names
    assert hashes(files) == hashes(archives)
    assert files.splits == archives.splits == ["test"] * 2 + ["train"] * 4
    train = read_set(sets / "archives" / "train.tar.gz")
    assert hashes(train) == hashes(read_set(sets / "files" / "train"))
    one = next((sets / "files" / "train").iterdir())
    assert read_set(one).names == (one.name,)
    # The layout of DeepMind's release: one archive, with a folder that holds all splits.
    for name, mode in (("all.tar.gz", "w:gz"), ("all.tgz", "w:gz"), ("all.tar", "w")):
        with tarfile.open(tmp_path / name, mode) as file:
            file.add(sets / "files", "synthetic-graphs")
        found = read_set(tmp_path / name)
        assert hashes(found) == hashes(files)
        assert sorted(found.splits) == files.splits
    assert {g.name for g in found.graphs} == {n.split("/")[-1].split(".")[0] for n in files.names}


def test_compressed_graphs_are_read_from_archives_too(tmp_path):
    (tmp_path / "set").mkdir()
    for seed, name in enumerate(("a.json", "b.json.gz")):
        save_graph(generate("layered", 6, seed), tmp_path / "set" / name)
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as file:
        file.add(tmp_path / "set", "set")
    found = read_set(tmp_path / "set.tar.gz")
    assert len(found.graphs) == 2
    assert hashes(found) == hashes(read_set(tmp_path / "set"))
    damaged = gzip.compress(b"{}")[:-4]
    path = archive(tmp_path / "damaged.tar", {"c.json.gz": damaged, "d.pbtxt": GOOD.encode()}, "w")
    with pytest.warns(UserWarning, match=r"damaged\.tar: c\.json\.gz: damaged gzip"):
        assert read_set(path).names == ("d.pbtxt",)


def test_capitals_in_endings_change_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    members = {
        "A.PBTXT": GOOD.encode(),
        "B.Json.GZ": gzip.compress(format_native(generate("chain", 4, 0)).encode()),
    }
    for name, data in members.items():
        (tmp_path / "folder" / name).write_bytes(data)
    found = read_set(archive(tmp_path / "SET.TAR", members, "w"))
    assert found.names == read_set(tmp_path / "folder").names == ("A.PBTXT", "B.Json.GZ")


def test_archives_say_nothing_of_who_wrote_them_and_when(sets):
    path = sets / "archives" / "train.tar.gz"
    assert path.read_bytes()[3:8] == bytes(5)  # gzip: no name, no time
    with tarfile.open(path) as file:
        members = file.getmembers()
    assert [m.name for m in members] == sorted(m.name for m in members)
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o644)}


BROKEN = {
    "train/graph_1.pbtxt": b"node {{{",
    "train/graph_2.pbtxt": b"",
    "train/graph_3.pbtxt": b"\xff\xfe",
    "train/graph_4.pbtxt": b'node { name: "a" control_input: 0 }',
    "train/graph_5.json": b"[1",
}


def test_broken_members_are_named_skipped_and_counted(tmp_path):
    members = {**BROKEN, "train/graph_0.pbtxt": GOOD.encode(), "README.md": b"#", "._graph_6.pbtxt": b"x"}
    path = archive(tmp_path / "set.tar.gz", members)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read_set(path)
    assert found.names == ("train/graph_0.pbtxt",)
    assert len(found.broken) == len(caught) == len(BROKEN)
    for name, line, warning in zip(BROKEN, found.broken, caught, strict=True):
        assert line.startswith(f"{path}: {name}: ")
        assert "\n" not in line
        assert str(warning.message) == f"{line}; skipped"


def test_broken_files_of_a_folder_too(tmp_path):
    save_graph(generate("chain", 3, 0), tmp_path / "a.pbtxt")
    (tmp_path / "b.pbtxt").write_text("node {{{")
    (tmp_path / "c.txt").write_text("not asked for")
    with pytest.warns(UserWarning, match=r"b\.pbtxt: line 1: not a CostGraphDef.*skipped"):
        found = read_set(tmp_path)
    assert (len(found.graphs), len(found.broken)) == (1, 1)


def test_many_broken_files_are_not_a_thousand_warnings(tmp_path):
    members = {f"{i}.pbtxt": b"{" for i in range(30)} | {"good.pbtxt": GOOD.encode()}
    path = archive(tmp_path / "set.tar", members, "w")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read_set(path)
    assert len(found.broken) == 30
    assert len(caught) == 21
    assert "30 broken files skipped in all" in str(caught[-1].message)


def test_a_truncated_archive_gives_what_came_before(tmp_path):
    members = {f"{i}.stg": b"1\n0 0 0\n1 3 1 0\n2 0 1 1\n" for i in range(400)}
    path = archive(tmp_path / "set.tar.gz", members)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.warns(UserWarning, match=r"set\.tar\.gz: damaged archive"):
        found = read_set(path)
    assert 0 < len(found.graphs) < 400
    assert len(found.broken) == 1


@pytest.mark.filterwarnings("ignore:.*skipped")
def test_nothing_to_be_had_is_an_error(tmp_path):
    with pytest.raises(FormatError, match=r"absent: no such file or folder"):
        read_set(tmp_path / "absent")
    with pytest.raises(FormatError, match=r"no graphs in it; files must end in \.json"):
        read_set(tmp_path)
    with pytest.raises(
        FormatError, match=r"none of its 5 files is a graph; the first error: .*graph_1\.pbtxt"
    ):
        read_set(archive(tmp_path / "set.tar", BROKEN, "w"))
    (tmp_path / "noise.tar.gz").write_bytes(gzip.compress(b"noise" * 1000))
    with pytest.raises(FormatError, match=r"noise\.tar\.gz: damaged archive"):
        read_set(tmp_path / "noise.tar.gz")
    (tmp_path / "one.pbtxt").write_text("{")
    with pytest.raises(FormatError, match=r"one\.pbtxt: line 1: not a CostGraphDef"):
        read_set(tmp_path / "one.pbtxt")


@pytest.mark.parametrize("read", [read_set, lambda path: load_graphs(path, "train")])
def test_names_that_no_file_has_are_refused_in_one_line(read):
    with pytest.raises(FormatError, match=r"xxx: cannot be read: File name too long; check the path$"):
        read("x" * 300)
    with pytest.raises(
        FormatError, match=r"'' names no folder; give the name of one, or '\.' for the working"
    ):
        read("")


def test_a_folder_that_may_not_be_read_is_skipped(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    save_graph(generate("chain", 3, 0), tmp_path / "a.json")
    listed = pathlib.Path.iterdir

    def iterdir(path):
        if path.name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(pathlib.Path, "iterdir", iterdir)
    with pytest.warns(
        UserWarning, match="closed: cannot be read: Permission denied; check the path; skipped"
    ):
        assert read_set(tmp_path).names == ("a.json",)


def test_a_link_to_a_folder_above_is_not_followed(tmp_path):
    (tmp_path / "in").mkdir()
    save_graph(generate("chain", 3, 0), tmp_path / "in" / "a.json")
    (tmp_path / "in" / "again").symlink_to(tmp_path)
    assert read_set(tmp_path).names == ("in/a.json",)


def test_links_to_nothing_are_skipped(tmp_path):
    save_graph(generate("chain", 3, 0), tmp_path / "a.json")
    for name in ("b.json", "c.tar"):
        (tmp_path / name).symlink_to(tmp_path / "absent")
    message = r"(b\.json|c\.tar): cannot be read: No such file or directory; check the path; skipped"
    with pytest.warns(UserWarning, match=message) as caught:
        assert read_set(tmp_path).names == ("a.json",)
    assert len(caught) == 2


def test_names_that_lead_out_of_the_archive_write_nothing(tmp_path):
    (tmp_path / "in").mkdir()
    path = archive(tmp_path / "in" / "set.tar", {"../../evil.pbtxt": GOOD.encode()}, "w")
    assert len(read_set(path).graphs) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
