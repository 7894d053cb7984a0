"""GRU and RNN beside PyTorch, their normalized forms written in it, and zoneout of all cells."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch_cells import (
    DTYPES,
    LENGTHS,
    SIZES,
    assert_close,
    assert_passes_close,
    draw_problem,
    gru_step,
    layer_passes,
    lstm_step,
    module_of,
    noisy,
    own_passes,
    rnn_step,
    step_passes,
    torch,
)

from numnorm import rnn

pytestmark = pytest.mark.torch


class Module(NamedTuple):
    """A module of PyTorch: its class, its options, and the cell of numnorm that it is."""

    kind: str
    options: dict[str, Any]
    cell: str

    def make(self, dtype, **options):
        return module_of(self.kind, dtype, **self.options, **options)

    def converter(self, direction="from"):
        return getattr(rnn, f"{self.cell}_{direction}_torch")


MODULES = [
    Module("GRU", {}, "gru"),
    Module("RNN", {"nonlinearity": "tanh"}, "rnn"),
    Module("RNN", {"nonlinearity": "relu"}, "rnn"),
]


def name(module):
    return "-".join([module.kind, *module.options.values()])


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", MODULES, ids=name)
def test_without_norm(module, dtype, bias, lengths):
    layer, from_torch = module.make(dtype, bias=bias), module.converter()
    (parameters,) = rnn.layers_from_torch(layer.state_dict(), from_torch)
    x, states, grads = draw_problem(1, 1, dtype)
    options = {"norm": None, "lengths": lengths, **module.options}
    mine = own_passes(module.cell, x, parameters, states, grads, **options)
    theirs = layer_passes(layer, from_torch, x, states, grads, lengths)
    assert_passes_close(mine, theirs, dtype)


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_parameters_for_pytorch(module):
    # What begins in numnorm runs in PyTorch.
    rng = np.random.default_rng(2)
    init = getattr(rnn, f"{module.cell}_init")
    sizes = SIZES["inputs"], SIZES["hidden"]
    parameters = noisy(init(*sizes, rng=rng, norm=None), rng, np.float64)
    layer = module.make(np.float64)
    arrays = module.converter("to")(parameters)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    layer.load_state_dict({n: torch.from_numpy(a) for n, a in zip(names, arrays, strict=True)})
    x, (h,), _ = draw_problem(2, 1, np.float64)
    y, last = getattr(rnn, module.cell)(x, parameters, h, norm=None, **module.options)
    their_y, their_last = layer(torch.from_numpy(x), torch.from_numpy(h)[None])
    assert_close(y, their_y)
    assert_close(last, their_last[0])


@pytest.mark.parametrize("module", MODULES[:2], ids=name)
def test_conversions_there_and_back(module):
    layer, back = module.make(np.float32), module.converter("to")
    (parameters,) = rnn.layers_from_torch(layer.state_dict(), module.converter())
    w, r, bias, bias_h = (p.detach().numpy() for p in layer.parameters())
    mine = back(parameters)
    np.testing.assert_array_equal(mine[0], w)
    np.testing.assert_array_equal(mine[1], r)
    np.testing.assert_array_equal(mine[2] + mine[3], bias + bias_h)
    if module.kind == "GRU":
        np.testing.assert_array_equal(mine[3][-SIZES["hidden"] :], bias_h[-SIZES["hidden"] :])


class Case(NamedTuple):
    """A cell of numnorm with its options, and its equations for autograd."""

    cell: str
    options: dict[str, Any]
    step: Any
    states: int = 1

    def parameters(self, dtype):
        rng = np.random.default_rng(3)
        options = {k: v for k, v in self.options.items() if k != "nonlinearity"}
        sizes = SIZES["inputs"], SIZES["hidden"]
        init = getattr(rnn, f"{self.cell}_init")
        return noisy(init(*sizes, rng=rng, **options), rng, dtype)


def gru_case(norm):
    return Case("gru", {"norm": norm}, functools.partial(gru_step, norm))


def rnn_case(norm, nonlinearity="tanh"):
    options = {"norm": norm, "nonlinearity": nonlinearity}
    return Case("rnn", options, functools.partial(rnn_step, norm, nonlinearity))


def lstm_case(norm, variant="paper"):
    options = {"norm": norm, "variant": variant}
    return Case("lstm", options, functools.partial(lstm_step, norm, variant), 2)


def case_name(case):
    return "-".join([case.cell, *(str(value) for value in case.options.values())])


NORMS = ["layer", "rms", "ada"]
NORMALIZED = [*map(gru_case, NORMS), *map(rnn_case, NORMS), rnn_case("layer", "relu")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", NORMALIZED, ids=case_name)
def test_normalized(case, dtype):
    parameters = case.parameters(dtype)
    x, states, grads = draw_problem(4, 1, dtype)
    mine = own_passes(case.cell, x, parameters, states, grads, **case.options)
    assert_passes_close(mine, step_passes(case.step, x, parameters, states, grads), dtype)


ZONEOUT = [lstm_case("layer"), lstm_case(None), gru_case("layer"), rnn_case("layer")]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "expected"])
@pytest.mark.parametrize("case", ZONEOUT, ids=case_name)
def test_zoneout(case, drawn, reverse):
    parameters = case.parameters(np.float64)
    x, states, grads = draw_problem(5, case.states, np.float64)
    shares = (0.4, 0.15)[: case.states]
    options = {"lengths": LENGTHS, "reverse": reverse}
    mine = own_passes(
        case.cell, x, parameters, states, grads, **case.options, **options,
        zoneout=shares if case.states > 1 else shares[0],
        rng=np.random.default_rng(6) if drawn else None,
    )  # fmt: skip
    # Step by step, for one state after the other, as numbers of float32 below the share.
    time, batch = x.shape[:2]
    shape = time, case.states, batch, SIZES["hidden"]
    numbers = np.random.default_rng(6).random(shape, np.float32)
    keeps = [
        numbers[:, i] < share if drawn else np.full((time, batch, SIZES["hidden"]), share)
        for i, share in enumerate(shares)
    ]
    keeps = [torch.from_numpy(keep.astype(np.float64)) for keep in keeps]
    theirs = step_passes(case.step, x, parameters, states, grads, keeps=keeps, **options)
    assert_passes_close(mine, theirs, np.float64)
