"""Configuration of the documentation site: README, docs/, the notebooks, and a reference from the docstrings.

The source folder is the root of the repository: a link between two files means the same on the site as on a
host of code. CONTRIBUTING.md has the command. Nothing is executed or fetched.
"""

import pathlib
import re
import sys

from docutils import nodes
from sphinx.domains.python import PyObject
from sphinx.ext.napoleon import GoogleDocstring

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import regal_jax  # noqa: E402

project = "regal_jax"
author = "The authors of regal_jax"
copyright = author
release = version = regal_jax.__version__

root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**.md", "notebooks/*.ipynb"]
exclude_patterns = [".*", "build", "dist", "regal_jax", "benchmarks", "tests", "shared", "docs/contents.md"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]

# Notebooks show the outputs that are committed.
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}
myst_heading_anchors = 4

# One backtick in a docstring is code, and a link where the name is one of the reference.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "sphinx_book_theme"
html_title = f"regal_jax {release}"
html_extra_path = ["redirect"]  # The root of the site leads to README.
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
    "show_toc_level": 2,
    "home_page_in_toc": True,
}

ATTRIBUTES = {}


def add_contents(_app, name, source):
    """Append the contents of the site to README, which is its first page."""
    if name == root_doc:
        source[0] += "\n" + (ROOT / "docs" / "contents.md").read_text(encoding="utf-8")


def skip_known(_app, what, name, value, skip, _options):
    """Leave out what the pages of the top level have, and fields that have no text of their own."""
    if what == "module" and name in regal_jax.__all__:
        return True
    if (getattr(value, "__doc__", None) or "").startswith("Alias for field number"):
        return True
    return skip


def keep_attribute(_app, what, name, _value, _options, lines):
    """Keep the docstring of an attribute: napoleon takes what stands before a colon in it for its type."""
    if what in ("attribute", "property"):
        ATTRIBUTES[name] = list(lines)


def read_attribute(app, _what, name, value, options, lines):
    """Read the docstring of an attribute like a method's."""
    if name in ATTRIBUTES:
        written = ATTRIBUTES.pop(name)
        lines[:] = GoogleDocstring(written, app.config, app, "method", name, value, options).lines()


def shorten_types(_app, _what, _name, _value, _options, lines):
    """Write the types of attributes as they are written in the code: `Array`, not `jax.jaxlib._jax.Array`."""
    for index, line in enumerate(lines):
        if line.startswith(":vartype"):
            lines[index] = re.sub(r"\b(?:\w+\.)+(?=[A-Za-z])", "", line)


def find_by_its_end(app, env, node, content):
    """Link the name of a class, or of something in it, that one object of the reference ends with."""
    target = node["reftarget"]
    if node.get("refdomain") != "py" or not target[:1].isupper():
        return None
    domain = env.domains.python_domain
    names = (name for name, found in domain.objects.items() if not found.aliased)
    ends = [name for name in names if name.endswith(f".{target}")]
    if len(ends) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", ends[0], node, content)


def drop_tildes(_app, tree):
    """Sphinx leaves its mark for short names in unions of literals."""
    for text in list(tree.findall(nodes.Text)):
        if "~typing." in text:
            text.parent.replace(text, nodes.Text(text.replace("~typing.", "")))


def setup(app):
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("source-read", add_contents)
    app.connect("autodoc-skip-member", skip_known)
    app.connect("autodoc-process-docstring", keep_attribute, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", read_attribute, priority=600)  # after it
    app.connect("autodoc-process-docstring", shorten_types, priority=700)
    app.connect("doctree-read", drop_tildes)
    app.connect("missing-reference", find_by_its_end)
