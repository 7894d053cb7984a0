"""Each norm gives NumPy's results for arrays on a device, with each keyword, or a known error.

So do the functions beside the norms.
"""

import numpy as np
import places
import pytest


@pytest.mark.parametrize("case", list(places.cases()), ids=str)
def test_results_are_those_of_numpy(imported, case):
    take = imported("cupy").take
    reason = places.reason(places.ON_DEVICE, case)
    if reason is not None:
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
            places.passes(case, take)
        assert reason in str(caught.value)
        return
    # A device adds in another order: some roundings of float64.
    for result, expected in zip(places.passes(case, take), places.passes(case), strict=True):
        np.testing.assert_allclose(result.host, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", places.OTHERS)
def test_functions_beside_the_norms(imported, name):
    take = imported("cupy").take
    if name in places.OTHERS_ON_DEVICE:
        with pytest.raises(NotImplementedError) as caught:
            places.others(name, take)
        assert str(caught.value) == places.OTHERS_ON_DEVICE[name]
        return
    for result, expected in zip(places.others(name, take), places.others(name), strict=True):
        np.testing.assert_allclose(result.host, expected, rtol=1e-12, atol=1e-13)
