"""The declaration of each cell: what it says of its functions and of its parameters."""

import inspect
import pickle

import pytest

from numnorm import rnn
from numnorm.rnn.cells import CELLS
from numnorm.rnn.parameters import KINDS


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_the_declaration_of_a_cell_says_what_its_functions_take(cell):
    kind = cell.kind
    for function in cell[1:]:
        assert getattr(rnn, function.__name__) is function
        assert function.__name__.startswith(kind.name)
    for function in (cell.call, cell.forward, cell.step, cell.step_forward):
        taken = inspect.signature(function).parameters
        names = ["x", "parameters", *kind.states, *kind.options, "eps"]
        assert list(taken)[: len(names)] == names
        for name, choices in kind.options.items():
            assert taken[name].default == choices[0]
    returned = inspect.signature(cell.forward).return_annotation
    assert returned._fields == ("y", *kind.states, "saved")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.parameters.__name__)
def test_the_declaration_of_a_cell_names_its_parameters(kind):
    weights = {"weight_x", "weight_h", "projection"} & set(kind.parameters._fields)
    assert set(kind.parameters._fields) == weights | set(kind.sizes)
    assert kind.sizes["bias"] == len(kind.gates)
    assert pickle.loads(pickle.dumps(kind)) is kind
