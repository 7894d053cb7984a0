"""The new state of a plain recurrent network, which both passes compute."""

from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import RNNSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.cell_norm import make_normalized
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_activation
from numnorm.backends.cpu.simd.element_type import ElementType


def make_state(
    spec: RNNSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``state(z, parameters, statistics, j, tail)``, without zoneout."""
    read, normalized = access.read, make_normalized(spec.norm, element_type, access)
    activation = make_activation(spec.rectified, element_type.compute_type)

    @inlined
    def state(z, parameters, statistics, j, tail):
        value = normalized(z, statistics, parameters.gamma_h, parameters.beta_h, j, tail)
        return activation(value + read(parameters.offset, j, tail))

    return state
