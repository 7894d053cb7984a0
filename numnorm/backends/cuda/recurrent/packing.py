"""Parameters of recurrent cells on a device that are packed once for many calls."""

import dataclasses
from typing import Any

from numnorm.backends.cuda.arrays.device_array import DeviceArray, as_companion, as_float_array
from numnorm.backends.cuda.arrays.gather_rows import gather_rows
from numnorm.backends.cuda.arrays.launch import on_device_of
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, compute_element_type


def packed_like(beside: DeviceArray, dtype: Any) -> DeviceArray:
    """Return the array `beside` with the compute dtype of an x of a NumPy dtype."""
    element = compute_element_type(ELEMENT_TYPES[dtype.name])
    if element.name == "float64" != beside.lib.statistic_name("float64"):
        raise TypeError(f"dtype must not be float64, of which there is no {beside.lib.label} now")
    return dataclasses.replace(beside, element=element)


def copied_parameter(name: str, value: Any, x: DeviceArray) -> Any:
    """Return a copy of a parameter, in its own library and dtype."""
    given = as_companion(name, value, x)
    with on_device_of(x):
        source = dataclasses.replace(given, array=x.lib.contiguous(given.array))
        return gather_rows(source, given.element, given.shape)


def check_packed(parameter: Any, x: DeviceArray) -> None:
    """Raise unless a packed parameter is in the library and on the device of x."""
    packed = as_float_array("parameters", parameter)
    wanted, got = (f"a {a.lib.label} on device {a.device}" for a in (x, packed))
    if wanted != got:
        raise TypeError(f"parameters must be packed for {wanted}, as x is, got those for {got}")
    as_companion("parameters", parameter, x)  # its other checks, e.g. of streams
