"""All norms: what every place in which numnorm offers them is made from."""

from numnorm.norms import (
    ada,
    batch,
    exponential,
    group,
    instance,
    layer,
    moving,
    pcen,
    rms,
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
    exponential.SPEC,
    pcen.SPEC,
)

BY_NAME = {spec.name: spec for spec in SPECS}

BY_FUNCTION = {
    function: spec for spec in SPECS for function in (spec.function, spec.forward, spec.backward)
}
