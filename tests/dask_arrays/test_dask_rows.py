"""Norms of arrays of Dask, in random chunks against the definitions, and with NumPy's bytes."""

import itertools

import kernels
import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lazy_norms import LazyNorm, computed
from norm_cases import NORMS
from norm_checks import DTYPES, HALVES, PARAMETERS, Norm, as_tuple, check, draw_all, draw_parameters
from norm_strategies import FAR, NAMES, arrays, norms

import numnorm

da = pytest.importorskip("dask.array")

LIBRARIES = ["dask.array", "dask_array"]
# Each example computes half a dozen graphs, and shrinking one takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FEW, MANY = (settings(max_examples=n, deadline=None, phases=PHASES) for n in (25, 300))


def check_random_chunks(data, name, library, only_default):
    library = pytest.importorskip(library)
    norm = data.draw(norms(name))
    pairs = itertools.product([*DTYPES, np.int16], PARAMETERS[norm.parameters])
    chosen = [pair for pair in pairs if not only_default or kernels.is_default(name, *pair)]
    dtype, which = data.draw(st.sampled_from(chosen))
    real = np.float64 if dtype is np.int16 else dtype
    x, dy = data.draw(arrays(norm.shape, dtype, FAR)), data.draw(arrays(norm.shape, real))
    lazy = LazyNorm.of(norm, library, data.draw(st.integers(0, 999)))
    check(lazy, x, dy, *draw_parameters(norm, real, which))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", NAMES)
@FEW
@given(data=st.data())
def test_any_chunks_agree_with_the_definition(name, library, data):
    check_random_chunks(data, name, library, only_default=True)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", NAMES)
@MANY
@given(data=st.data())
def test_many_chunks_agree_with_the_definition(name, library, data):
    check_random_chunks(data, name, library, only_default=False)


class WholeRows(LazyNorm):
    """A norm whose x has chunks of two entries along the axes that no row extends along."""

    def lazy(self, array, place=0):
        if array is None:
            return None
        shared = self.shared_axes if self.by_axis else set(range(1, len(self.shape)))
        chunks = [-1 if axis in shared else 2 for axis in range(len(self.shape))]
        whole = array.shape != self.shape
        return self.module.from_array(array, chunks=-1 if whole else tuple(chunks))


ROWS = [name for name, norm in NORMS.items() if norm.name != "batch_norm"]


@kernels.each({name: NORMS[name].name for name in ROWS}, DTYPES, ["none", "both"], always=False)
def test_whole_rows_have_the_bytes_of_numpy(name, dtype, which):
    norm = NORMS[name]
    if norm.parameters == 0 and which != "none":
        return
    if norm.parameters == 1 and which == "both":
        which = "gamma"
    x, dy, *parameters = draw_all(norm, dtype, which)
    lazy = WholeRows.of(norm, pytest.importorskip("dask.array"))
    expected, result = norm.forward(x, *parameters), lazy.forward(x, *parameters)
    assert type(result) is type(expected)
    assert [a.tobytes() for a in result] == [a.tobytes() for a in expected]
    assert lazy.plain(x, *parameters).tobytes() == expected[0].tobytes()
    saved = expected[1:]
    dx, *sums = as_tuple(lazy.backward(dy, x, saved, *parameters[:1]))
    expected, *expected_sums = as_tuple(norm.backward(dy, x, saved, *parameters[:1]))
    if dtype in HALVES and which == "none":  # a gain of ones may change the sign of a zero
        dx, expected = dx + dtype(0), expected + dtype(0)
    assert dx.tobytes() == expected.tobytes()
    # A few roundings to the dtype: the kernels sum float32 in short runs, in another order here.
    eps = float(ml_dtypes.finfo(dtype).eps)
    limits = {"rtol": 2 * eps, "atol": 64 * eps}
    for mine, theirs in zip(sums, expected_sums, strict=True):
        np.testing.assert_allclose(mine.astype(float), theirs.astype(float), **limits)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("chunks", [(2, -1), (2, 3), (-1, 1)])
@pytest.mark.parametrize("shape", [(5, 1), (1, 1), (5, 8)])
@pytest.mark.parametrize("name", ["layer_norm", "weight_norm"])
def test_gain_broadcasts_against_x(name, shape, chunks, library):
    library = pytest.importorskip(library)
    norm = Norm(name, (5, 8), {}, {})
    x, dy = draw_all(norm, np.float64)[:2]
    gamma = np.random.default_rng(0).normal(size=shape)
    lazy_x = library.from_array(x, chunks=chunks)
    expected, result = norm.forward(x, gamma), norm.forward(lazy_x, gamma)
    for mine, theirs in zip(computed(result), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13, atol=1e-14)
    gradients = norm.backward(dy, x, expected[1:], gamma)
    for mine, theirs in zip(
        computed(norm.backward(dy, lazy_x, result[1:], gamma)), gradients, strict=True
    ):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("channels", [(2, 2, 2, 2), (3, 5), (1, 7)])
@pytest.mark.parametrize(
    "options", [{}, {"weights": np.ones(8)[:, None]}], ids=["plain", "weights"]
)
def test_groups_keep_the_chunks_of_x(channels, options):
    x = da.from_array(np.arange(96.0).reshape(4, 8, 3), chunks=(3, channels, 2))
    y, mean, rstd = numnorm.group_norm_forward(x, groups=2, **options)
    dx = numnorm.group_norm_backward(x, x, mean, rstd, groups=2, **options).dx
    assert y.chunks == dx.chunks == x.chunks
