"""The data card of a corpus: its content, counted from its files, as Markdown."""

import dataclasses
import os
import pathlib
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_callback
from regal_jax.datasets.candidates import SPLITS
from regal_jax.datasets.corpus_files import CORPUS, FORMS, INDEX, corpus_document, read_failures
from regal_jax.datasets.corpus_reader import corpus_records, load_corpus
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import ComputationGraph
from regal_jax.graph.units import format_bytes, format_time
from regal_jax.importers.files import at_path
from regal_jax.importers.strict_json import Field
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.paths import folder_path, path_text

__all__ = ["BEGINS", "ENDS", "LICENCES", "CardFacts", "card_facts", "degrees", "format_card", "write_card"]

BEGINS: Final = "<!-- card begins: made by 'regal-jax corpus card', do not edit -->"
ENDS: Final = "<!-- card ends -->"

LICENCES: Final[Mapping[str, str]] = {
    "flax": "Apache-2.0",
    "jax": "Apache-2.0",
    "keras": "Apache-2.0",
    "keras-hub": "Apache-2.0",
    "optax": "Apache-2.0",
    "timm": "Apache-2.0",
    "torch": "BSD-3-Clause",
    "transformers": "Apache-2.0",
}
"""Package to licence, as the metadata or the repository of the package states it."""

_QUANTILES: Final = {
    "least": 0.0,
    "5 %": 0.05,
    "25 %": 0.25,
    "median": 0.5,
    "75 %": 0.75,
    "95 %": 0.95,
    "most": 1.0,
}
_CITE: Final = """\
**Citing.** Name this software, `regal_jax`, and the libraries that the models come from, with the versions
above. The task is that of Paliwal, Gimeno, Nair, Li, Lubin, Kohli and Vinyals, *Reinforced Genetic Algorithm
Learning for Optimizing Computation Graphs*, ICLR 2020 (arXiv:1905.02494)."""


@dataclasses.dataclass(frozen=True, eq=False)
class CardFacts:
    """The counts that `format_card` and the figure show.

    Attributes:
      settings: Settings of the build.
      packages: Source -> package -> version.
      families: Family -> split.
      records: `corpus_records`, duplicates included.
      failures: Models that gave no graph, with the reasons.
      kinds: Op kind -> ops in distinct graphs.
      kind_graphs: Op kind -> distinct graphs that have it.
      degrees: ``"tensors read"`` and ``"reads of its outputs"`` -> ops of distinct graphs with 0, 1, 2, ...
    """

    settings: Mapping[str, Any]
    packages: Mapping[str, Mapping[str, str]]
    families: Mapping[str, str]
    records: Sequence[Mapping[str, Any]]
    failures: Sequence[Mapping[str, Any]]
    kinds: Mapping[str, int]
    kind_graphs: Mapping[str, int]
    degrees: Mapping[str, np.ndarray]

    @property
    def distinct(self) -> list[Mapping[str, Any]]:
        """The records of distinct graphs."""
        return [record for record in self.records if record["distinct"]]


def card_facts(folder: str | os.PathLike[str], *, progress: Callable[..., Any] | None = None) -> CardFacts:
    """Reads a corpus and counts. Kinds and degrees are not in its index, so every distinct graph is read.

    Args:
      folder: The folder of a corpus that `build_corpus` made.
      progress: Makes a progress bar, with the arguments of `tqdm.tqdm`; none by default.

    Raises:
      ConfigError: ``progress`` is no function.
      FormatError: There is no corpus, it is damaged, empty, or not up to date.
    """
    check_callback("progress", progress)
    root = folder_path(folder)
    records = corpus_records(root)
    if not records:
        raise FormatError(f"{root}: the corpus has no graphs yet; run 'regal-jax corpus build --out {root}'")
    document = _checked(root, records)
    graphs = load_corpus(root)
    if progress is not None:
        graphs = progress(graphs, total=sum(record["distinct"] for record in records), unit="graph")
    kinds: Counter[str] = Counter()
    kind_graphs: Counter[str] = Counter()
    counted: dict[str, list[np.ndarray]] = {}
    for _, graph in graphs:
        of_graph = Counter(graph.op_kinds)
        kinds.update(of_graph)
        kind_graphs.update(of_graph.keys())
        for name, numbers in degrees(graph).items():
            counted.setdefault(name, []).append(np.bincount(numbers))
    return CardFacts(
        document["settings"],
        document["packages"],
        document["families"],
        records,
        read_failures(root),
        kinds,
        kind_graphs,
        {name: _added(counts) for name, counts in counted.items()},
    )


def _checked(root: pathlib.Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``corpus.json``, if it and the records have all that a card shows."""
    document = corpus_document(root)
    with at_path(root / CORPUS):
        field = Field(document)
        for name in ("min_ops", "max_ops"):
            field.get("settings").get(name).count()
        field.get("settings").get("profile").text()
        for source in field.get("packages").mapping():
            field.get("packages").get(source).mapping()
        for family in field.get("families").mapping():
            field.get("families").get(family).text()
    for record in records:
        with at_path(f"{root / INDEX}: {record['path']}"):
            for name in ("edges", "depth", "width", "total_bytes", "work_seconds"):
                Field(record).get(name).number()
        if record["family"] not in document["families"]:
            raise FormatError(
                f"{root / CORPUS}: lacks the family {record['family']!r}; run 'regal-jax corpus show {root}'"
            )
    return document


def degrees(graph: ComputationGraph) -> dict[str, np.ndarray]:
    """``[N]`` data edges into and out of every op; control edges are not counted."""
    n = graph.num_ops
    return {
        "tensors read": np.bincount(graph.edge_op, minlength=n),
        "reads of its outputs": np.bincount(graph.edge_producer, minlength=n),
    }


def _added(counts: Sequence[np.ndarray]) -> np.ndarray:
    total = np.zeros(max(map(len, counts)), dtype=np.int64)
    for count in counts:
        total[: len(count)] += count
    return total


# Markdown ----------------------------------------------------------------------------------------


def format_card(facts: CardFacts, figure: str | None = None) -> str:
    """The card as Markdown. Equal corpora give equal cards.

    Args:
      facts: From `card_facts`.
      figure: Path of the figure relative to the card; ``None`` for no figure.
    """
    distinct = facts.distinct
    settings = facts.settings
    parts = [
        f"{len(distinct):,} distinct topologies in {len(facts.records):,} graphs, "
        f"{sum(r['ops'] for r in distinct):,} ops in the distinct ones; {settings['min_ops']:,} to "
        f"{settings['max_ops']:,} ops per graph; runtimes estimated for `{settings['profile']}`. A "
        "*distinct* graph is the first, by path, of the graphs with its topology.",
        _sources(facts),
        _splits(facts),
        "**Sizes** of distinct graphs. Depth: ops on the longest path. Width: ops in the largest layer, "
        "where the layer of an op is the length of the longest path to it. Work: the sum of all runtimes.\n\n"
        + _sizes(distinct),
    ]
    if figure is not None:
        parts.append(
            f"![Histograms of the distinct graphs: ops, depth, width, edges per op, degrees]"
            f"({urllib.parse.quote(figure)})\n\n"
            "*Distinct graphs by source, and the degrees of all their ops (data edges only).*"
        )
    parts += [_families(facts), _kinds(facts), _licences(facts), _CITE]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, words: int = 1) -> str:
    """A Markdown table; columns after the first ``words`` have numbers, aligned to the right."""
    marks = ["---" if i < words else "---:" for i in range(len(head))]
    shown = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *shown))


def _sources(facts: CardFacts) -> str:
    kinds = sorted({failure["failure"] for failure in facts.failures})
    found = {(item["source"], item["form"]) for item in (*facts.records, *facts.failures)}
    rows = []
    for source, form in sorted(found, key=lambda pair: (pair[0], _place(FORMS, pair[1]))):
        here = [r for r in facts.records if (r["source"], r["form"]) == (source, form)]
        failed = Counter(f["failure"] for f in facts.failures if (f["source"], f["form"]) == (source, form))
        first = [r for r in here if r["distinct"]]
        ops = sum(r["ops"] for r in first)
        rows.append([source, form, len(here), len(first), ops, *(failed[kind] for kind in kinds)])
    rows.append(["**all**", "", *(sum(column) for column in list(zip(*rows, strict=True))[2:])])
    head = [
        "source",
        "form",
        "graphs",
        "distinct",
        "ops in distinct",
        *(f"no graph: {kind}" for kind in kinds),
    ]
    return _table(head, rows, words=2)


def _place(names: Sequence[str], name: str) -> tuple[int, str]:
    return (names.index(name) if name in names else len(names), name)


def _splits(facts: CardFacts) -> str:
    families = Counter(facts.families[name] for name in {r["family"] for r in facts.distinct})
    rows = []
    for split in SPLITS:
        here = [r for r in facts.distinct if r["split"] == split]
        rows.append([split, families[split], len(here), sum(r["ops"] for r in here)])
    table = _table(["split", "families", "distinct", "ops in distinct"], rows)
    moved = sum(r["split"] != facts.families[r["family"]] for r in facts.records)
    if moved:
        table += f"\n\n{moved:,} graphs are in the split of their topology, not in that of their family."
    return table


def _sizes(distinct: Sequence[Mapping[str, Any]]) -> str:
    def count(value: float) -> str:
        return f"{value:,.0f}"

    rows = []
    for name, value, show in (
        ("ops", lambda r: r["ops"], count),
        ("data edges per op", lambda r: r["edges"] / r["ops"], "{:.2f}".format),
        ("depth", lambda r: r["depth"], count),
        ("width", lambda r: r["width"], count),
        ("bytes of all tensors", lambda r: r["total_bytes"], lambda value: format_bytes(round(value))),
        ("work", lambda r: r["work_seconds"], lambda value: format_time(value, "s")),
    ):
        numbers = np.quantile([value(r) for r in distinct], list(_QUANTILES.values()))
        rows.append([name, *(show(float(number)) for number in numbers)])
    return _table(["", *_QUANTILES], rows)


def _families(facts: CardFacts, most: int = 20) -> str:
    sizes = Counter(r["family"] for r in facts.distinct)
    ranked = sorted(sizes, key=lambda family: (-sizes[family], family))
    rows = []
    for family in ranked[:most]:
        sources = sorted({r["source"] for r in facts.distinct if r["family"] == family})
        rows.append([family, facts.families[family], ", ".join(sources), sizes[family]])
    rest = sum(sizes[family] for family in ranked[most:])
    said = f"**Families**: {len(sizes):,}."
    if rest:
        others = len(ranked) - most
        said += f" The {most} largest are below; the other {others:,} have {rest:,} distinct graphs."
    return f"{said}\n\n" + _table(["family", "split", "sources", "distinct"], rows, words=3)


def _kinds(facts: CardFacts, most: int = 20) -> str:
    total = sum(facts.kinds.values())
    ranked = sorted(facts.kinds, key=lambda kind: (-facts.kinds[kind], kind))[:most]
    rows = [
        [
            f"`{kind}`" if kind else "(none)", facts.kinds[kind],
            f"{100 * facts.kinds[kind] / total:.1f} %", facts.kind_graphs[kind],
        ]
        for kind in ranked
    ]  # fmt: skip
    head = ["kind", "ops", "share", "graphs that have it"]
    said = f"**Kinds of ops**: {len(facts.kinds):,}; the table has the most frequent ones in distinct graphs."
    return f"{said}\n\n" + _table(head, rows)


def _licences(facts: CardFacts) -> str:
    rows = [
        [
            source,
            ", ".join(f"{package} {version}" for package, version in versions.items()),
            LICENCES.get(next(iter(versions), ""), "see the package"),
        ]
        for source, versions in sorted(facts.packages.items())
    ]
    others = sorted({p for versions in facts.packages.values() for p in list(versions)[1:]})
    licensed = ", ".join(f"{package} ({LICENCES.get(package, 'see the package')})" for package in others)
    return (
        "**Licences of the sources.** Graphs hold no weights, no data and no code: only the names and kinds "
        "of ops, which op reads which tensor, sizes in bytes (from shapes), and estimated runtimes.\n\n"
        + _table(["source", "packages", "licence of the models' code"], rows, words=3)
        + (f"\n\nLicences of the other packages: {licensed}." if licensed else "")
    )


# The file ----------------------------------------------------------------------------------------


def write_card(text: str, path: str | os.PathLike[str]) -> None:
    """Writes a card to a new file, or into an existing one between its two marker comments.

    Args:
      text: From `format_card`.
      path: If the file exists it must have `BEGINS` and `ENDS`, each once, each on a line of its own.

    Raises:
      ConfigError: The file has no markers, or cannot be read or written.
      FormatError: ``path`` is no path.
    """
    file = pathlib.Path(path_text(path))
    made = f"{BEGINS}\n\n{text}\n{ENDS}"
    try:
        if not file.exists():
            write_atomically(file, f"# Data card\n\n{made}\n".encode())
            return
        old = file.read_bytes().decode()
        before, _, rest = old.partition(BEGINS)
        _, ends, after = rest.partition(ENDS)
        if not ends or BEGINS in rest or ENDS in after:
            raise ConfigError(
                f"{file}: lacks the lines {BEGINS!r} and {ENDS!r}, once each; add them, or name a new file"
            )
        write_atomically(file, (before + made + after).encode())
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is no UTF-8 text; name a new file") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}; choose another name") from None
