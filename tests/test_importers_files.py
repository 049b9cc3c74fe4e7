"""`load_graph` and `save_graph`: choosing a format, damaged files, and files of some size."""

import gzip
import json
import pathlib
import random
import re
import subprocess
import sys
import warnings

import hypothesis
import hypothesis.strategies as st
import pytest
from importer_cases import COST_GRAPH, NATIVE, STG, WORKFLOW, chain, graphs, star
from onnx import TensorProto, helper
from work import lines_of

from regal_jax.datasets import generate
from regal_jax.errors import FormatError, GraphError
from regal_jax.importers import FORMATS, files, load_graph, parse_native, save_graph


def _onnx_bytes():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Reshape", ["z", "s"], ["r"]),
    ]
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, [4, 5], [0.0] * 20),
        helper.make_tensor("s", TensorProto.INT64, [2], [-1, 5]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])
    r = helper.make_tensor_value_info("r", TensorProto.FLOAT, [3, 5])
    return helper.make_model(helper.make_graph(nodes, "g", [x], [r], weights)).SerializeToString()


SAMPLES = {
    ".pbtxt": COST_GRAPH.encode(),
    ".stg": STG.encode(),
    ".json": NATIVE.encode(),
    "-workflow.json": WORKFLOW.encode(),
    ".onnx": _onnx_bytes(),
}


def _load_or_message(path):
    """The message of our own error, or None; any other exception fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Unknown parts of a damaged model do not matter here.
        try:
            load_graph(path).content_hash  # noqa: B018
        except (FormatError, GraphError) as error:
            return str(error)
    return None


@pytest.mark.parametrize("suffix", SAMPLES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_format_is_told_by_its_suffix(tmp_path, suffix, packed):
    data = SAMPLES[suffix]
    plain, path = tmp_path / f"g{suffix}", tmp_path / f"g{suffix}{'.gz' if packed else ''}"
    plain.write_bytes(data)
    path.write_bytes(gzip.compress(data) if packed else data)
    assert load_graph(path).content_hash == load_graph(str(plain)).content_hash


# By default, test_fuzz.py has such files.
@pytest.mark.slow
@pytest.mark.parametrize("suffix", SAMPLES)
def test_truncated_and_flipped_files_never_surprise(tmp_path, suffix):
    data, rng = SAMPLES[suffix], random.Random(0)
    path = tmp_path / f"g{suffix}"
    versions = [data[:k] for k in range(0, len(data), 3)]
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        versions.append(bytes(changed))
    messages = []
    for version in versions:
        path.write_bytes(version)
        messages.append(_load_or_message(path))
    refused = [message for message in messages if message]
    assert len(refused) > len(versions) // 3
    assert all(message.startswith(str(path)) for message in refused)
    assert not any("\n" in message for message in refused)


@pytest.mark.parametrize("suffix", SAMPLES)
def test_truncated_gzip_is_refused(tmp_path, suffix):
    data = gzip.compress(SAMPLES[suffix])
    path = tmp_path / f"g{suffix}.gz"
    for k in range(2, len(data) - 1, max(1, len(data) // 50)):
        path.write_bytes(data[:k])
        with pytest.raises(FormatError, match="damaged gzip"):
            load_graph(path)


@pytest.mark.parametrize("suffix", SAMPLES)
@hypothesis.given(garbage=st.binary(max_size=200))
def test_garbage_is_refused(tmp_path_factory, suffix, garbage):
    path = tmp_path_factory.mktemp("garbage") / f"g{suffix}"
    path.write_bytes(garbage)
    message = _load_or_message(path)
    assert message is not None
    assert "\n" not in message


def test_paths_that_hold_no_graph(tmp_path):
    for name, content, message in [
        ("empty.json", b"", "the file is empty"),
        ("empty.stg.gz", gzip.compress(b""), "the file is empty"),
        ("latin.pbtxt", b"node { name: '\xe9' }", "byte 14 is not UTF-8"),
        ("utf16.json", NATIVE.encode("utf-16"), "byte 0 is not UTF-8"),
        ("other.json", b'{"nodes": []}', "neither a regal_jax.graph document .* nor WfFormat"),
        ("list.json", b"[1]", "neither a regal_jax.graph document"),
        ("nan.json", b"NaN", "NaN is not allowed"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError) as error:
            load_graph(tmp_path / name)
        assert str(error.value).startswith(f"{tmp_path / name}: ")
        assert re.search(message, str(error.value))
    (tmp_path / "dir.json").mkdir()
    with pytest.raises(FormatError, match=r"dir\.json: is a directory"):
        load_graph(tmp_path / "dir.json")
    # What is no file is said first: the name of a folder, or of an example, tells no format.
    with pytest.raises(FormatError, match=r": is a directory; give the path of a file"):
        load_graph(tmp_path)
    for name in ("gone.json", "gone"):
        with pytest.raises(FormatError, match=rf"{name}: cannot be read: No such file"):
            load_graph(tmp_path / name)


def test_a_byte_order_mark_is_no_matter(tmp_path):
    (tmp_path / "g.json").write_bytes(b"\xef\xbb\xbf" + NATIVE.encode())
    assert load_graph(tmp_path / "g.json").num_ops == 3


def test_unknown_suffix_lists_the_formats(tmp_path):
    (tmp_path / "graph.txt").write_text(STG)
    with pytest.raises(FormatError, match=r"tells no format; use one of json .*cost-graph .*stg .*onnx"):
        load_graph(tmp_path / "graph.txt")
    with pytest.raises(FormatError, match="format 'dot' is unknown; use one of json"):
        load_graph(tmp_path / "graph.txt", "dot")
    assert load_graph(tmp_path / "graph.txt", "stg", tensor_bytes=2).tensor_bytes.tolist() == [2] * 5


def test_a_gzip_bomb_is_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 2**20)
    (tmp_path / "g.json.gz").write_bytes(gzip.compress(bytes(2**24)))
    with pytest.raises(FormatError, match="more than 1 MiB"):
        load_graph(tmp_path / "g.json.gz")
    (tmp_path / "g.stg").write_bytes(bytes(2**20 + 1))
    with pytest.raises(FormatError, match="more than 1 MiB"):
        load_graph(tmp_path / "g.stg")


@hypothesis.given(
    graph=graphs(plain=True), suffix=st.sampled_from([".json", ".json.gz", ".pbtxt", ".pbtxt.gz"])
)
def test_saved_graphs_come_back(tmp_path_factory, graph, suffix):
    path = tmp_path_factory.mktemp("saved") / f"g{suffix}"
    save_graph(graph, path)
    assert load_graph(path).content_hash == graph.content_hash
    assert path.read_bytes().startswith(b"\x1f\x8b") == suffix.endswith(".gz")


def test_saving_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "g.json"
    save_graph(generate("chain", 3, 0), path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(FormatError, match=r"g\.json: cannot be written: No space left"):
        save_graph(generate("chain", 4, 0), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["g.json"]
    with pytest.raises(FormatError, match="cannot be written: No such file"):
        save_graph(generate("chain", 3, 0), tmp_path / "no" / "g.json")
    with pytest.raises(FormatError, match="cannot be written; save as"):
        save_graph(generate("chain", 3, 0), tmp_path / "g.onnx")


@pytest.mark.parametrize("path", ["g\0.json", "\ud800.json", 3, None, b"g.json"])
@pytest.mark.parametrize("format", [None, "json"])
def test_what_can_be_no_path(path, format):
    for call in (load_graph, lambda *given: save_graph(generate("chain", 3, 0), *given)):
        with pytest.raises(FormatError, match=r"no file can have such a name|path: give the name of a file"):
            call(path, format)


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".pbtxt", ".stg"])
@pytest.mark.parametrize(
    "graph", [pytest.param(chain(3000), marks=pytest.mark.slow), star(3000)], ids=["chain", "star"]
)
def test_long_chains_and_wide_stars_need_no_recursion(tmp_path, graph, suffix):
    path = tmp_path / f"g{suffix}"
    save_graph(graph, path)
    again = load_graph(path)
    if suffix == ".stg":
        assert again.num_ops == graph.num_ops + 2
        assert again.runtime.sum() == graph.runtime.sum()
    else:
        assert again.content_hash == graph.content_hash


def _write_star(path, n):
    """A workflow of a task that ``n`` others read."""
    tasks = [{"name": "t", "id": "hub", "parents": [], "children": [], "outputFiles": ["f"]}]
    tasks += [
        {"name": "t", "id": f"t{i}", "parents": ["hub"], "children": [], "inputFiles": ["f"]}
        for i in range(n)
    ]
    runs = [{"id": task["id"], "runtimeInSeconds": 1} for task in tasks]
    document = {
        "name": "wide",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {"tasks": tasks, "files": [{"id": "f", "sizeInBytes": 8}]},
            "execution": {"tasks": runs},
        },
    }
    path.write_text(json.dumps(document))


def _write_chain_and_star(path, n):
    """A model of two times ``n`` ops."""
    nodes = [
        helper.make_node("Relu", ["x" if i % 2 else f"y{i - 2}" if i else "x"], [f"y{i}"])
        for i in range(2 * n)
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info(f"y{2 * n - 2}", TensorProto.FLOAT, [4])
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], [y]))
    path.write_bytes(proto.SerializeToString())


def test_a_wide_workflow_and_a_long_model_need_no_recursion(tmp_path):
    _write_star(tmp_path / "g.json", 5000)
    assert len(load_graph(tmp_path / "g.json").edge_op) == 5000
    _write_chain_and_star(tmp_path / "g.onnx", 5000)
    assert load_graph(tmp_path / "g.onnx").num_ops == 10_002


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".pbtxt", ".stg"])
@pytest.mark.parametrize("make", [chain, pytest.param(star, marks=pytest.mark.slow)])
def test_twice_the_ops_are_twice_the_work(tmp_path, make, suffix):
    path = tmp_path / f"g{suffix}"

    def work(n):
        graph = make(n)
        return lines_of(lambda: (save_graph(graph, path), load_graph(path)))

    work(10)
    assert work(600) < 2.2 * work(300)


@pytest.mark.parametrize(("write", "suffix"), [(_write_star, ".json"), (_write_chain_and_star, ".onnx")])
def test_twice_the_tasks_are_twice_the_work(tmp_path, write, suffix):
    path = tmp_path / f"g{suffix}"

    def work(n):
        write(path, n)
        return lines_of(lambda: load_graph(path))

    work(10)
    assert work(600) < 2.2 * work(300)


def test_the_table_of_formats_is_whole():
    suffixes = [suffix for format in FORMATS.values() for suffix in format.suffixes]
    assert len(suffixes) == len(set(suffixes))
    assert all(suffix.startswith(".") for suffix in suffixes)


def test_importing_loads_no_extra():
    code = "import sys, regal_jax.importers, regal_jax.datasets; print({'onnx', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_example_in_the_documentation_reads():
    text = (pathlib.Path(__file__).parents[1] / "docs/graph_format.md").read_text(encoding="utf-8")
    example = text.split("```json\n")[1].split("```")[0]
    assert parse_native(example).num_ops == 3
