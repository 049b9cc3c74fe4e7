"""The sources of the documentation site: every public name has its place in the reference."""

import pathlib
import re

import regal_jax

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md")}


def test_the_reference_has_every_name_of_the_top_level_once():
    directive = re.compile(r"^\.\. auto(?:function|class|exception):: (\w+)$", re.MULTILINE)
    written = [name for page in PAGES.values() for name in directive.findall(page)]
    assert sorted(written) == sorted(set(regal_jax.__all__) - {"__version__"})


def test_the_contents_have_every_page_of_the_reference():
    contents = re.findall(
        r"^/docs/api/(\w+)$", (DOCS / "contents.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(contents) == sorted(PAGES)


def test_the_contents_have_every_page():
    root = DOCS.parent
    contents = re.findall(r"^(/\S+)$", (DOCS / "contents.md").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [*DOCS.glob("**/*.md"), *root.glob("notebooks/*.ipynb")]
    paths = {f"/{path.relative_to(root).with_suffix('').as_posix()}" for path in pages}
    assert sorted(contents) == sorted(paths - {"/docs/contents"} | {"/CONTRIBUTING", "/CHANGELOG"})
