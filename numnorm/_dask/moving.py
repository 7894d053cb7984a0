"""Moving and exponential norm of lazy arrays, whose blocks along time need what is beside them."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numnorm._dask.blocks import (
    Chunks,
    block_sum,
    each_block,
    each_object,
    emptied,
    only,
    rounded,
    take,
)
from numnorm._dask.parameters import as_broadcast, as_divided, made_lazy
from numnorm.arguments import Shape, check_shape
from numnorm.array_likes import library_of
from numnorm.layouts import moving_layout
from numnorm.norms.moving import steps_around
from numnorm.norms.spec import NormSpec
from numnorm.norms.times import checked_times, window_bounds
from numnorm.norms.weighted import check_broadcasts

Arguments = Mapping[str, Any]
"""The arguments of a public function by keyword."""


class _Given(NamedTuple):
    """The arguments of a lazy call, and what its results are like.

    Attributes
    ----------
    arrays : dict
        The lazy arrays by keyword.
    axis : int
        The axis of time.
    options : mapping
        The other arguments.
    kind : type or None
        The type of several results.
    dtypes : tuple of dtype
        Those of the results.
    learned : tuple of shapes
        Of the parameters whose gradients are the last results.
    """

    arrays: dict[str, Any]
    axis: int
    options: Arguments
    kind: Any
    dtypes: tuple[Any, ...]
    learned: tuple[Shape, ...]

    def results(
        self, function: Callable[..., Any], blocks: Sequence[Any], divided: Chunks, call: _Call
    ) -> Any:
        """Return what a function of blocks makes of each block, in the chunks of x."""
        chunks = self.arrays["x"].chunks
        if self.kind is None:
            options = {"dtype": self.dtypes[0], "chunks": divided, "call": call}
            return each_block(function, *blocks, **options).rechunk(chunks)
        objects = each_object(function, *blocks, call=call)
        count = len(self.dtypes) - len(self.learned)
        members = enumerate(self.dtypes[:count])
        results = [take(objects, n, dtype=dtype, chunks=divided) for n, dtype in members]
        gradients = (
            _total(objects, count + n, divided, shape, self.dtypes[count + n])
            for n, shape in enumerate(self.learned)
        )
        return self.kind(*(result.rechunk(chunks) for result in results), *gradients)


class _Call(NamedTuple):
    """How a public function is called for a block and the steps beside it.

    Attributes
    ----------
    function : callable
        A public function of numnorm.
    names : tuple of str
        The keywords of the arrays.
    axis : int
        The axis of time.
    steps : int
        The number of all steps.
    backward : bool
        Whether it is a backward pass.
    options : mapping
        The other arguments.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    axis: int
    steps: int
    backward: bool
    options: Arguments

    def around(self, start: int, stop: int) -> tuple[int, int]:
        """Return the steps that a part needs."""
        window, center = self.options["window"], self.options["center"]
        return steps_around(start, stop, self.steps, window, center=center, backward=self.backward)


def call(
    spec: NormSpec,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    counting: dict[str, Any],
) -> Any:
    """Return the lazy result of a public function of a moving norm.

    Parameters
    ----------
    spec : NormSpec
    function : callable
        Its forward or its backward pass.
    arguments : dict
        All arguments, without the keywords for missing values.
    counting : dict
        These keywords, as far as they are not their defaults.
    """
    known = _checked(spec, function, {**arguments, **counting})
    if spec.family == "windows" and known.options.get("times") is not None:
        return _in_timed_windows(function, known, backward=spec.is_backward(function))
    if spec.family == "windows":
        return _in_windows(function, known, backward=spec.is_backward(function))
    if function is spec.function:
        return _in_order(spec, known)
    return _of_all_steps(function, known)


def _in_order(spec: NormSpec, given: _Given) -> Any:
    """Return a norm whose steps depend on all before them: block after block along time."""
    x, axis, options = given.arrays["x"], given.axis, dict(given.options)
    first = options.pop("initial", 0)
    chunks = *x.chunks[:axis], _first_at_least(x.chunks[axis], first), *x.chunks[axis + 1 :]
    divided = [as_divided(array, chunks) for array in given.arrays.values()]
    call = _Call(spec.function, tuple(given.arrays), axis, 0, False, options)
    results: list[Any] = []
    state: tuple[Any, ...] = ()
    for place, part in enumerate(_parts(chunks[axis])):
        call = call._replace(options=_at_times(options, part))
        number = *[slice(None)] * axis, slice(place, place + 1)
        parts = [a.blocks[number] if a.numblocks[axis] > 1 else a for a in divided]
        initial = 0 if place else first
        pairs = each_object(_step, *parts, *state, call=call, step=spec.step, initial=initial)
        # Dask would fuse a step with what follows it, and take it again for each block after it.
        pairs = pairs.blocks[...]
        results.append(take(pairs, 0, dtype=given.dtypes[0], chunks=parts[0].chunks))
        state = (each_object(_state, pairs).blocks[...],)
    return library_of(x).concatenate(results, axis=axis).rechunk(x.chunks)


def _in_windows(function: Callable[..., Any], given: _Given, *, backward: bool) -> Any:
    """Return a pass of a norm by windows."""
    x, axis = given.arrays["x"], given.axis
    steps, window = x.shape[axis], given.options["window"]
    # What a block needs beside its steps is in its neighbours then.
    reach = 2 * min(window, steps)
    divided = x.rechunk({axis: _at_least(x.chunks[axis], reach)})
    own = [array.rechunk(divided.chunks) for array in given.arrays.values()]
    call = _Call(function, tuple(given.arrays), axis, steps, backward, given.options)
    if divided.numblocks[axis] == 1:
        return given.results(_called, own, divided.chunks, call)
    around = [_shifted(array, axis, reach, by) for array in own for by in (-1, 1)]
    blocks = (*own, *around, _starts(divided, axis))
    return given.results(_of_block, blocks, divided.chunks, call)


def _in_timed_windows(function: Callable[..., Any], given: _Given, *, backward: bool) -> Any:
    """Return a pass of a norm by windows that last a duration.

    A block of a forward pass reads all steps in its windows. A block of gradients reads all
    windows with a step of the block.
    """
    x, axis, options = given.arrays["x"], given.axis, given.options
    times, closed, center = options["times"], options["closed"], options["center"]
    bounds = window_bounds(times, options["window"], closed, center=center)
    starts, stops = bounds.starts, bounds.stops
    lengths = _at_least(x.chunks[axis], int((stops - starts).max(initial=1)))
    results: list[list[Any]] = [[] for _ in given.dtypes]
    for part in _parts(lengths):
        first, last = part.start, part.stop
        if first < last:
            windows = first, last
            if backward:
                begin = np.searchsorted(stops, first, "right")
                windows = begin, np.searchsorted(starts, last - 1, "right")
            if windows[0] < windows[1]:
                first = int(min(first, windows[0], starts[windows[0]]))
                last = int(max(last, windows[1], stops[windows[1] - 1]))
        index = (*[slice(None)] * axis, slice(first, last))
        own = [array[index].rechunk({axis: -1}) for array in given.arrays.values()]
        around = own[0].chunks
        own = [array.rechunk(around) for array in own]
        own_options = _at_times(options, slice(first, last))
        call = _Call(function, tuple(given.arrays), axis, 0, backward, own_options)
        own_part = slice(part.start - first, part.stop - first)
        objects = each_object(_part_of, *own, call=call, part=own_part)
        chunks = (*around[:axis], (part.stop - part.start,), *around[axis + 1 :])
        for member, dtype in enumerate(given.dtypes):
            results[member].append(take(objects, member, dtype=dtype, chunks=chunks))
    library = library_of(x)
    joined = [library.concatenate(parts, axis=axis).rechunk(x.chunks) for parts in results]
    return joined[0] if given.kind is None else given.kind(*joined)


def _part_of(*arrays: Any, call: _Call, part: slice) -> tuple[Any, ...]:
    """Return the results of a part of the steps of a block."""
    results = _called(*arrays, call=call)
    results = results if isinstance(results, tuple) else (results,)
    return tuple(_steps_of(result, axis=call.axis, part=part) for result in results)


def _of_all_steps(function: Callable[..., Any], given: _Given) -> Any:
    """Return a pass that takes all steps at once, which become one block."""
    whole = given.arrays["x"].rechunk({given.axis: -1})
    blocks = tuple(as_divided(array, whole.chunks) for array in given.arrays.values())
    call = _Call(function, tuple(given.arrays), given.axis, 0, False, given.options)
    return given.results(_called, blocks, whole.chunks, call)


def _checked(spec: NormSpec, function: Callable[..., Any], arguments: Arguments) -> _Given:
    """Return the checked arguments of a public function.

    Wrong options and dtypes are errors of the call: it is made for arrays without elements.
    """
    options = {name: value for name, value in arguments.items() if name != "out"}
    where = options.pop("where", None)
    names = spec.arrays_of(function)
    learned = [name for name in names if name in spec.parameters and spec.is_backward(function)]
    shapes = tuple(np.shape(options[name]) for name in learned)
    numbers_only = {n for n in spec.parameters if isinstance(options.get(n), numbers.Real)}
    arrays = {name: options.pop(name) for name in names if name not in numbers_only}
    arrays = made_lazy(arrays if where is None else {**arrays, "where": where}, arguments["out"])
    shape: Shape = arrays["x"].shape
    options["axis"] = axis = moving_layout(shape, options["axis"]).axis
    if options.get("times") is not None:
        options["times"] = checked_times(options["times"], shape[axis])
    if where is not None:
        arrays["where"] = as_broadcast("where", arrays["where"], arrays["x"])
    parameters = {name: arrays.pop(name) for name in spec.parameters if name in arrays}
    for name, array in arrays.items():
        check_shape(name, array.shape, shape, "the shape of x")
    if not any(shape):  # Dask changes no chunks of an array whose lengths are all 0
        zeros = library_of(arrays["x"]).zeros
        arrays = {n: zeros(shape, dtype=a.dtype, chunks=shape) for n, a in arrays.items()}
    ones = {name: np.ones((1,) * len(shape), array.dtype) for name, array in parameters.items()}
    results = function(**emptied(arrays), **ones, **_at_times(options, slice(0)))
    several = isinstance(results, tuple)
    dtypes = tuple(result.dtype for result in (results if several else (results,)))
    for name, array in parameters.items():
        check_broadcasts(name, array.shape, shape)
        wide = array.astype(np.float64) if learned else array  # the terms of its gradient are, too
        arrays[name] = wide[(None,) * (len(shape) - array.ndim)]
    return _Given(arrays, axis, options, type(results) if several else None, dtypes, shapes)


def _parts(lengths: Sequence[int]) -> Iterator[slice]:
    """Yield the steps of each block."""
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length


def _at_times(options: Arguments, part: slice) -> dict[str, Any]:
    """Return options with the times of a part of the steps, if steps have times."""
    times = options.get("times")
    return {**options, "times": times[part]} if times is not None else dict(options)


def _at_least(lengths: Sequence[int], least: int) -> tuple[int, ...]:
    """Join neighbouring chunks until all but the last have at least `least` steps."""
    merged = [0]
    for length in lengths:
        if merged[-1] >= max(least, 1):
            merged.append(0)
        merged[-1] += length
    return tuple(merged)


def _first_at_least(lengths: Sequence[int], least: int) -> tuple[int, ...]:
    """Join the first chunk with the next ones until it has at least `least` steps."""
    first, *others = lengths
    while others and first < least:
        first += others.pop(0)
    return (first, *others)


def _shifted(x: Any, axis: int, count: int, by: int) -> Any:
    """Return a lazy array whose blocks are the ends of the blocks before (-1) or after (1) those.

    The first or the last block has no neighbour there. It gets another block,
    which nothing reads.
    """
    lengths = tuple(min(count, length) for length in x.chunks[axis])
    chunks = (*x.chunks[:axis], lengths, *x.chunks[axis + 1 :])
    part = slice(-count, None) if by < 0 else slice(count)
    ends = each_block(_steps_of, x, dtype=x.dtype, chunks=chunks, axis=axis, part=part)
    blocks, before = ends.blocks, (slice(None),) * axis
    if by < 0:
        parts = blocks[(*before, slice(1))], blocks[(*before, slice(None, -1))]
    else:
        parts = blocks[(*before, slice(1, None))], blocks[(*before, slice(-1, None))]
    return library_of(x).concatenate(parts, axis=axis)


def _starts(x: Any, axis: int) -> Any:
    """Return a lazy array with the number of the first step of each block."""
    lengths = x.chunks[axis]
    shape = [len(lengths) if a == axis else 1 for a in range(x.ndim)]
    starts = np.cumsum((0, *lengths[:-1])).reshape(shape)
    return library_of(x).from_array(starts, chunks=1)


def _steps_of(x: Any, *, axis: int, part: slice) -> Any:
    return x[(*[slice(None)] * axis, part)]


def _of_block(*blocks: Any, call: _Call) -> Any:
    """Return the results of a block, from its own steps and its neighbours'."""
    *arrays, starts = blocks
    count, axis = len(call.names), call.axis
    start, own = int(starts.ravel()[0]), arrays[:count]
    stop = start + own[0].shape[axis]
    first, last = call.around(start, stop)
    wider = {}
    for name, array, before, after in zip(
        call.names, own, arrays[count::2], arrays[count + 1 :: 2], strict=True
    ):
        parts = [array]
        if first < start:
            parts.insert(0, _steps_of(before, axis=axis, part=slice(first - start, None)))
        if last > stop:
            parts.append(_steps_of(after, axis=axis, part=slice(last - stop)))
        wider[name] = np.concatenate(parts, axis=axis) if len(parts) > 1 else array
    results = call.function(**wider, **call.options)
    part = slice(start - first, stop - first)
    if isinstance(results, tuple):
        return tuple(_steps_of(result, axis=axis, part=part) for result in results)
    return _steps_of(results, axis=axis, part=part)


def _called(*arrays: Any, call: _Call) -> Any:
    results = call.function(**dict(zip(call.names, arrays, strict=True)), **call.options)
    if isinstance(results, tuple):  # the gradient of a number has no axes
        return tuple(each.reshape(each.shape or (1,) * arrays[0].ndim) for each in results)
    return results


def _total(objects: Any, member: int, chunks: Chunks, shape: Shape, dtype: Any) -> Any:
    """Return the gradient of a parameter of a shape: the sum of the gradients of all blocks."""
    before = len(chunks) - len(shape)
    summed = [axis for axis, length in enumerate((1,) * before + shape) if length == 1]
    return rounded(block_sum(objects, member, chunks, summed), dtype)[(0,) * before]


def _step(*blocks: Any, call: _Call, step: Callable[..., Any], initial: int) -> tuple[Any, Any]:
    """Return y and the state of a block, whose first steps share the statistics of theirs."""
    count = len(call.names)
    arrays = dict(zip(call.names, blocks[:count], strict=True))
    state = [only(array) for array in blocks[count:]]
    y, after = step(**arrays, state=state[0] if state else None, **call.options)
    if initial:
        y = call.function(**arrays, initial=initial, **call.options)
    return y, after


def _state(pairs: Any) -> Any:
    return only(pairs)[1]
