"""Calls of public functions that compiled code leaves to the interpreter.

It takes the lock of the interpreter, turns the arguments into objects of Python, calls the public
function, and takes the arrays of its results. A block ``with numba.objmode`` does the same, but
compiles a function for it, and cannot stand in a function that `helper` compiles.
"""

import typing
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, errors
from numba.extending import intrinsic

from numnorm._numba.arguments import check_out, is_default, is_none, real_of, value_of, wrong
from numnorm._numba.arrays import array_kind, types
from numnorm._numba.signatures import compiled_call
from numnorm.backends.contract.moving import ExponentialState, MovingState
from numnorm.norms.spec import COUNTING, NormSpec

_ENTERED = numba.njit(
    error_model="python", forceinline=True, no_cfunc_wrapper=True, no_cpython_wrapper=True
)
_FLOAT64 = np.float64


def make(spec: NormSpec, function: Callable[..., Any], kinds: dict[str, Any]) -> Callable[..., Any]:
    """Return what compiles a call that the interpreter executes, with arguments of these types."""
    kind_of = _kind_of_step if function is spec.step else _kind_of_results
    result = kind_of(spec, function, kinds)
    enter = _make_enter(function, tuple(kinds), result)

    @_ENTERED
    def run(arguments):
        return enter(arguments)

    return compiled_call(function, f"_run(({', '.join(kinds)},))", _run=run)


def called(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """Return the results of a public function; all arrays but `out` are C-contiguous."""
    results, out = function(**arguments), arguments.get("out")

    def ordered(result: Any) -> Any:
        if isinstance(result, tuple):
            members = map(ordered, result)
            return result._make(members) if hasattr(result, "_make") else tuple(members)
        is_array = isinstance(result, np.ndarray) and result is not out
        return np.asarray(result, order="C") if is_array else result

    return ordered(results)


def _make_enter(function: Callable[..., Any], names: tuple[str, ...], result: Any) -> Any:
    """Return a compiled ``enter(arguments)``: `called` with a tuple of the arguments by name."""

    def global_of(api, context, builder, value):
        name = context.insert_const_string(builder.module, value.__module__)
        module = api.import_module(name)
        found = api.object_getattr_string(module, value.__name__)
        api.decref(module)
        return found

    @intrinsic
    def enter(typing_context, arguments):
        def generate(context, builder, signature, values):
            api = context.get_python_api(builder)
            lock, environment = api.gil_ensure(), context.get_env_manager(builder)
            passed = api.dict_new()
            members = cgutils.unpack_tuple(builder, values[0])
            for argument, kind, member in zip(names, arguments, members, strict=True):
                plain = types.unliteral(kind)
                value = context.cast(builder, member, kind, plain)
                context.nrt.incref(builder, plain, value)
                boxed = api.from_native_value(plain, value, environment)
                api.dict_setitem_string(passed, argument, boxed)
                api.decref(boxed)
            call, called_one = (global_of(api, context, builder, f) for f in (called, function))
            first = api.tuple_pack([called_one])
            found = api.call(call, first, passed)
            for used in (call, called_one, first, passed):
                api.decref(used)
            with builder.if_then(cgutils.is_null(builder, found), likely=False):
                api.gil_release(lock)
                context.call_conv.return_exc(builder)
            native = api.to_native_value(result, found)
            api.decref(found)
            if native.cleanup is not None:
                native.cleanup()
            api.gil_release(lock)
            with builder.if_then(native.is_error, likely=False):
                context.call_conv.return_exc(builder)
            return native.value

        return result(arguments), generate

    return enter


# The types of results


def _kind_of_x(kinds: dict[str, Any]) -> Any:
    """Return the type of a result of the shape of x, which may be `out`."""
    real = real_of("x", kinds["x"])
    check_out(kinds["out"], kinds["x"], real)
    return array_kind(real, kinds["x"].ndim) if is_none(kinds["out"]) else kinds["out"]


def _kind_of_results(spec: NormSpec, function: Callable[..., Any], kinds: dict[str, Any]) -> Any:
    """Return the type of the results of a pass: an array, or a named tuple of arrays."""
    declared = typing.get_type_hints(function)["return"]
    group = typing.get_origin(declared)
    if group is None:
        return _kind_of_x(kinds)
    if function is spec.forward:  # y, and the statistics
        statistic = array_kind(_FLOAT64, _statistic_ndim(spec, kinds))
        members = [_kind_of_x(kinds), *[statistic] * len(spec.saved)]
    else:
        members = [_kind_of_field(spec, field, kinds) for field in group._fields]
    return types.BaseTuple.from_types(tuple(members), group)


def _kind_of_field(spec: NormSpec, field: str, kinds: dict[str, Any]) -> Any:
    if field == "dx":
        return _kind_of_x(kinds)
    name = field.removeprefix("d")
    if spec.broadcasts(name) and not isinstance(kinds[name], types.Array):
        return array_kind(_FLOAT64, 0)
    if name not in kinds:  # a bias, whose gradient is like that of the gain
        name = next(iter(spec.parameters))
    if not is_none(kinds[name]):
        return array_kind(real_of(name, kinds[name]), kinds[name].ndim)
    count = _axis_count(spec, kinds)
    ndim = kinds["x"].ndim - count if spec.parameters[name] == "others" else count
    return array_kind(real_of("x", kinds["x"]), ndim)


def _axis_count(spec: NormSpec, kinds: dict[str, Any]) -> int:
    """Return the number of axes by which the norm is called."""
    axis = value_of(kinds[spec.axis])
    if isinstance(axis, tuple | types.BaseTuple):
        return len(axis)
    if not isinstance(axis, int | types.Integer):
        raise wrong(spec.axis, "an int or a tuple of ints in compiled code", axis)
    return 1


def _statistic_ndim(spec: NormSpec, kinds: dict[str, Any]) -> int:
    """Return the number of axes of the saved statistics."""
    if spec.family == "rows":
        return int(kinds["x"].ndim) - _axis_count(spec, kinds)
    if spec.family in ("windows", "decay"):
        return int(kinds["x"].ndim)
    if spec.family == "channels":
        labels = kinds.get("labels")
        if isinstance(labels, types.Optional):
            raise wrong("labels", "always given or always None in compiled code", labels)
        return _axis_count(spec, kinds) + (not is_none(labels))
    training = value_of(kinds.get("training", True))
    if not isinstance(training, bool):
        raise wrong("training", "a literal in compiled code", training)
    return 2 if training else 1


def _kind_of_step(spec: NormSpec, function: Callable[..., Any], kinds: dict[str, Any]) -> Any:
    """Return the type of the results of a step of a stream: an array and the new state."""
    for name in (*COUNTING, "times"):
        if not is_default(name, kinds.get(name)):
            raise wrong(name, "left out of steps in compiled code", kinds[name])
    _, group = typing.get_args(typing.get_type_hints(function)["return"])
    ndim = kinds["x"].ndim
    statistic, values = array_kind(_FLOAT64, ndim - 1), array_kind(real_of("x", kinds["x"]), ndim)
    members = {
        MovingState: (types.int64, values, *(types.none,) * 4),
        ExponentialState: (types.float64, statistic, statistic, statistic, types.none),
    }
    if group not in members:
        raise errors.UnsupportedError(f"numnorm.{function.__name__} is not compiled")
    new = types.BaseTuple.from_types(members[group], group)
    state = kinds["state"]
    state = state.type if isinstance(state, types.Optional) else state
    # After missing values a state has arrays in the place of numbers and of None.
    if not is_none(state) and _axes_of(state) != _axes_of(new):
        raise wrong("state", "a state of steps without missing values in compiled code", state)
    return types.Tuple((_kind_of_x(kinds), new))


def _axes_of(state: Any) -> list[int | None]:
    """Return the number of axes of each member of a named tuple; None for numbers and for None."""
    return [getattr(member, "ndim", None) for member in state]
