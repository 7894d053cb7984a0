"""All norms: what every place in which numnorm offers them is made from."""

from numnorm.norms import (
    ada,
    batch,
    emsc,
    exponential,
    group,
    instance,
    layer,
    moving,
    moving_robust,
    pcen,
    rms,
    robust,
    standard,
    weight,
)
from numnorm.norms.spec import NormSpec

SPECS: tuple[NormSpec, ...] = (
    layer.SPEC,
    rms.SPEC,
    ada.SPEC,
    standard.SPEC,
    weight.SPEC,
    group.SPEC,
    instance.SPEC,
    batch.SPEC,
    moving.SPEC,
    moving_robust.SPEC,
    exponential.SPEC,
    emsc.SPEC,
    pcen.SPEC,
    robust.SPEC,
)

BY_NAME = {spec.name: spec for spec in SPECS}

# Without steps: none of them takes lazy arrays.
BY_FUNCTION = {
    function: spec for spec in SPECS for function in (spec.function, spec.forward, spec.backward)
}
