"""An engine without other processes, and graphs and plans for the tests of engines."""

import importlib
import json
import pathlib

from regal_jax.datasets import generate
from regal_jax.engines import Message
from regal_jax.storage.json_lines import JsonLines


def plain(message):
    """The message as another process would get it."""
    return Message(json.loads(json.dumps(message.head)), [bytes(blob) for blob in message.blobs])


class Inline:
    """An engine that runs its work in this process, on messages that hold nothing but JSON and bytes."""

    def __init__(self, lose=(), size=2):
        self.lose, self.size, self.calls, self.closed = lose, size, 0, 0

    def run(self, work, common, items, answer, *, most=None, limits=None, interrupted=None, waiting=None):
        module, _, name = work.partition(":")
        function = getattr(importlib.import_module(module), name)
        left = [i for i in range(len(items)) if i not in self.lose]
        while left and not interrupted():
            size = min(self.size, most or self.size)
            some, left = left[:size], left[size:]
            self.calls += 1
            head = {**common.head, **(limits(len(some), len(some) + len(left), 1) if limits else {})}

            def tell(position, message, last, some=some):
                answer(some[position], plain(message), last)

            messages = [plain(items[i].message()) for i in some]
            function(plain(Message(head, common.blobs)), messages, tell)
        return dict.fromkeys(self.lose, "its worker died")

    def close(self):
        self.closed += 1


def graphs_of(count, ops=8):
    return [generate("layered", ops + i % 3, seed=i) for i in range(count)]


def told(plan):
    """All of a plan but the time that it took, and the number of graphs beside it."""
    document = json.loads(plan.to_json())
    for name in ("seconds", "graphs_in_call"):
        document["provenance"].pop(name, None)
    return document


def records(out):
    """Results without the seconds that they took, in no order."""
    found = JsonLines(pathlib.Path(out) / "results.jsonl").read()
    assert all(record.pop("seconds") >= 0 for record in found if "error" not in record)
    # A result of another machine has no seconds of this one's processor.
    assert all(record.pop("processor_seconds", 0) >= 0 for record in found)
    return sorted(json.dumps(record, sort_keys=True) for record in found)


def content(folder):
    """A corpus without the order in which it was made."""
    files = {p.relative_to(folder): p.read_bytes() for p in folder.glob("graphs/**/*") if p.is_file()}
    lists = [sorted((folder / name).read_text().splitlines()) for name in ("index.jsonl", "failures.jsonl")]
    return files, lists, (folder / "corpus.json").read_bytes()
