"""Calls on streams of the array library, and inside of graphs that it captures."""

import numpy as np
import pytest
from device_arrays import LIBRARIES, check, draw

import numnorm

pytestmark = pytest.mark.gpu

SHAPE = (300, 64)


class Torch:
    """A graph of PyTorch, and its streams."""

    def __init__(self):
        self.arrays = LIBRARIES["torch"]()
        self.torch = self.arrays.torch

    def captured(self, call):
        """Return what a call returns inside of a capture, and a function that runs the graph."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            result = call()
        return result, graph.replay

    def on_a_stream(self, call):
        stream = self.torch.cuda.Stream()
        stream.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(stream):
            result = call()
        self.torch.cuda.current_stream().wait_stream(stream)
        return result

    def write(self, array, host):
        array.copy_(self.torch.from_numpy(host))


class Cupy:
    """A graph of CuPy, and its streams."""

    def __init__(self):
        self.arrays = LIBRARIES["cupy"]()
        self.cupy = self.arrays.cupy

    def captured(self, call):
        stream = self.cupy.cuda.Stream(non_blocking=True)
        self.cupy.cuda.get_current_stream().synchronize()
        with stream:
            stream.begin_capture()
            try:
                result = call()
            finally:
                graph = stream.end_capture()

        def run():
            self.cupy.cuda.get_current_stream().synchronize()
            graph.launch(stream)
            stream.synchronize()

        return result, run

    def on_a_stream(self, call):
        self.cupy.cuda.get_current_stream().synchronize()
        stream = self.cupy.cuda.Stream(non_blocking=True)
        with stream:
            result = call()
        stream.synchronize()
        return result

    def write(self, array, host):
        array.set(host)


@pytest.fixture(params=[Torch, Cupy])
def graphs(request):
    return request.param()


def calls(arrays):
    """Return calls by name, and the array that they read: the first one of each."""
    x, out = arrays.take(draw(SHAPE, "float32")), arrays.take(draw(SHAPE, "float32", 1))
    dy, gamma = arrays.take(draw(SHAPE, "float32", 2)), arrays.take(draw(SHAPE[1:], "float32", 3))
    mask = arrays.take(np.random.default_rng(4).random(SHAPE) < 0.8)
    of_rows = numnorm.layer_norm_forward(x)[1:]
    of_channels = numnorm.batch_norm_forward(x)[1:]
    return x, {
        "layer_norm": lambda: (numnorm.layer_norm(x, gamma, out=out),),
        "layer_norm, new result": lambda: (numnorm.layer_norm(x, gamma),),
        "layer_norm_backward": lambda: numnorm.layer_norm_backward(dy, x, *of_rows, gamma),
        "layer_norm of columns": lambda: (numnorm.layer_norm(x, axis=0),),
        "batch_norm": lambda: numnorm.batch_norm_forward(x, gamma),
        "batch_norm_backward": lambda: numnorm.batch_norm_backward(dy, x, *of_channels, gamma),
        "moving_norm": lambda: numnorm.moving_norm_forward(x, 20, axis=0),
        "exponential_norm": lambda: numnorm.exponential_norm_forward(x, 0.1, axis=0),
        "a mask": lambda: numnorm.layer_norm_forward(x, gamma, where=mask),
    }


NAMES = [
    *("layer_norm", "layer_norm, new result", "layer_norm_backward", "layer_norm of columns"),
    *("batch_norm", "batch_norm_backward", "moving_norm", "exponential_norm", "a mask"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_of_a_call(graphs, name):
    """A graph computes from the numbers that its inputs have when it runs."""
    x, every = calls(graphs.arrays)
    call = every[name]
    call()
    result, run = graphs.captured(call)
    for seed in (7, 8):
        graphs.write(x, draw(SHAPE, "float32", seed))
        run()
        found = [graphs.arrays.give(array).copy() for array in result]
        for array, expected in zip(found, call(), strict=True):
            np.testing.assert_array_equal(array, graphs.arrays.give(expected))


def test_what_is_made_after_a_capture_keeps_its_numbers(graphs):
    """No array gets the memory of those that only kernels of the graph use."""
    _, every = calls(graphs.arrays)
    call = every["layer_norm_backward"]
    call()
    result, run = graphs.captured(call)
    others = [graphs.arrays.take(np.zeros(n, np.float32)) for n in (64, 128, 4096, 65536) * 20]
    run()
    for array in others:
        assert not graphs.arrays.give(array).any()
    expected = call()
    for array, other in zip(result, expected, strict=True):
        np.testing.assert_array_equal(graphs.arrays.give(array), graphs.arrays.give(other))


def test_running_statistics_move_with_each_run(graphs):
    x, _ = calls(graphs.arrays)
    running = [graphs.arrays.take(np.full(SHAPE[1], v, np.float32)) for v in (0.0, 1.0)]

    def call():
        return numnorm.batch_norm(x, running_mean=running[0], running_var=running[1])

    call()
    _, run = graphs.captured(call)
    for _ in range(2):
        run()
    exact = draw(SHAPE, "float32").astype(float).mean(0)
    check(graphs.arrays.give(running[0]), exact * (1 - 0.9**3), 16)


def test_a_first_call_is_refused_in_a_capture(graphs):
    x = graphs.arrays.take(draw((17, 29), "float32"))
    with pytest.raises(RuntimeError, match="must have been made before a graph"):
        graphs.captured(lambda: numnorm.layer_norm(x))


def test_a_mask_of_the_host_is_refused_in_a_capture(graphs):
    x, mask = graphs.arrays.take(draw(SHAPE, "float32")), np.ones(SHAPE, bool)
    numnorm.layer_norm(x, where=mask)
    with pytest.raises(RuntimeError, match="while a graph is captured"):
        graphs.captured(lambda: numnorm.layer_norm(x, where=mask))


@pytest.mark.parametrize("name", NAMES)
def test_a_call_on_a_stream(graphs, name):
    _, every = calls(graphs.arrays)
    expected = [graphs.arrays.give(array).copy() for array in every[name]()]
    found = graphs.on_a_stream(every[name])
    for array, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(graphs.arrays.give(array), other)


@pytest.mark.parametrize("name", ["layer_norm", "batch_norm"])
def test_jit_on_a_gpu_is_refused(name):
    arrays = LIBRARIES["jax"]()
    import numnorm.jax

    function = arrays.jax.jit(getattr(numnorm.jax, name))
    message = r"^numnorm.jax runs on the CPU only, got a function that is compiled for cuda"
    with pytest.raises(NotImplementedError, match=message):
        function(arrays.take(draw((3, 4), "float32")))
