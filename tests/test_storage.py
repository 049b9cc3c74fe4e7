"""Writing: a disk that gets full is an error that names the file, and tears no line of a list."""

import errno
import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from regal_jax.errors import FormatError
from regal_jax.storage import json_lines
from regal_jax.storage.atomic import replacing, try_to_write, write_atomically
from regal_jax.storage.json_lines import JsonLines


def _full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_error_of_writing_names_the_file_that_was_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "write_bytes", _full)
        with pytest.raises(OSError, match="No space left on device") as error:
            write_atomically(path, b"new")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(path))
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]
    with pytest.raises(FileNotFoundError) as missing:
        write_atomically(tmp_path / "absent" / "file", b"new")
    assert missing.value.filename == str(tmp_path / "absent" / "file")


class _Nearly:
    """A file on a disk that has room for some bytes; `write` says how many it took, as that of the system."""

    room = 0

    def __init__(self, path, *_, **__):
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, data):
        if not _Nearly.room:
            _full()
        taken = min(_Nearly.room, 5, len(data))
        _Nearly.room -= taken
        return self._file.write(data[:taken])


def test_threads_replace_a_file_at_the_same_time(tmp_path):
    path = tmp_path / "file"
    with ThreadPoolExecutor(1) as pool, replacing(path) as first:
        first.write_bytes(b"first")
        pool.submit(write_atomically, path, b"second").result()
        assert path.read_bytes() == b"second"
        assert first.read_bytes() == b"first"
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, "\U0001f600" * 63, "\udcff" * 255], ids=ascii)
def test_every_name_that_a_file_can_have_can_be_written(name, tmp_path):
    path = tmp_path / name
    try_to_write(path)
    assert not path.exists()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    longer = tmp_path / (2 * name)
    for write in (try_to_write, lambda path: write_atomically(path, b"new")):
        with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
            write(longer)
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_that_is_written_in_part_is_finished_or_an_error(tmp_path, monkeypatch):
    lines = JsonLines(tmp_path / "list.jsonl")
    monkeypatch.setattr(json_lines, "open", _Nearly, raising=False)
    monkeypatch.setattr(_Nearly, "room", 30)
    lines.append({"a": 1, "b": "text"})
    with pytest.raises(OSError, match="No space left on device") as error:
        lines.append({"a": 2, "b": "text"})
    assert error.value.filename == str(lines.path)
    assert lines.read() == [{"a": 1, "b": "text"}]
    lines.mend()
    monkeypatch.setattr(_Nearly, "room", 100)
    lines.append({"a": 3})
    assert lines.read() == [{"a": 1, "b": "text"}, {"a": 3}]


@pytest.mark.parametrize(
    ("content", "number"), [("my notes", 1), ('{"a": 1}\nmy notes', 2), ("# Notes\n\nmine", 1), ("[1]\n{", 1)]
)
def test_a_file_of_another_kind_is_not_mended(content, number, tmp_path):
    path = tmp_path / "list.jsonl"
    path.write_text(content)
    with pytest.raises(FormatError, match=rf"list\.jsonl: line {number} is damaged; delete it and build"):
        JsonLines(path).mend()
    assert path.read_text() == content


@pytest.mark.parametrize("torn", ['{"a": 2', "{", "\0\0"])
def test_an_incomplete_last_line_is_mended(torn, tmp_path):
    path = tmp_path / "list.jsonl"
    path.write_text('{"a": 1}\n' + torn)
    JsonLines(path).mend()
    assert path.read_text() == '{"a": 1}\n'
