"""The public functions on device arrays of every library: results, dtypes, places, layouts."""

import dataclasses

import numpy as np
import pytest
import reference
from fake_libraries import STREAMS
from row_arrays import DTYPES, NORMS, assert_close, draw, supports
from simulated_target import Kernel

import numnorm
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
from numnorm.backends.cuda.threads.row_shape import (
    RowShape,
    backward_shape,
    blocks_of,
    launch_shape,
)


@pytest.fixture
def launched(monkeypatch):
    """What was launched: the number of blocks, the threads of each, the stream."""
    found, launch = [], Kernel.launch

    def recorded(self, blocks, stream, *arguments):
        found.append((blocks, self.threads, stream))
        launch(self, blocks, stream, *arguments)

    monkeypatch.setattr(Kernel, "launch", recorded)
    return found


def use(library, norm, dtype, shape=None, **options):
    """The norm on the device, and as it is defined."""
    given, of_parameters, count, more = NORMS[norm]
    x = draw(shape or given, dtype)
    parameters = [draw(of_parameters, dtype, seed) for seed in range(1, count + 1)]
    options = more | options
    got = getattr(numnorm, f"{norm}_forward")(
        library.take(x), *map(library.take, parameters), **options
    )
    expected = getattr(reference, norm)(x, *parameters, **options)
    return got, expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_norms(library, norm, dtype, order):
    if not supports(library, dtype):
        pytest.skip("a dtype that Numba does not have")
    got, expected = use(library, norm, dtype)
    assert_close(got[0].host, expected[0], dtype)
    for found, wanted in zip(got[1:], expected[1:], strict=True):
        assert type(found) is type(got[0])
        assert found.host.dtype == ("float32" if dtype == "float16" else "float64")
        np.testing.assert_allclose(found.host, np.float64(wanted), rtol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_plain_function_gives_the_same(library, norm):
    (shape, of_parameters, count, options), x = NORMS[norm], draw(NORMS[norm][0])
    parameters = [library.take(draw(of_parameters, seed=seed)) for seed in range(1, count + 1)]
    y = getattr(numnorm, norm)(library.take(x), *parameters, **options)
    assert y.host.tobytes() == use(library, norm, "float32")[0][0].host.tobytes()
    assert y.host.shape == shape


@pytest.mark.parametrize("axis", [(0, 2), 1, (1, 2), 0])
def test_any_axes(library, axis, order):
    x = draw((3, 4, 5))
    shape = tuple(x.shape[a] for a in np.atleast_1d(axis))
    gamma, beta = draw(shape, seed=1), draw(shape, seed=2)
    arrays = map(library.take, (x, gamma, beta))
    y, mean, rstd = numnorm.layer_norm_forward(*arrays, axis=axis)
    expected = reference.layer_norm(x, gamma, beta, axis)
    assert y.host.shape == x.shape
    assert_close(y.host, expected[0], "float32")
    np.testing.assert_allclose(mean.host, np.float64(expected[1]), rtol=1e-6)
    np.testing.assert_allclose(rstd.host, np.float64(expected[2]), rtol=1e-6)


@pytest.mark.parametrize("missing", [(), ("gamma",), ("beta",), ("gamma", "beta")])
def test_parameters_may_be_missing(library, missing):
    x = draw((3, 8))
    given = {"gamma": draw(8, seed=1), "beta": draw(8, seed=2)}
    given = {name: value for name, value in given.items() if name not in missing}
    y = numnorm.layer_norm(
        library.take(x), **{name: library.take(value) for name, value in given.items()}
    )
    assert_close(y.host, reference.layer_norm(x, **given)[0], "float32")


def test_parameters_of_another_float_type(library):
    x, gamma, beta = draw((3, 8)), draw(8, "float64", 1), draw(8, "float16", 2)
    y = numnorm.layer_norm(*map(library.take, (x, gamma, beta)))
    assert_close(y.host, reference.layer_norm(x, gamma, beta)[0], "float32")


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("width", [8, 11])
def test_out(library, axis, width):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    x, out = draw((width, width)), library.take(np.zeros((width, width), np.float32))
    expected = numnorm.layer_norm(library.take(x), axis=axis).host
    assert numnorm.layer_norm(library.take(x), axis=axis, out=out) is out
    assert out.host.tobytes() == np.ascontiguousarray(expected).tobytes()
    given = library.take(x.copy())
    assert numnorm.layer_norm(given, axis=axis, out=given) is given
    assert given.host.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_out_that_overlaps_an_input(library):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    memory = library.take(draw(30))
    x, out = (library.take(memory.host[k : k + 24].reshape(3, 8)) for k in (0, 6))
    expected = numnorm.layer_norm(library.take(x.host.copy())).host
    assert numnorm.layer_norm(x, out=out) is out
    assert out.host.tobytes() == expected.tobytes()
    gamma = library.take(draw((3, 8)))
    row = library.take(gamma.host[1])
    expected = reference.layer_norm(x.host, row.host.copy())[0]
    assert_close(numnorm.layer_norm(x, row, out=gamma).host, expected, "float32")


def test_input_that_is_not_contiguous_is_copied_once(library, launched):
    if library.called == "jax":
        pytest.skip("JAX has no views")
    host = library.take(draw((6, 16))).host
    x = library.take(host[::2, ::2])
    y = numnorm.layer_norm(x)
    assert library.asked == ["copy"]
    assert_close(y.host, reference.layer_norm(host[::2, ::2])[0], "float32")
    del library.asked[:]
    numnorm.layer_norm(library.take(host.T), axis=0)
    assert library.asked == []
    assert len(launched) == 2


@pytest.mark.parametrize("width", [8, 9])
@pytest.mark.parametrize("behind", range(4))
def test_rows_that_begin_anywhere(library, width, behind, order):
    memory = draw(3 * width + 4)
    x = library.take(memory).host[behind : behind + 3 * width].reshape(3, width)
    y = numnorm.layer_norm(library.take(x))
    assert_close(y.host, reference.layer_norm(x)[0], "float32")


@pytest.mark.parametrize("width, threads", [(2048, 64), (2054, 128)])
def test_several_warps_a_row(library, launched, width, threads, order):
    x, gamma, beta = draw((2, width)), draw(width, seed=1), draw(width, seed=2)
    y = numnorm.layer_norm(*map(library.take, (x, gamma, beta)))
    assert_close(y.host, reference.layer_norm(x, gamma, beta)[0], "float32")
    assert launched[0][:2] == (2, threads)


def test_row_that_no_registers_hold(library):
    x, gamma, beta = draw((1, 20001)), draw(20001, seed=1), draw(20001, seed=2)
    y = numnorm.layer_norm(*map(library.take, (x, gamma, beta)))
    assert_close(y.host, reference.layer_norm(x, gamma, beta)[0], "float32")


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_nothing(library, launched, shape):
    y, mean, rstd = numnorm.layer_norm_forward(library.take(np.empty(shape, np.float32)))
    assert y.host.shape == shape
    assert mean.host.shape == rstd.host.shape == shape[:1]
    assert np.all(np.isnan(mean.host)) and np.all(np.isnan(rstd.host))
    assert launched == []


def test_row_alone(library):
    x = draw(7)
    y, mean, _ = numnorm.layer_norm_forward(library.take(x))
    assert_close(y.host, reference.layer_norm(x)[0], "float32")
    assert mean.host.shape == ()


# Streams and devices


def test_stream_of_the_library(library, launched):
    numnorm.layer_norm(library.take(draw((3, 8))))
    assert [stream for _, _, stream in launched] == [STREAMS[library.called]]


# How rows become teams


@pytest.mark.parametrize("element", ELEMENT_TYPES.values(), ids=ELEMENT_TYPES)
def test_every_width_fits(element):
    widest = 8192 if element.name == "float64" else 16384
    for width in range(1, widest + 1):
        shape = launch_shape(width, element, aligned=True)
        assert shape.whole == (width % element.vector == 0)
        slots = shape.vectors * element.vector
        # No thread lacks more than its last piece.
        assert shape.team * (slots - element.vector) < width <= shape.team * slots
        assert shape.team & (shape.team - 1) == 0
        assert 1 <= shape.vectors <= 8
        assert slots <= 32
        assert shape.teams == 1 or shape.team <= 32
        assert shape.threads % 32 == 0 and shape.threads <= 1024
        # No thread of all has nothing to do for want of a narrower team, but for the last.
        assert shape.team == 1 or width + element.vector > shape.team // 2 * element.vector


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("element", ELEMENT_TYPES.values(), ids=ELEMENT_TYPES)
def test_wider_rows_are_read_in_a_loop(element, aligned):
    for width, whole in ((16385, False), (16392, True)):
        shape = launch_shape(width, element, aligned=aligned)
        assert shape == RowShape(1024, 1, 0, whole, aligned or not whole)


@pytest.mark.parametrize("shape_of", [launch_shape, backward_shape])
def test_a_shape_depends_on_addresses_for_how_pieces_are_read_alone(shape_of):
    for element in ELEMENT_TYPES.values():
        for width in range(1, 20000, 17):
            shape = shape_of(width, element, aligned=True)
            found = shape_of(width, element, aligned=False)
            assert dataclasses.replace(found, aligned=True) == shape


def test_a_shape_does_not_depend_on_the_rows(library, launched):
    for rows in (1, 33):
        numnorm.layer_norm(library.take(draw((rows, 8))))
    shape = launch_shape(8, ELEMENT_TYPES["float32"], aligned=True)
    assert [blocks for blocks, _, _ in launched] == [1, 1]
    assert {threads for _, threads, _ in launched} == {shape.threads}
    assert blocks_of(shape.teams + 1, shape) == 2
