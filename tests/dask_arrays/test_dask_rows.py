"""Norms of arrays of Dask, in random chunks, against NumPy and against the definitions."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lazy_norms import LazyNorm
from norm_checks import DTYPES, PARAMETERS, check, draw_parameters
from norm_strategies import FAR, arrays, norms

pytest.importorskip("dask.array")

NAMES = ["layer_norm", "rms_norm", "ada_norm", "weight_norm", "group_norm", "instance_norm"]
LIBRARIES = ["dask.array", "dask_array"]
# Each example computes half a dozen graphs, and shrinking one takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FEW, MANY = (settings(max_examples=n, deadline=None, phases=PHASES) for n in (25, 300))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", NAMES)
@FEW
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
