"""The libraries whose arrays the tests of this folder put on a real device."""

import pytest
from device_arrays import LIBRARIES


@pytest.fixture(params=LIBRARIES)
def library(request):
    """Each library, with `take(host)` and `give(array)`; skipped if it is not installed."""
    return LIBRARIES[request.param]()
