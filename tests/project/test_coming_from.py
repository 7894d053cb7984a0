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

import numnorm

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
# The second column of a table of pairs: calls of numnorm, or of NumPy where numnorm has none. Other
# tables have no heading there.
HEADS = "numnorm", "NumPy"
# Both compute in float64 what is near 1, in sums of up to 3000 terms: rounding is below 1e-13.
TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}


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
    assert all(head[1].content in (*HEADS, "") for head, *_ in tables)
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


# What the pages say differs


@pytest.fixture
def other(request):
    """Return the names that a page imports of the other library; its warnings are no errors."""
    with warnings.catch_warnings(action="ignore"):
        import_needed(request.param)
        names = {"x": np.zeros(1)}
        exec(page(request.param).imports, names)
        yield names


def of_library(name):
    return pytest.mark.parametrize("other", [name], indirect=True, ids=[name])


@of_library("scikit_learn")
def test_scikit_learn_keeps_outliers_of_a_column_without_spread(other):
    x = np.array([[1.0]] * 9 + [[5.0]])
    assert other["robust_scale"](x)[-1] == 4
    assert not numnorm.robust_norm(x, axis=0, scale="iqr").any()


@pytest.mark.coming_from
@of_library("scanpy")
def test_scanpy(other):
    scale = other["sc"].pp.scale
    x = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    kept = scale(sparse.csr_matrix(x), zero_center=False).toarray()
    np.testing.assert_array_equal(kept[:, 1], 5)
    ours = numnorm.batch_norm(sparse.csr_matrix(x), with_mean=False, eps=0).toarray()
    np.testing.assert_array_equal(ours[:, 1], 0)
    low = scale(sparse.csr_matrix(-x), zero_center=False, max_value=1)
    assert low.min() < -1
    mask = np.array([True, True, False])
    part = scale(x.copy(), mask_obs=mask)
    expected = x.copy()
    expected[mask] = numnorm.standard_normal_variate(x[mask], axis=0, ddof=1)
    np.testing.assert_allclose(part, expected, **TOLERANCE)
    assert scale(x) is x


@pytest.mark.coming_from
@of_library("librosa")
def test_librosa(other):
    librosa = other["librosa"]
    x = np.ones((2, 3), np.float32)
    assert librosa.pcen(x).dtype == np.float64
    assert numnorm.pcen(x, 0.1).dtype == np.float32
    denormal = np.full((4, 1), 1e-320)
    np.testing.assert_array_equal(librosa.util.normalize(denormal, norm=2), denormal)
    np.testing.assert_allclose(numnorm.weight_norm(denormal, axis=0), 0.5, **TOLERANCE)
    with pytest.raises(librosa.ParameterError, match="finite"):
        librosa.util.normalize(x * np.nan)


@pytest.mark.coming_from
@of_library("torchaudio")
def test_torchaudio(other):
    torch, theirs = other["torch"], other["sliding_window_cmn"]
    flat = np.ones((300, 1))
    assert not np.isfinite(theirs(torch.from_numpy(flat), norm_vars=True)).any()
    assert not numnorm.moving_norm(flat, 601, axis=0, min_window=100).any()
    x = np.random.default_rng(0).normal(size=(300, 1))
    x[10] = np.nan
    # All windows from the one with the NaN on; and those that hold it.
    assert np.isnan(theirs(torch.from_numpy(x), 20, 5)).sum() == 290
    assert np.isnan(numnorm.moving_norm(x, 21, axis=0, min_window=5)).sum() == 21


@pytest.mark.coming_from
@of_library("braindecode")
def test_braindecode(other):
    theirs = other["exponential_moving_standardize"]
    x = np.random.default_rng(0).normal(size=(2, 3000))
    assert theirs(x.astype(np.float32)).dtype == np.float64
    assert numnorm.exponential_norm(x.astype(np.float32), 1e-3).dtype == np.float32
    with pytest.raises(ValueError):
        theirs(x[np.newaxis])
    x[0, 5] = np.nan
    for y in (theirs(x), numnorm.exponential_norm(x, 1e-3)):
        np.testing.assert_array_equal(np.isnan(y).sum(axis=1), [2995, 0])


@pytest.mark.coming_from
@of_library("braindecode")
def test_recordings_of_mne(other):
    mne = importlib.import_module("mne")
    preprocessor = importlib.import_module("braindecode.preprocessing").Preprocessor
    x = np.random.default_rng(0).normal(size=(2, 3000))
    expected = numnorm.exponential_norm(x, 1e-3, initial=1000)
    info = mne.create_info(2, 250.0, "eeg")
    raw = mne.io.RawArray(x.copy(), info)
    preprocessor(numnorm.exponential_norm, alpha=1e-3, initial=1000).apply(raw)
    np.testing.assert_allclose(raw.get_data(), expected, **TOLERANCE)
    raw = mne.io.RawArray(x.copy(), info)
    raw.apply_function(numnorm.exponential_norm, alpha=1e-3)
    np.testing.assert_allclose(raw.get_data(), numnorm.exponential_norm(x, 1e-3), **TOLERANCE)


@pytest.mark.coming_from
@of_library("chemotools")
def test_chemotools_refuses_missing_values(other):
    with pytest.raises(ValueError, match="NaN"):
        other["scatter"].StandardNormalVariate().fit_transform([[1.0, np.nan, 2.0]])
