"""The pages of the gallery: in the form that the site wants, and run when it was built."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "gallery").glob("*.py"))
BUILT = ROOT / "docs" / "_build" / "html" / "generated" / "gallery"

every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


def tree_of(path):
    return ast.parse(path.read_text("utf-8"))


def configured(name):
    """A value of the site's configuration, which cannot be imported without Sphinx."""
    for node in tree_of(ROOT / "docs" / "conf.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)


def imported(tree):
    """The imports of a page, as pairs of a module and a name in it or None."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


def used(tree, name):
    """The attributes of a name that a page uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name:
            yield node.attr


@every_page
def test_page_begins_with_a_title_and_a_sentence(path):
    title, line, empty, first, *_ = ast.get_docstring(tree_of(path)).splitlines()
    assert line == "=" * len(title)
    assert empty == "" and first
    assert f"docs/gallery/{path.name}``" in path.read_text("utf-8")  # how to run it


def test_every_page_is_in_the_configuration():
    assert sorted([*configured("RUNS"), *configured("SHOWN")]) == [path.stem for path in PAGES]


@every_page
def test_page_uses_what_numnorm_has(path):
    tree = tree_of(path)
    names = [pair for pair in imported(tree) if pair[0].partition(".")[0] == "numnorm"]
    names += [("numnorm", name) for name in used(tree, "numnorm")]
    for module, name in names:
        try:
            there = importlib.import_module(module)
        except ImportError:  # a module for a library that is not installed
            assert module.count(".") == 1
            continue
        # The modules for other libraries come first: without these, asking for one raises.
        assert name in (None, "cuda", "jax") or hasattr(there, name), f"{module}.{name}"


@pytest.mark.site
@every_page
def test_page_was_run_with_its_pictures(path):
    html = (BUILT / f"{path.stem}.html").read_text("utf-8")
    was_run = "sphx-glr-script-out" in html
    needed = configured("RUNS").get(path.stem)
    assert was_run == bool(needed and importlib.util.find_spec(needed))
    pictures = re.findall(r'<img alt="([^"]+)" class="only-(\w+)" src="[^"]*sphx_glr_[^"]*"', html)
    if was_run and "plt.show" in path.read_text("utf-8"):
        light, dark = ([text for text, kind in pictures if kind == k] for k in ("light", "dark"))
        assert light == dark != []
    else:
        assert pictures == []


@pytest.mark.site
@every_page
def test_page_begins_with_a_picture(path):
    html = (BUILT / f"{path.stem}.html").read_text("utf-8")
    names = r"runs\." if "picture:: runs." in path.read_text("utf-8") else "sphx_glr_"
    if names == "sphx_glr_" and not importlib.util.find_spec(configured("RUNS")[path.stem]):
        pytest.skip("the page was not run")
    pictures = [match.start() for match in re.finditer(rf'<img [^>]*src="[^"]*{names}', html)]
    assert sum(at < html.index('class="highlight') for at in pictures) == 2  # light and dark
