"""A copy of the package, with and without a compiled kernel."""

import shutil

import pytest
from package_copy import Copy


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A copy that has compiled `half` and written it to its only file; and the result."""
    copy = Copy(tmp_path_factory.mktemp("compiled"))
    result, was_compiled = copy.call("half")
    assert was_compiled
    assert len(copy.files()) == 1
    return copy, result


@pytest.fixture
def with_kernel(copy, compiled):
    """A copy of that copy, and the result, and the file."""
    original, result = compiled
    shutil.copytree(original.kernels, copy.kernels)
    (file,) = copy.files()
    return copy, result, file
