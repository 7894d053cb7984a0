"""What compiles calls of the norms: kernels, or else the interpreter."""

from collections.abc import Callable
from typing import Any

from numnorm._numba import columns, interpreter, rows
from numnorm._numba.arguments import is_default, is_none, value_of
from numnorm.norms import batch
from numnorm.norms.spec import COUNTING, RUNNING_OPTIONS, NormSpec

# The options that `rows` understands.
_OPTIONS = {"axis", "channel_axis", "groups", "eps", "eps_in", "ddof", "scale", "k"}
_OPTIONS |= {"detach", "detach_factor", "out", *RUNNING_OPTIONS, *COUNTING}


def make(spec: NormSpec, function: Callable[..., Any], kinds: dict[str, Any]) -> Callable[..., Any]:
    """Return what compiles a call of a function of a norm with arguments of these types."""
    takes_all = all(is_default(name, kinds.get(name)) for name in COUNTING)
    if takes_all and function is not spec.step:
        if spec is batch.SPEC:
            centred = value_of(kinds.get("with_mean", True)) is True
            if centred and is_none(kinds.get("clip")):
                return columns.make(spec, function, kinds)
            return interpreter.make(spec, function, kinds)
        if _has_kernels(spec, kinds):
            return rows.make(spec, function, kinds)
    return interpreter.make(spec, function, kinds)


def _has_kernels(spec: NormSpec, kinds: dict[str, Any]) -> bool:
    """Return whether compiled code calls the kernels of rows for arguments of these types."""
    arrays = {"dy", "x", *spec.saved, *spec.parameters, *spec.updates}
    if spec.norm is None or not _OPTIONS | arrays >= set(kinds):
        return False
    if spec.norm.parameters == 0 and "k" not in kinds:
        return False
    keeps_statistics = not all(is_none(kinds.get(name)) for name in spec.updates)
    return not keeps_statistics and value_of(kinds.get("training", True)) is True
