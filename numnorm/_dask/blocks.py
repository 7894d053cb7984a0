"""Calls of numnorm for each block of lazy arrays.

Inside this package every array has as many axes as x, with length 1 where it does not vary, so that
blocks meet by their position. Block functions are functions of a module and their options are
plain, so that Dask gives the same block the same name in every process. They may return a tuple:
a grid of blocks that each hold one Python object is then an array of objects, from which `take`
makes one lazy array for each member.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from numnorm.threads import num_threads

Chunks = tuple[tuple[int, ...], ...]

# The most blocks whose objects are gathered at once, and the most steps in which that is done.
_GATHERED = 16
_STEPS = 32


def each_block(
    function: Callable[..., Any], x: Any, *others: Any, dtype: Any, chunks: Chunks, **options: Any
) -> Any:
    """Return a lazy array of what a function returns for each block of the arrays.

    Parameters
    ----------
    function : callable
        ``function(x, *others, **options)`` of arrays in memory.
    x : lazy array
        It gives the grid of blocks.
    *others : lazy array
        With as many axes as x, and along each axis as many blocks as x, or one.
    dtype : dtype
        That of the result.
    chunks : tuple
        Those of the result.
    **options
        Arguments of the function that are the same for all blocks.
    """
    meta = np.empty((0,) * len(chunks), dtype)
    known = {"dtype": dtype, "chunks": chunks, "meta": meta}
    return x.map_blocks(numnorm_block, *others, function=function, options=options, **known)


def read_again(x: Any) -> Any:
    """Return x by a graph of its own if its blocks come straight from storage; otherwise x itself.

    Dask keeps a block until its last use. In a pass before the one that makes the result, an array
    that is larger than the memory of all workers is better read than kept.
    """
    layers = dict(getattr(getattr(x, "dask", None), "layers", {}))
    blocks, store = layers.pop(getattr(x, "name", None), None), [*layers.values()]
    if type(blocks).__name__ != "Blockwise" or len(store) > 1 or any(len(one) > 1 for one in store):
        return x
    return importlib.import_module("dask.graph_manipulation").clone(x, seed="read again")


def each_object(function: Callable[..., Any], x: Any, *others: Any, **options: Any) -> Any:
    """Return a lazy array with one object for each block: what the function returns for it."""
    chunks = tuple((1,) * count for count in x.numblocks)
    return each_block(_as_object, x, *others, dtype=object, chunks=chunks, of=function, **options)


def emptied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays without elements, of the same dtypes and numbers of axes; None stays None.

    A public function takes them to check its options, and returns the dtypes of its results.
    """
    return {
        name: array if array is None else np.empty((0,) * array.ndim, array.dtype)
        for name, array in arrays.items()
    }


def take(objects: Any, member: int, *, dtype: Any, chunks: Chunks) -> Any:
    """Return the lazy array of one member of each tuple in `objects`."""
    return each_block(_member, objects, dtype=dtype, chunks=chunks, member=member)


def block_sum(objects: Any, member: int, chunks: Chunks, axes: Sequence[int]) -> Any:
    """Return the float64 sum of one member of each tuple over the blocks along some axes.

    Parameters
    ----------
    objects : lazy array
        As `each_object` returns it; the member has length 1 along `axes`.
    member : int
    chunks : tuple
        Those of x.
    axes : sequence of int
    """
    each = tuple((1,) * len(c) if axis in axes else c for axis, c in enumerate(chunks))
    parts = take(objects, member, dtype=np.dtype(np.float64), chunks=each)
    divided = tuple(axis for axis in axes if len(chunks[axis]) > 1)
    return parts.sum(axis=divided, keepdims=True, dtype=np.float64) if divided else parts


def rounded(array: Any, dtype: Any) -> Any:
    """Return a lazy array in a dtype whose range a sum may leave."""
    if array.dtype == dtype:
        return array
    return each_block(_rounded, array, dtype=dtype, chunks=array.chunks, to=dtype)


def in_order(
    objects: Any, axes: Sequence[int], fold: Callable[[list[Any]], Any], start: Any = None
) -> Any:
    """Combine objects along axes in the order of their blocks, and so always to the same bytes.

    Parameters
    ----------
    objects : lazy array
        As `each_object` returns it.
    axes : sequence of int
        Where all blocks become one: first along the last of them, and along the first at last.
    fold : callable
        It makes one object of a list; some objects of the list may be ones that it made before.
    start : lazy array, optional
        The first object, before all blocks.
    """
    for axis in axes[:0:-1]:
        # The objects of one block stay as they are, to be folded along another axis.
        if objects.shape[axis] > 1:
            objects = _in_order(objects, axis, fold, None)
    if axes:
        return _in_order(objects, axes[0], fold, start)
    return _next(objects, start, fold)


def _in_order(objects: Any, axis: int, fold: Callable[[list[Any]], Any], total: Any) -> Any:
    count = objects.shape[axis]
    step = max(_GATHERED, -(-count // _STEPS))
    for start in range(0, count, step):
        chosen = *(slice(None),) * axis, slice(start, start + step)
        total = _next(objects.blocks[chosen].rechunk({axis: -1}), total, fold)
    return total


def _next(objects: Any, total: Any, fold: Callable[[list[Any]], Any]) -> Any:
    """Return the total after the objects of each block."""
    given = (objects,) if total is None else (objects, total)
    chunks = tuple((1,) * count for count in objects.numblocks)
    # Dask fuses a block's function with all that follow it, so that each block of the result would
    # fold again. It does not fuse beyond `blocks`.
    return each_block(_folded, *given, dtype=object, chunks=chunks, fold=fold).blocks[...]


def numnorm_block(*blocks: Any, function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Call a function on one thread: Dask's own threads are the only ones.

    Tasks are named after this function.
    """
    with num_threads(1):
        return function(*blocks, **options)


def only(objects: Any) -> Any:
    """Return the one entry of a block."""
    return objects[(0,) * objects.ndim]


def _as_object(x: Any, *others: Any, of: Callable[..., Any], **options: Any) -> Any:
    result = np.empty((1,) * x.ndim, object)
    result[(0,) * x.ndim] = of(x, *others, **options)
    return result


def _rounded(array: Any, to: Any) -> Any:
    with np.errstate(all="ignore"):
        return array.astype(to)


def _member(objects: Any, member: int) -> Any:
    return only(objects)[member]


def _folded(part: Any, total: Any = None, *, fold: Callable[[list[Any]], Any]) -> Any:
    before = [] if total is None else [only(total)]
    result = np.empty((1,) * part.ndim, object)
    result[(0,) * part.ndim] = fold([*before, *part.ravel()])
    return result
