"""Calls of the public functions of recurrent cells, with arguments on the host or a device."""

import copy

import cell_cases as cells
import ml_dtypes
import numpy as np
import pytest
from cell_steps import assert_close

from numnorm import rnn
from numnorm.rnn.parameters import GRU, LSTM, PROJECTED_LSTM, RNN

LENGTHS = [2, 4, 0, 3]
WIDTH = 3  # of a state that is a projection
KINDS = pytest.mark.parametrize("kind", [LSTM, GRU, RNN], ids=["lstm", "gru", "rnn"])


def projected(parameters, rng):
    """Return parameters of an LSTM with projections, from those of one without."""
    given = parameters._asdict()
    given["weight_h"] = np.ascontiguousarray(given["weight_h"][:, :WIDTH])
    given["projection"] = rng.normal(size=(WIDTH, given["weight_h"].shape[0] // 4))
    return rnn.ProjectedLSTMParameters(**given)


class Case:
    """A kind of cell and the arguments of its functions."""

    def __init__(self, kind=LSTM, *, units=5, time=4, batch=4, seed=0, **norm):
        rng = np.random.default_rng(seed)
        self.kind, self.norm = kind, norm
        self.parameters = cells.parameters(cells.spec_of(kind, **norm), units, 3, seed=seed)
        widths = [units] * len(kind.states)
        if kind is PROJECTED_LSTM:
            widths[0] = WIDTH
            self.parameters = projected(self.parameters, rng)
        self.x = rng.normal(size=(time, batch, 3))
        self.states = tuple(rng.normal(size=(batch, width)) for width in widths)
        self.grads = tuple(rng.normal(size=(batch, width)) for width in widths)
        self.dy = rng.normal(size=(time, batch, widths[0]))

    def to(self, take, dtype, of_parameters=None):
        """Return the same case with its arrays on a device, in a dtype."""

        def taken(array, dtype):
            return None if array is None else take(np.array(array, dtype, order="C"))

        other = copy.copy(self)
        other.x, other.dy = taken(self.x, dtype), taken(self.dy, dtype)
        other.states, other.grads = (
            tuple(taken(a, dtype) for a in group) for group in (self.states, self.grads)
        )
        kinds = type(self.parameters)
        other.parameters = kinds(*(taken(p, of_parameters or dtype) for p in self.parameters))
        return other

    def arrays(self):
        """Return all arrays of the case."""
        return [self.x, self.dy, *self.states, *self.grads, *filter(_is_there, self.parameters)]

    def call(self, what="", **options):
        """Call a function of the kind: `what` is the end of its name, such as `_forward`."""
        function = getattr(rnn, self.kind.name + what)
        return function(self.x, self.parameters, *self.states, **self.norm, **options)

    def back(self, saved, what="_backward", grads=None):
        """Return the gradients by name."""
        function = getattr(rnn, self.kind.name + what)
        gradients = function(*(grads or (self.dy, saved, *self.grads)))
        found = gradients._asdict()
        of_parameters = found.pop("parameters")._asdict()
        return found | {f"d{name}": value for name, value in of_parameters.items()}

    def run(self, **options):
        """Return all results of the forward and the backward function by name."""
        y, *states, saved = self.call("_forward", **options)
        named = dict(zip(self.kind.states, states, strict=True))
        return {"y": y} | named | self.back(saved)


def _is_there(value):
    return value is not None


def assert_same(found, expected, dtype):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert found[name] is None
        else:
            assert (found[name].host.dtype, found[name].host.shape) == (dtype, value.shape), name
            # float32 roundings grow on the way back through the steps.
            if value.size:
                assert_close(found[name].host, value, dtype, name, 5 if name[0] == "d" else 1)


def check_cell(kind, take, **form):
    """Check both passes of a single step against a sequence of one step on the host."""
    case = Case(kind, **form, time=1)
    expected = case.run()
    case = case.to(take, "float32")
    dh = take(case.grads[0].host + case.dy.host[0])
    case.x = take(case.x.host[0])
    *states, saved = case.call("_cell_forward")
    found = dict(zip(kind.states, states, strict=True)) | {"y": states[0]}
    found |= case.back(saved, "_cell_backward", (dh, saved, *case.grads[1:]))
    expected |= {"y": expected["h"], "dx": expected["dx"][0]}
    assert_same(found, expected, "float32")
    again = case.call("_cell")
    for one, other in zip(again if isinstance(again, tuple) else [again], states, strict=True):
        assert one.host.tobytes() == other.host.tobytes()


def check_half_precision(kind, take, dtype, **form):
    """Check all results of "float16" or "bfloat16" arrays against those of wider ones."""
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    case = Case(kind, **form)
    found = case.to(take, dtype).run(lengths=LENGTHS)
    same = case.to(lambda a: a.astype(np.float64), dtype)
    same.parameters = case.to(np.asarray, dtype).parameters
    # Half a unit in the last place, of either, and roundings of float32 that cross it.
    bound = 1.01 * float(ml_dtypes.finfo(dtype).eps)
    for name, value in same.run(lengths=LENGTHS).items():
        got = found[name].host
        assert got.dtype == dtype
        wide = np.asarray(value).astype(np.float64)
        np.testing.assert_allclose(got.astype(np.float64), wide, bound, 1e-5, err_msg=name)
