"""The same bytes from every norm: serial, and with any number of threads in any threading layer."""

import json

import every_call
import pytest
from every_call import CASES, COMPILED, LAYERS, in_new_process, skip_where_missing

import numnorm

WORKER = every_call.__file__

pytestmark = pytest.mark.skipif(not COMPILED, reason="threads need compiled kernels")


def run_every_call(*arguments, layer, pool):
    """What the worker prints under a threading layer that starts `pool` threads.

    All runs read the same compiled kernels from disk, so that only the first one compiles.
    """
    skip_where_missing(layer)
    environment = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": str(pool)}
    printed = json.loads(in_new_process(WORKER, *arguments, **environment))
    assert printed["layer"] == layer
    return [(run["threads"], run["cases"]) for run in printed["runs"]]


@pytest.fixture(scope="module")
def serial():
    """The digest of each case in a process that launches no thread."""
    ((_, cases),) = run_every_call("--variant", "serial", layer="workqueue", pool=1)
    assert not any(launches for _, launches in cases.values())
    return {label: digest for label, (digest, _) in cases.items()}


def different(cases, serial):
    return [label for label, (digest, _) in cases.items() if digest != serial[label]]


# Two threads are what the machine may have, five are more: a part then waits for another.
@pytest.mark.parametrize("pool", [1, 2, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_bytes_do_not_depend_on_the_threads(serial, layer, pool):
    counts = [n for n in (1, 2, 3, 5) if n <= pool]
    runs = run_every_call("--threads", *map(str, counts), layer=layer, pool=pool)
    assert [threads for threads, _ in runs] == counts
    parallel_sizes = {"large"} if layer == "workqueue" else {"large", "medium"}
    for threads, cases in runs:
        assert cases.keys() == serial.keys()
        assert different(cases, serial) == []
        for label, (_, launches) in cases.items():
            expected = threads > 1 and CASES[label].size in parallel_sizes
            assert bool(launches) == expected, label
            assert set(launches) <= {threads}, label


@pytest.mark.parametrize("layer", LAYERS)
def test_bytes_of_the_parallel_kernels_on_arrays_of_any_size(serial, layer):
    # Even one row, cut into its one part.
    runs = run_every_call("--variant", "parallel", "--threads", "1", "2", layer=layer, pool=2)
    for threads, cases in runs:
        assert different(cases, serial) == []
        for label, (_, launches) in cases.items():
            assert set(launches) == {threads}, label


def test_every_norm_and_dtype_is_among_the_cases():
    norms = {case.norm for case in CASES.values()}
    # These are divided by other sizes, and have tests of threads of their own in tests/norms.
    others = {"moving_norm", "moving_robust_norm", "exponential_norm", "robust_norm"}
    others |= {"add_layer_norm", "add_rms_norm"}  # the bytes of two of the norms here
    assert norms == {n for n in numnorm.__all__ if n.endswith("_norm")} - others
    dtypes = {case.dtype for case in CASES.values()}
    assert dtypes == {"float16", "bfloat16", "float32", "float64"}
    for norm in norms:
        sizes = {case.size for case in CASES.values() if case.norm == norm}
        assert sizes == {"tiny", "medium", "large"}, norm
