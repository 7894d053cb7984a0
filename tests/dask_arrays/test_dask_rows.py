"""Norms of arrays of Dask, in random chunks, against NumPy and against the definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_norms import LazyNorm
from norm_checks import DTYPES, PARAMETERS, check, draw_parameters
from norm_strategies import FAR, arrays, norms

pytest.importorskip("dask.array")

NAMES = ["layer_norm", "rms_norm", "ada_norm", "weight_norm", "group_norm"]
LIBRARIES = ["dask.array", "dask_array"]
CASES = settings(max_examples=25, deadline=None, print_blob=True)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", NAMES)
@CASES
@given(data=st.data())
def test_any_chunks_agree_with_the_definition(name, library, data):
    library = pytest.importorskip(library)
    norm = data.draw(norms(name))
    dtype = data.draw(st.sampled_from([*DTYPES, np.int16]))
    which = data.draw(st.sampled_from(PARAMETERS[norm.parameters]))
    real = np.float64 if dtype is np.int16 else dtype
    x, dy = data.draw(arrays(norm.shape, dtype, FAR)), data.draw(arrays(norm.shape, real))
    lazy = LazyNorm.of(norm, library, data.draw(st.integers(0, 999)))
    check(lazy, x, dy, *draw_parameters(norm, real, which))
