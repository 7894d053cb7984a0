"""Calls while a graph is captured: what works, and what is refused in one line."""

import numpy as np
import pytest
import simulated_target
from cell_calls import Case
from row_arrays import draw

import numnorm
from numnorm.backends.cuda.arrays.libraries import LIBRARIES
from numnorm.rnn import persistent_kernels
from numnorm.rnn.parameters import GRU, LSTM, RNN

SHAPE = (3, 4)


@pytest.fixture(params=["cupy", "torch"])
def captured(request, imported):
    """A library whose current stream can be captured: set `capturing`."""
    return imported(request.param)


CALLS = {
    "layer_norm": lambda x: numnorm.layer_norm(x),
    "batch_norm": lambda x: numnorm.batch_norm(x),
    "moving_norm": lambda x: numnorm.moving_norm(x, 2),
    "a copy": lambda x: numnorm.layer_norm(x, axis=0),
}


@pytest.mark.parametrize("name", CALLS)
def test_only_after_a_first_call(captured, name):
    x = captured.take(draw(SHAPE))
    captured.capturing = True
    with pytest.raises(RuntimeError, match=r"^a call must have been made before a graph of it is"):
        CALLS[name](x)
    captured.capturing = False
    expected = CALLS[name](x)
    captured.capturing = True
    np.testing.assert_array_equal(CALLS[name](x).host, expected.host)
    with pytest.raises(RuntimeError, match="dtypes, shapes and alignment"):
        CALLS[name](captured.take(draw((5, 4))))


@pytest.mark.parametrize("kind", [LSTM, GRU, RNN], ids=["lstm", "gru", "rnn"])
@pytest.mark.parametrize("together", [False, True])
def test_kernels_of_cells_are_loaded_before(captured, kind, together, monkeypatch):
    """Their calls are never repeated, so each launch looks whether its kernel is loaded."""
    case, asked, launched = Case(kind).to(captured.take, "float32"), set(), set()

    def is_loaded(kernel, device, *, own=simulated_target.Kernel.is_loaded):
        asked.add(kernel)
        return own(kernel, device)

    def noted(launch):
        def launch_noted(kernel, *arguments):
            launched.add(kernel)
            return launch(kernel, *arguments)

        return launch_noted

    with persistent_kernels(together), monkeypatch.context() as patch:
        patch.setattr(simulated_target.Kernel, "is_loaded", is_loaded)
        for name in ("launch", "launch_cooperative"):
            patch.setattr(simulated_target.Kernel, name, noted(vars(simulated_target.Kernel)[name]))
        expected = case.run()
    assert launched and launched <= asked
    captured.capturing = True
    with persistent_kernels(together):
        for name, found in case.run().items():
            np.testing.assert_array_equal(found.host, expected[name].host)
        monkeypatch.setattr(simulated_target.Kernel, "is_loaded", lambda kernel, device: False)
        with pytest.raises(RuntimeError, match=r"^a call must have been made before a graph of it"):
            case.run()


def test_kernels_of_streams_are_loaded_before(captured, monkeypatch):
    x = captured.take(draw(SHAPE))
    expected, _ = numnorm.moving_norm_step(x, 2)
    captured.capturing = True
    np.testing.assert_array_equal(numnorm.moving_norm_step(x, 2)[0].host, expected.host)
    monkeypatch.setattr(simulated_target.Kernel, "is_loaded", lambda kernel, device: False)
    with pytest.raises(RuntimeError, match=r"^a call must have been made before a graph of it is"):
        numnorm.moving_norm_step(x, 2)


def test_arrays_of_the_host_are_refused(captured):
    x, mask = captured.take(draw(SHAPE)), np.ones(SHAPE, bool)
    numnorm.layer_norm(x, where=mask)
    captured.capturing = True
    with pytest.raises(RuntimeError, match=r"^an array of the host .* while a graph is captured$"):
        numnorm.layer_norm(x, where=mask)
    labels = np.array([0, 1, 1])
    with pytest.raises(RuntimeError, match=r"^an array of the host .* while a graph is captured$"):
        numnorm.batch_norm(x, labels=labels)


def test_arrays_of_a_graph_of_cupy_live_on(imported):
    """Its pool would give their memory to others, and the graph would write there."""
    cupy, (library, *_) = imported("cupy"), LIBRARIES
    x, dy = cupy.take(draw(SHAPE)), cupy.take(draw(SHAPE, seed=1))
    saved = numnorm.layer_norm_forward(x)[1:]
    before = len(library._of_graphs)
    results = [numnorm.layer_norm_backward(dy, x, *saved)]
    assert len(library._of_graphs) == before
    cupy.capturing = True
    results.append(numnorm.layer_norm_backward(dy, x, *saved))
    kept = library._of_graphs[before:]
    assert len(kept) == 4  # dx, dgamma, dbeta and the memory of partial sums
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one.host, other.host)
    del library._of_graphs[before:]
