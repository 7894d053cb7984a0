"""Every kernel compiled for devices that are not there: what its machine code may not do."""

import functools
import importlib.util
import re

import pytest
import sass_kernels
from sass_kernels import ALL_STEPS, CAPABILITIES, DOUBLE, WIDE, matching, wide

pytestmark = pytest.mark.sass

# Of the 255 that a thread may have; 128 let two blocks of 256 threads share a multiprocessor.
# A block that is alone on its multiprocessor may have all 255, and kernels of float64 also some
# words of stack.
MOST_REGISTERS, MOST_ALONE, MOST_STACK_ALONE = 128, 255, 80
# A few words that do not fit beside the sums of rows' gradients, or that are saved around the call
# of a rare division's slow path. An array there would take 64 bytes or more.
MOST_STACK = 32
# The widest blocks of gradients and the moments along contiguous elements fill all registers. They
# keep some words more; several words may take turns in one place of the stack.
FULL = re.compile("row backward.*512 × 1 threads|moments, along")
MOST_STACK_FULL, MOST_SPILLED_FULL = 56, 72
# A saved statistic in float64 takes a sum, some products and perhaps a quotient; moments of
# channels are merged in float64, a few of them at the end of a block.
MOST_DOUBLE, MOST_TO_MERGE = 40, 150


# All kernels take a quarter of an hour on two cores. One of each source tells most of what they
# all do.
ON_EACH = pytest.mark.parametrize(
    ("capability", "sampled"),
    [
        pytest.param(CAPABILITIES[-1], True, id="one of each source"),
        *(pytest.param(each, False, id=each, marks=pytest.mark.slow) for each in CAPABILITIES),
    ],
)


def compiled(capability, sampled):
    return reports(sampled)[capability]


@functools.cache
def reports(sampled):
    if not any(importlib.util.find_spec(name) for name in ("numba_cuda", "numba_cuda_mlir")):
        pytest.skip("no compiler for CUDA; `nox -s sass` installs one")
    capabilities = CAPABILITIES[-1:] if sampled else CAPABILITIES
    return sass_kernels.of_all(capabilities, sampled=sampled)


@ON_EACH
def test_nothing_is_kept_in_slow_memory(capability, sampled):
    for name, found in compiled(capability, sampled).items():
        alone = ALL_STEPS in name
        most = spilled = MOST_STACK_ALONE if alone and "float64" in name else MOST_STACK
        if FULL.search(name):
            most, spilled = MOST_STACK_FULL, MOST_SPILLED_FULL
        if WIDE not in name:
            assert found["stack"] <= most and found["spilled"] <= spilled, name
        assert found["registers"] <= (MOST_ALONE if alone else MOST_REGISTERS), name


@ON_EACH
def test_float32_is_not_computed_in_float64(capability, sampled):
    for name, found in compiled(capability, sampled).items():
        if "float64" not in name:
            most = MOST_TO_MERGE if "moments" in name else MOST_DOUBLE
            assert matching(found["operations"], *DOUBLE) <= most, name


@ON_EACH
def test_whole_rows_are_read_and_written_16_bytes_at_a_time(capability, sampled):
    for name, found in compiled(capability, sampled).items():
        if "row" in name and "whole" in name:
            loads, other_loads = wide(found["operations"], "LDG")
            stores, other_stores = wide(found["operations"], "STG")
            assert loads > 0 and stores > 0, name
            # One element that every deviation is taken from, what is saved of a row, and, backward,
            # sums of several teams in a block.
            most = 6 if "backward" in name else 2
            assert other_loads <= most and other_stores <= most, name


@ON_EACH
def test_no_kernel_has_atomic_operations(capability, sampled):
    # That in which blocks wait for each other is CUDA's own, called from its library: it counts
    # the blocks, and no result depends on which of them comes first.
    for name, found in compiled(capability, sampled).items():
        assert matching(found["operations"], "ATOM", "RED") == 0, name


@pytest.mark.slow
def test_table_has_every_kernel(pytestconfig):
    """The table also lies in `build/gpu_kernels.md`, to compare it before and after a change."""
    tables = {capability: compiled(capability, False) for capability in CAPABILITIES}
    path = pytestconfig.rootpath / "build" / "gpu_kernels.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(sass_kernels.markdown(tables), "utf-8")
    rows = [line.split("|")[1:3] for line in path.read_text("utf-8").splitlines() if "|" in line]
    listed = [(name.strip(), capability.strip()) for name, capability in rows[2:]]
    assert listed == [(name, capability) for capability in tables for name in tables[capability]]


@ON_EACH
def test_kernels_of_users_hold_rows_in_registers(capability, sampled):
    found = {
        name: of for name, of in compiled(capability, sampled).items() if name.startswith("user's")
    }
    assert found
    for name, of in found.items():
        assert of["stack"] == matching(of["operations"], "LDL", "STL") == 0, name
        if "float32" in name and "forward" in name:  # which saves no statistics
            converted = [operation for operation in of["operations"] if "F64" in operation]
            assert not converted and matching(of["operations"], *DOUBLE) == 0, name
