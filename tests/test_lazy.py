"""Names that packages load at first use."""

import sys

import pytest

from regal_jax.errors import MissingExtraError
from regal_jax.runtime.lazy import lazily


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one module that loads and one that fails as it does with other versions of a library."""
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from regal_jax.runtime.lazy import lazily\n"
        "modules = {'good': ['one'], 'bad': ['two'], 'extra': ['five'], 'other': ['six']}\n"
        "extras = {'no_such_package': 'some'}\n"
        "__getattr__, __dir__ = lazily(__name__, modules, ['three'], extras)\n"
    )
    (folder / "good.py").write_text("one = 1\n")
    (folder / "bad.py").write_text("import math\ntwo = math.of_another_version\n")
    (folder / "extra.py").write_text("import no_such_package.part\n")
    (folder / "other.py").write_text("import no_other_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "lazy_package"
    for name in [name for name in sys.modules if name.startswith("lazy_package")]:
        del sys.modules[name]


def test_names_are_loaded_at_first_use(package):
    from lazy_package import one

    assert one == 1
    assert "lazy_package.bad" not in sys.modules
    assert dir(sys.modules[package]) == ["five", "one", "six", "three", "two"]
    with pytest.raises(ImportError, match="cannot import name 'four'"):
        from lazy_package import four  # noqa: F401


def test_a_module_that_does_not_load_says_why(package):
    with pytest.raises(ImportError, match=r"lazy_package\.two cannot be loaded .*'of_another_version'"):
        from lazy_package import two  # noqa: F401


def test_a_module_that_needs_an_extra_names_it(package):
    with pytest.raises(MissingExtraError, match=r"'no_such_package': .* 'regal-jax\[some\]'"):
        from lazy_package import five  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_other_package'"):
        from lazy_package import six  # noqa: F401


def test_a_name_that_there_is_not():
    get, names = lazily("anything", {})
    assert names() == []
    with pytest.raises(AttributeError, match="no attribute 'x'"):
        get("x")
