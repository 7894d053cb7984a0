"""Measures one case: checks each contestant, then times them in turn, round after round."""

from __future__ import annotations

import statistics
from typing import Any

from .agreement import disagreement, expected
from .arrays import arrays_of
from .cases import Case
from .contestants import OWN, UNCHECKED, Call, Maker, reason
from .devices import Device
from .sequences import SequenceCase

Failures = dict[str, dict[str, str]]


def measured(
    device: Device, case: Case | SequenceCase, rounds: int, contestants: dict[str, Maker]
) -> dict[str, Any]:
    """Return the times of all contestants for a case, and which were wrong or failed."""
    ready, failures = _checked(device, case, contestants)
    for call in ready.values():
        device.seconds(call, case.launches)  # warms up the caches and the allocator
    times: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, call in ready.items():
            times[name].append(device.seconds(call, case.launches))
    seconds = {name: statistics.median(samples) for name, samples in times.items()}
    host = device.host_seconds(ready[OWN], 10 * case.launches) if OWN in ready else None
    results = {"seconds": seconds, "host_seconds": host, "failures": failures}
    return {**case._asdict(), **results}


def _checked(
    device: Device, case: Case | SequenceCase, contestants: dict[str, Maker]
) -> tuple[dict[str, Call], Failures]:
    """Return the calls with correct results, and why others are missing."""
    arrays = arrays_of(device, case)
    wanted = expected(device, case, arrays)
    ready: dict[str, Call] = {}
    failures: Failures = {}
    for name, make in contestants.items():
        try:
            call = make(case, arrays)
            fault = None if call is None else _fault(device, case, name, call, wanted)
        except Exception as error:  # any error of a library is a result
            failures[name] = {"status": "failed", "detail": reason(error)}
            continue
        if fault is not None:
            failures[name] = {"status": "wrong", "detail": fault}
        elif call is not None:
            ready[name] = call
    return ready, failures


def _fault(
    device: Device, case: Case | SequenceCase, name: str, call: Call, wanted: list[Any]
) -> str | None:
    result = call.run()
    if call.wait is not None:
        call.wait(result)
    return None if name in UNCHECKED else disagreement(device, case.dtype, result, wanted)
