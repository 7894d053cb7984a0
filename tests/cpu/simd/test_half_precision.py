"""float16 and bfloat16 as 16-bit words: every conversion against NumPy's and ml_dtypes' own."""

import os
import subprocess
import sys

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")

ALL_WORDS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def float_cases():
    """Return floats around everything that rounding can get wrong."""
    rng = np.random.default_rng(0)
    any_bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    near = np.concatenate(
        [ALL_WORDS.view(t).astype(np.float32) for t in (np.float16, ml_dtypes.bfloat16)]
    )
    # Exact halves, their neighbours, and the midpoints between them: where ties are decided.
    with np.errstate(all="ignore"):
        midpoints = (near[1:] + near[:-1]) / 2
        return np.concatenate(
            [any_bits, near, np.nextafter(near, np.float32(np.inf)), midpoints]
        ).astype(np.float32)


def convert_all():
    """Compare the compiled conversions with NumPy's; raise where one bit differs."""
    import numba

    from numnorm.backends.cpu.simd import element_type as halves
    from numnorm.backends.cpu.simd.vector import make_load, store

    def mapped(function, values, dtype):
        @numba.njit
        def loop(values, result):
            for i in range(values.size):
                result[i] = function(values[i])

        result = np.empty(values.size, dtype)
        loop(values, result)
        for count in 8, 16, 32:
            lanes = mapped_in_lanes(function, values, dtype, count)
            np.testing.assert_array_equal(lanes.view(np.uint8), result.view(np.uint8))
        return result

    def mapped_in_lanes(function, values, dtype, count):
        load = make_load(count)

        @numba.njit
        def loop(values, result):
            for i in range(0, values.size, count):
                store(result, i, function(load(values, i)))

        padded = np.resize(values, -(-values.size // count) * count)
        result = np.empty(padded.size, dtype)
        loop(padded, result)
        return result[: values.size]

    floats = float_cases()
    usual = floats[np.isfinite(floats) & (np.abs(floats) > 1e-37)]
    for dtype, to_compute, to_storage in (
        (np.float16, halves.float16_to_float32, halves.float32_to_float16),
        (ml_dtypes.bfloat16, halves.bfloat16_to_float32, halves.float32_to_bfloat16),
    ):
        # Where all lanes are such numbers, some processors take another way.
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(
                mapped(to_storage, usual, np.uint16).view(dtype), usual.astype(dtype)
            )
        np.testing.assert_array_equal(
            mapped(to_compute, ALL_WORDS, np.float32), ALL_WORDS.view(dtype).astype(np.float32)
        )
        with np.errstate(all="ignore"):
            expected = floats.astype(dtype)
        # As floats, because the payload of a NaN is nobody's promise; the sign of 0 is.
        got = mapped(to_storage, floats, np.uint16).view(dtype).astype(np.float32)
        expected = expected.astype(np.float32)
        np.testing.assert_array_equal(got, expected)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(expected)[numbers])


@pytest.mark.parametrize("cpu", ["", "generic"])
def test_conversions_are_exact_with_and_without_instructions_for_them(cpu):
    environment = os.environ | ({"NUMBA_CPU_NAME": cpu} if cpu else {})
    code = "import test_half_precision; test_half_precision.convert_all()"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=os.path.dirname(__file__),
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def test_the_plain_functions_are_the_same_conversions():
    from numnorm.backends.cpu.simd import element_type as halves

    floats = float_cases()[::997]
    for dtype, to_compute, to_storage in (
        (np.float16, halves.float16_to_float32, halves.float32_to_float16),
        (ml_dtypes.bfloat16, halves.bfloat16_to_float32, halves.float32_to_bfloat16),
    ):
        words = ALL_WORDS[::61]
        expected = words.view(dtype).astype(np.float32)
        np.testing.assert_array_equal([to_compute(w) for w in words], expected)
        with np.errstate(all="ignore"):
            got = np.array([to_storage(f) for f in floats], np.uint16).view(dtype)
            np.testing.assert_array_equal(
                got.astype(np.float32), floats.astype(dtype).astype(np.float32)
            )
