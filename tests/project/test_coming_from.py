"""The pages of docs/coming_from: in each row of their tables, both calls give the same result.

A page is run as it stands. Its examples give names such as ``x``; its block without ``>>>``
imports the other library; the two columns of a table are expressions.
"""

import doctest
import importlib
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from markdown_it import MarkdownIt
from scipy import sparse

FOLDER = Path(__file__).parents[2] / "docs" / "coming_from"
# The libraries that a page needs; scikit-learn is always there.
NEEDED = {
    "braindecode": ["braindecode"],
    "chemotools": ["chemotools"],
    "librosa": ["librosa"],
    "scanpy": ["scanpy"],
    "scikit_learn": ["sklearn"],
    "torchaudio": ["torch", "torchaudio"],
}
# The second column of a table of pairs: calls of numnorm, or of NumPy where numnorm has none.
HEADS = "numnorm", "NumPy"
# Other libraries take the difference of large sums: up to 1e-11 for these values near 1.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-10}


class Page(NamedTuple):
    """What is run of a page: the examples, the imports of the other library, the pairs."""

    examples: str
    imports: str
    pairs: list[tuple[str, str]]


def page(name):
    """Read a page."""
    examples, imports, tables, in_cell = [], [], [], False
    text = (FOLDER / f"{name}.md").read_text("utf-8")
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "fence" and token.info == "python":
            found = doctest.DocTestParser().get_examples(token.content)
            examples += [example.source for example in found]
            imports += [] if found else [token.content]
        elif token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type in ("th_open", "td_open"):
            in_cell = True
        elif token.type == "inline" and in_cell:
            tables[-1][-1].append(token)
            in_cell = False
    pairs = [
        tuple(expression(cell) for cell in row)
        for head, *rows in tables
        if head[1].content in HEADS
        for row in rows
    ]
    return Page("".join(examples), "".join(imports), pairs)


def expression(cell):
    """Return the only code in a cell."""
    (code,) = (child.content for child in cell.children if child.type == "code_inline")
    return code


PAIRS = [
    pytest.param(
        name,
        *pair,
        id=f"{name}-{pair[0]}",
        marks=[] if name == "scikit_learn" else [pytest.mark.coming_from],
    )
    for name in NEEDED
    for pair in page(name).pairs
]


def test_every_library_has_a_page_with_pairs():
    assert {path.stem for path in FOLDER.glob("*.md")} == {"index", *NEEDED}
    assert {parameter.values[0] for parameter in PAIRS} == {*NEEDED}


def value(page, imports, code):
    """Evaluate an expression beside the names of a page, as an array of NumPy."""
    names = {}
    exec(page.examples + imports, names)
    result = eval(code, names)
    return result.toarray() if sparse.issparse(result) else np.asarray(result)


def import_needed(name):
    """Import the other library of a page, or skip the test."""
    for library in NEEDED[name]:
        try:
            importlib.import_module(library)
        except (ImportError, OSError) as error:  # OSError: a wheel of torchaudio for another torch
            pytest.skip(f"{library} cannot be imported: {error}")


@pytest.mark.parametrize("name, theirs, ours", PAIRS)
def test_both_calls_give_the_same(name, theirs, ours):
    read = page(name)
    with warnings.catch_warnings(action="ignore"):  # the other library's
        import_needed(name)
        expected = value(read, read.imports, theirs)
    # Without the other library: what is ours does not need it.
    found = value(read, "", ours)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, **TOLERANCE)
