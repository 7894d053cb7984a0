"""The kernels of channels: the definitions, in every order of threads."""

import ml_dtypes
import numpy as np
import pytest
import reference
import simulated_target
from simulated_target import register

from numnorm.backends.cuda.columns.column_shape import (
    ColumnShape,
    Partition,
    column_shape,
    partition,
    stream_partition,
    stream_shape,
)
from numnorm.backends.cuda.columns.moments_kernels import (
    make_merged_moments,
    make_moments_across,
    make_moments_along,
)
from numnorm.backends.cuda.columns.norm_kernels import (
    FROZEN_COEFFICIENTS,
    GRADIENT_COEFFICIENTS,
    OUTPUT_COEFFICIENTS,
    make_centre_coefficients,
    make_elements_across,
    make_elements_along,
    make_gradient_coefficients,
    make_output_coefficients,
    make_sums_across,
    make_sums_along,
)
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT32, FLOAT64
from numnorm.backends.cuda.statistics.stored import (
    make_reciprocal,
    make_reciprocal_deviation,
    make_update_running,
)
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.layouts import ColumnLayout

DTYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
FOLD = ColumnShape(4, 8, 1, 1, False)

# Shapes of arrays, of threads, and outer entries and inner elements of a part. The first two axes
# of those without inner ones are the samples and positions of an array with its channels last.
CASES = {
    "channels last, whole": ((45, 16), ColumnShape(4, 16, 2, 1, True), 32, 1),
    "channels last": ((45, 13), ColumnShape(8, 8, 4, 1, False), 40, 1),
    "one row": ((1, 21), ColumnShape(4, 8, 2, 1, False), 8, 1),
    "one channel": ((77, 1), ColumnShape(1, 32, 2, 1, False), 64, 1),
    "a warp of rows": ((33, 8), ColumnShape(1, 1, 2, 1, True), 20, 1),
    "channels first, whole": ((7, 3, 16), ColumnShape(8, 8, 2, 1, True), 8, 16),
    "channels first": ((7, 3, 21), ColumnShape(8, 4, 2, 1, False), 4, 24),
    "long channels, whole": ((2, 2, 624), ColumnShape(64, 1, 1, 2, True), 1, 512),
    "long channels": ((2, 2, 611), ColumnShape(32, 2, 1, 2, False), 2, 512),
    "channels last, anywhere": ((45, 16), ColumnShape(4, 16, 2, 1, True, False), 32, 1),
    "channels first, anywhere": ((7, 3, 16), ColumnShape(8, 8, 2, 1, True, False), 8, 16),
    "one value": ((3, 2, 1), ColumnShape(8, 4, 1, 1, False), 2, 1),
}


class Case:
    """An array's kernels, launched part by part."""

    def __init__(self, dtype, shape, columns, block, segment):
        self.element, self.columns = ELEMENT_TYPES[np.dtype(dtype).name], columns
        self.compute_type = self.element.compute_type
        self.outer, self.channels = shape[:2]
        self.inner = shape[2] if len(shape) == 3 else 1
        self.along = len(shape) == 3
        parts = -(-self.outer // block) * -(-self.inner // segment)
        span = 1 if self.along else columns.lanes * columns.vector_length(self.element)
        self.cut = Partition(block, segment, parts, parts * -(-self.channels // span))

    def launch(self, across, along, *arrays, **options):
        kernel = (along if self.along else across)(self.element, self.columns, **options)
        lengths = self.outer, self.channels, self.inner, self.cut.block, self.cut.segment
        if not self.along:
            lengths = self.outer, self.channels, self.cut.block
        kernel.launch(self.cut.blocks, 0, *map(address, arrays), *lengths)

    def elements(self, *arrays, gradient=False):
        self.launch(make_elements_across, make_elements_along, *arrays, gradient=gradient)

    def moments(self, x, before=(0, None, None)):
        counts, found = nans(self.cut.parts), nans(self.cut.parts, 3, self.channels)
        self.launch(make_moments_across, make_moments_along, x, counts, found)
        merged, addresses = nans(3, self.channels), [0, 0, 0]
        if before[0]:
            earlier = *before[1:3], np.zeros(self.channels)
            addresses = [register(np.array(array)) for array in earlier]
        make_merged_moments(FOLD).launch(
            -(-self.channels // FOLD.lanes), 0, register(counts), register(found), *addresses,
            *map(register, merged), self.cut.parts, self.channels, before[0],
        )  # fmt: skip
        return before[0] + counts.sum(), *merged[:2]

    def forward(self, x, mean, rstd, gamma, beta):
        coefficients, y = (
            nans(OUTPUT_COEFFICIENTS, self.channels, dtype=self.compute_type),
            np.full_like(x, np.nan),
        )
        y = placed_like(x, y)
        of = [None if w is None else ELEMENT_TYPES[w.dtype.name] for w in (gamma, beta)]
        kernel = make_output_coefficients(self.element, FLOAT64, Weights(*of))
        kernel.launch(self._ones(kernel), 0, *map(address, (mean, rstd, gamma, beta, coefficients)),
                      self.channels)  # fmt: skip
        self.elements(None, x, coefficients, y)
        return y

    def backward(self, dy, x, mean, rstd, gamma, detached=(False, False)):
        coefficients = nans(GRADIENT_COEFFICIENTS, self.channels, dtype=self.compute_type)
        kernel = make_centre_coefficients(self.element, FLOAT64)
        kernel.launch(
            self._ones(kernel), 0, *map(register, (mean, rstd, coefficients)), self.channels
        )
        sums, gradients = nans(2, self.cut.parts, self.channels), nans(2, self.channels)
        self.launch(make_sums_across, make_sums_along, dy, x, coefficients, *sums)
        share = 1 / (self.outer * self.inner)
        kernel = make_gradient_coefficients(
            self.element, None if gamma is None else ELEMENT_TYPES[gamma.dtype.name], FLOAT64, FOLD
        )
        kernel.launch(
            -(-self.channels // FOLD.lanes), 0, *map(register, sums), address(gamma),
            *map(register, gradients), register(coefficients), self.cut.parts, self.channels,
            *(0.0 if constant else share for constant in detached),
        )  # fmt: skip
        dx = placed_like(x, np.full_like(x, np.nan))
        if all(detached):
            self.elements(None, dy, coefficients[FROZEN_COEFFICIENTS:], dx)
        else:
            self.elements(dy, x, coefficients, dx, gradient=True)
        return dx, *gradients

    def _ones(self, kernel):
        return -(-self.channels // kernel.threads)


def nans(*shape, dtype=np.float64):
    return np.full(shape, np.nan, dtype)


def address(array):
    return 0 if array is None else register(array)


def placed(array, behind):
    """The same values, at an address some bytes behind a multiple of 16."""
    memory = np.zeros(array.nbytes + 32, np.uint8)
    start = -memory.__array_interface__["data"][0] % 16 + behind
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def placed_like(x, array):
    return placed(array, x.__array_interface__["data"][0] % 16)


def case_of(name, dtype):
    """Its kernels, x and dy; the arrays lie off a multiple of 16 bytes if they may."""
    shape, columns, block, segment = CASES[name]
    rng = np.random.default_rng(len(name))
    x, dy = (rng.normal(mean, 2, shape).astype(dtype) for mean in (3, 1))
    behind = 0 if columns.whole and columns.aligned else np.dtype(dtype).itemsize
    return Case(dtype, shape, columns, block, segment), placed(x, behind), placed(dy, 2 * behind)


def parameters(channels, dtype):
    rng = np.random.default_rng(1)
    return rng.normal(1, 1, channels).astype(dtype), rng.normal(0, 1, channels).astype(dtype)


def working_epsilon(dtype):
    return float(np.finfo(np.float64 if dtype == np.float64 else np.float32).eps)


def check(found, expected, dtype, roundings):
    """So many roundings of the working type at a channel's scale, and one of what is stored."""
    epsilon = working_epsilon(dtype)
    shared = tuple(n for n in range(expected.ndim) if n != 1)
    largest = np.abs(expected).max(shared, keepdims=True)
    storage = float(reference.exact(np.spacing(np.ones(1, dtype)))[0])
    bound = roundings * epsilon * largest + storage / 2 * np.abs(expected)
    assert np.all(np.abs(reference.exact(found) - expected) <= bound + np.finfo(np.float32).tiny)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_training(name, dtype, order):
    dtype = DTYPES[dtype]
    case, x, dy = case_of(name, dtype)
    gamma, beta = parameters(case.channels, dtype)
    count, mean, m2 = case.moments(x)
    expected_count, expected_mean, expected_m2 = reference.moments(x)
    epsilon = working_epsilon(dtype)
    assert count == expected_count
    # The sums are of a dozen roundings each, and errors of the mean are relative to a deviation.
    deviation = np.sqrt(np.float64(expected_m2) / count)
    assert np.all(np.abs(mean - expected_mean) <= 4 * epsilon * deviation + 1e-15)
    np.testing.assert_allclose(m2, np.float64(expected_m2), rtol=16 * epsilon)
    rstd = np.float64(reference.batch_norm(x)[2])
    y = case.forward(x, mean, rstd, gamma, beta)
    check(y, reference.batch_norm(x, gamma, beta)[0], dtype, 8)
    dx, dgamma, dbeta = case.backward(dy, x, mean, rstd, gamma)
    expected = reference.batch_norm_backward(dy, x, gamma)
    if count > 1:  # else all of dx is rounding
        check(dx, expected[0], dtype, 32)
    total = np.abs(reference.exact(dy)).reshape(case.outer, case.channels, -1).sum((0, 2))
    assert np.all(np.abs(dgamma - expected[1]) <= 16 * epsilon * total)
    assert np.all(np.abs(dbeta - expected[2]) <= 8 * epsilon * total)


@pytest.mark.parametrize("name", ["channels last, whole", "channels last", "channels first"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_inference(name, dtype, order):
    dtype = DTYPES[dtype]
    case, x, dy = case_of(name, dtype)
    gamma = parameters(case.channels, np.float64)[0]
    mean, variance = np.linspace(-2, 2, case.channels), np.linspace(0.1, 3, case.channels)
    expected, _, rstd = reference.batch_norm_inference(x, mean, variance, None, None)
    rstd = np.float64(rstd)
    check(case.forward(x, mean, rstd, None, None), expected, dtype, 8)
    dx, dgamma, dbeta = case.backward(dy, x, mean, rstd, gamma, (True, True))
    expected = reference.batch_norm_inference_backward(dy, x, mean, variance, gamma)
    check(dx, expected[0], dtype, 4)
    np.testing.assert_allclose(dgamma, np.float64(expected[1]), rtol=1e-4)
    np.testing.assert_allclose(dbeta, np.float64(expected[2]), rtol=1e-4)


@pytest.mark.parametrize("name", ["channels last", "long channels"])
@pytest.mark.parametrize("detach", ["mean", "scale"])
def test_one_statistic_is_a_constant(name, detach, order):
    case, x, dy = case_of(name, np.float32)
    _, mean, rstd = reference.batch_norm(x)
    axes = tuple(n for n in range(x.ndim) if n != 1)
    high, of_scale = (reference.along(v, x.ndim, (1,), 0) for v in (mean, rstd))
    xhat = (reference.exact(x) - high) * of_scale
    expected = reference.through_statistics(reference.exact(dy), xhat, of_scale, axes, detach)
    dx = case.backward(
        dy, x, np.float64(mean), np.float64(rstd), None, (detach == "mean", detach == "scale")
    )[0]
    check(dx, expected, np.float32, 16)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "name", ["channels last, whole", "channels last", "channels first", "long channels, whole"]
)
def test_channels_of_any_scale_and_mean_beside_each_other(name, dtype, order):
    dtype = DTYPES[dtype]
    case, x, dy = case_of(name, np.float32)
    channels = case.channels
    scales = np.resize([1, 1e30, 1e-30, 3e-38, 1e37, 1e3], channels)
    x = np.float64(x) * reference.along(scales, x.ndim, (1,), 1)
    if channels > 12:
        x[:, 6] += 1e7
        x[:, 7], x[:, 8], x[:, 9] = 0, 0.1, 1e-20
        x[0, 12] = 1e5
    x = placed_like(dy, x.astype(dtype))
    dy = placed_like(x, dy.astype(dtype))
    case = Case(dtype, *CASES[name])
    _, mean, m2 = case.moments(x)
    _, expected_mean, expected_m2 = reference.moments(x)
    deviation = np.sqrt(expected_m2 / (case.outer * case.inner))
    np.testing.assert_allclose(m2, np.float64(expected_m2), rtol=3e-6)
    assert np.all(np.abs(mean - expected_mean) <= 1e-6 * deviation + 1e-15 * np.abs(mean))
    rstd = np.float64(reference.inverse(deviation))
    expected = reference.batch_norm(x, eps=0)[0]
    check(case.forward(x, mean, rstd, None, None), expected, dtype, 16)
    dx = case.backward(dy, x, mean, rstd, None)[0]
    expected = reference.batch_norm_backward(dy, x, eps=0)[0]
    inside = expected < np.finfo(np.float32).max  # what a small channel's gradient may not be
    check(np.where(inside, dx, 0), np.where(inside, expected, 0), dtype, 64)


@pytest.mark.parametrize("name", ["channels last, whole", "channels last", "channels first"])
def test_not_a_number_stays_in_its_channel(name, order):
    case, x, dy = case_of(name, np.float32)
    usual = everything(case, x, dy)
    x[3, 0], x[5, 2] = np.nan, np.inf
    others = [c for c in range(case.channels) if c not in (0, 2)]
    for found, expected in zip(everything(case, x, dy), usual, strict=True):
        axis = 1 if found.ndim == x.ndim else 0
        assert np.isnan(found.take(0, axis)).any() or found.ndim == 1
        assert found.take(others, axis).tobytes() == expected.take(others, axis).tobytes()
    _, mean, m2 = case.moments(x)
    assert np.isnan(mean[0]) and np.isnan(m2[0]) and not np.isfinite(mean[2])


def everything(case, x, dy):
    """All results of an array: y, dx, and a number each of a channel."""
    gamma, beta = parameters(case.channels, x.dtype)
    _, mean, m2 = case.moments(x)
    rstd = nans(case.channels)
    kernel = make_reciprocal_deviation(FLOAT64)
    variance = m2 / (case.outer * case.inner)
    kernel.launch(1, 0, register(variance), register(rstd), case.channels, 1.0, 1e-5)
    y = case.forward(x, mean, rstd, gamma, beta)
    return y, *case.backward(dy, x, mean, rstd, gamma), mean, m2


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_same_bytes_in_any_order_of_threads(name, dtype):
    case, x, dy = case_of(name, DTYPES[dtype])
    found = []
    for simulated_target.ORDER in simulated_target.ORDERS:
        found.append(b"".join(array.tobytes() for array in everything(case, x, dy)))
    simulated_target.ORDER = simulated_target.ORDERS[0]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", ["channels last", "channels first"])
def test_moments_go_on_from_others(name, order):
    case, x, _ = case_of(name, np.float32)
    before = case.moments(x * np.float32(2) + np.float32(1))
    count, mean, m2 = case.moments(x, before)
    expected = reference.merge_moments(
        reference.moments(x * np.float32(2) + np.float32(1)), reference.moments(x)
    )
    assert count == expected[0]
    np.testing.assert_allclose(mean, np.float64(expected[1]), rtol=1e-6)
    np.testing.assert_allclose(m2, np.float64(expected[2]), rtol=1e-6)


def test_rounding_does_not_grow_with_the_rows():
    element, layout = ELEMENT_TYPES["float32"], ColumnLayout(40_000, 1, 1)
    columns = column_shape(element, layout, aligned=False, arrays=1)
    cut = partition(element, layout, columns)
    case = Case(np.float32, (40_000, 1), columns, cut.block, 1)
    x = np.random.default_rng(0).normal(100, 1, (40_000, 1)).astype(np.float32)
    _, mean, m2 = case.moments(x)
    np.testing.assert_allclose(mean, np.float64(reference.moments(x)[1]), rtol=1e-10)
    np.testing.assert_allclose(m2, np.float64(reference.moments(x)[2]), rtol=1e-6)


LENGTHS = [
    (1, 8, 1),
    (8192, 1024, 1),
    (1_000_000, 8, 1),
    (17, 8, 3136),
    (256, 512, 56),
    (1, 8, 160_000),
    (8192, 1001, 1),
    (256, 512, 49),
    (2, 3, 160_001),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_cover_an_array_in_bounded_sums(dtype):
    element = ELEMENT_TYPES[dtype]
    for outer, channels, inner in LENGTHS:
        layout = ColumnLayout(outer, channels, inner)
        columns = column_shape(element, layout, aligned=True, arrays=2)
        cut = partition(element, layout, columns)
        assert columns.threads == 256
        assert cut.parts == -(-outer // cut.block) * -(-inner // cut.segment)
        assert cut.segment % columns.vector_length(element) == 0 or inner == 1
        stride = columns.lanes * columns.vector_length(element) if inner > 1 else 1
        turns = -(-min(cut.segment, inner) // stride)
        assert cut.block // columns.teams * turns <= 64
        columns = stream_shape(element, layout, aligned=True)
        cut = stream_partition(element, layout, columns)
        assert columns.threads % 32 == 0 and columns.threads <= 256
        assert cut.block == layout.block
        assert cut.parts == -(-outer // cut.block) * -(-inner // cut.segment)
        assert cut.segment % columns.vector_length(element) == 0 or inner == 1
        stride = columns.lanes * columns.vector_length(element) if inner > 1 else 1
        turns = -(-min(cut.segment, inner) // stride)
        assert cut.block // columns.teams * turns <= 128


@pytest.mark.parametrize("teams", [1, 8])
def test_parts_are_merged_in_order(teams, order):
    parts, channels = 21, 5
    rng = np.random.default_rng(2)
    counts = rng.integers(1, 9, parts).astype(np.float64)
    moments = rng.normal(5, 1, (parts, 3, channels)) * np.array([1, 1e-16, 1])[:, None]
    moments[:, 2] **= 2
    before = 7.0, rng.normal(5, 1, channels), rng.normal(5, 1, channels) ** 2, np.zeros(channels)

    def merged(first, last, before):
        found, arrays = nans(3, channels), (counts, moments)
        shape = ColumnShape(4, teams, 1, 1, False)
        make_merged_moments(shape).launch(
            2, 0, *(register(array[first:last].copy()) for array in arrays),
            *map(address, before[1:]), *map(register, found), last - first, channels, before[0],
        )  # fmt: skip
        return before[0] + counts[first:last].sum(), *found

    found, expected = merged(0, parts, before), before[:3]
    for part in range(parts):
        of_part = counts[part], moments[part, 0], moments[part, 2]
        expected = reference.merge_moments(expected, of_part)
    for got, wanted in zip(found[:3], expected, strict=True):
        np.testing.assert_allclose(got, np.float64(wanted), rtol=1e-13)
    if teams == 1:
        again = merged(9, parts, merged(0, 9, (0, None, None, None)))
        whole = merged(0, parts, (0, None, None, None))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(again[1:], whole[1:], strict=True))


def test_stored_statistics():
    values = np.array([2.0, 0.0, -4.0, np.inf, np.nan, 1e-310])
    found = nans(6)
    make_reciprocal(FLOAT64).launch(1, 0, register(values), register(found), 6)
    np.testing.assert_array_equal(found, [0.5, 0, -0.25, 0, np.nan, np.inf])
    narrow = np.array([3.0, 0.0, 1e-45], np.float32)
    make_reciprocal(FLOAT32).launch(1, 0, register(narrow), register(found), 3)
    np.testing.assert_array_equal(found[:3], [1 / 3, 0, 1 / np.float64(narrow[2])])
    variance = 4 * np.array([4.0, 0.0, 1e-302, np.inf, np.nan, 1.0])
    kernel = make_reciprocal_deviation(FLOAT64)
    kernel.launch(1, 0, register(variance), register(found), 6, 0.25, 0.0)
    np.testing.assert_array_equal(found, [0.5, 0, np.nan, np.nan, np.nan, 1])
    kernel.launch(1, 0, register(np.array([1e-300])), register(found), 1, 1.0, 0.0)
    np.testing.assert_allclose(found[0], 1e150, rtol=2e-16)
    for dtype in (np.float32, np.float64):
        running = np.array([1, 10], dtype)
        kernel = make_update_running(ELEMENT_TYPES[running.dtype.name])
        kernel.launch(1, 0, register(running), register(np.array([6.0, 60.0])), 2, 0.5, 0.25)
        np.testing.assert_array_equal(running, [1.5, 15])
        # What has no weight is left out.
        for weight, expected in ((0.0, [np.nan, 2]), (1.0, [3, np.inf])):
            running = np.array([np.nan, 2], dtype)
            new = register(np.array([3.0, np.inf]))
            kernel.launch(1, 0, register(running), new, 2, 1.0, weight)
            np.testing.assert_array_equal(running, expected)
