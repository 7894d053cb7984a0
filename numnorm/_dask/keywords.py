"""The keywords for missing values, weights and labels of a lazy call, and what they say of a block.

Blocks of the arrays of these keywords come after the other blocks of a block function, which gets
`BlockKeywords` to read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numnorm._dask.parameters import along, as_divided
from numnorm.array_likes import library_of
from numnorm.norms.labels import axis_of_samples, checked_labels
from numnorm.norms.weighted import Axes, check_broadcasts, checked_counting, fills, of_rows

OF_ELEMENTS = ("where", "weights")


class Counted(NamedTuple):
    """A block of x, and which of its elements count, and how much.

    Attributes
    ----------
    x : array
        In a float dtype.
    keep : array of bool or None
        Of the shape of x.
    weights : array of float64 or None
        Of the shape of x, 0 for what is left out.
    codes : array of int or None
        The number of the label of each sample.
    """

    x: Any
    keep: Any = None
    weights: Any = None
    codes: Any = None

    @property
    def share(self) -> Any:
        """How much each element counts; None if all count once and there are no labels."""
        if self.weights is not None:
            return self.weights
        if self.keep is not None:
            return self.keep.astype(np.float64)
        return None if self.codes is None else np.broadcast_to(1.0, self.x.shape)


class BlockKeywords(NamedTuple):
    """What a block function must know to read the keywords' arrays.

    All are plain values, so that a task has the same token in every process.

    Attributes
    ----------
    names : tuple of str
        The keywords of the arrays; "labels" for the numbers of labels.
    policy : str
    fill : float or None
    scaled : bool
        Whether no result depends on the scale of the weights, but by `ddof`.
    """

    names: tuple[str, ...] = ()
    policy: Any = "propagate"
    fill: Any = None
    scaled: bool = True

    def of_block(self, x: Any, arrays: Sequence[Any]) -> Counted:
        """Return what counts in a block."""
        if not (self.names or self.policy != "propagate"):
            return Counted(x)
        given = dict(zip(self.names, arrays, strict=True))
        codes = given.pop("labels", None)
        where, weights = given.get("where"), given.get("weights")
        x, counting = checked_counting(of_rows, x, -1, where, weights, self.policy)
        keep, weights = counting.where, counting.weights
        if counting.omit:
            present = ~np.isnan(x)
            keep = present if keep is None else keep & present
        if keep is not None:
            keep = np.broadcast_to(keep, x.shape)
        if weights is not None:
            weights = np.broadcast_to(weights if keep is None else weights * keep, x.shape)
        return Counted(x, keep, weights, None if codes is None else codes.reshape(-1))

    def public(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of a public function for a block."""
        given = dict(zip(self.names, arrays, strict=True))
        if "labels" in given:
            given["labels"] = given["labels"].reshape(-1)
        fill = {} if self.fill is None else {"fill": self.fill}
        return {"nan_policy": self.policy, **fill, **given}

    def filled(self, y: Any, x: Any, arrays: Sequence[Any]) -> Any:
        """Return the result of a block, with fill values where elements are left out."""
        fill, fill_missing = fills(self.fill)
        where = dict(zip(self.names, arrays, strict=True)).get("where")
        with np.errstate(all="ignore"):
            if self.policy == "omit":
                y = np.where(np.isnan(x), y.dtype.type(fill_missing), y)
            return y if where is None else np.where(where == 1, y, y.dtype.type(fill))


class Keywords(NamedTuple):
    """The keywords of a lazy call.

    Attributes
    ----------
    arrays : dict
        Lazy arrays by keyword, with as many axes as x and divided as x; along an axis in which
        they broadcast they have length 1.
    in_block : BlockKeywords
    """

    arrays: Mapping[str, Any]
    in_block: BlockKeywords

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of public functions that are no arrays."""
        return self.in_block._replace(names=()).public(())

    @property
    def elements(self) -> dict[str, Any]:
        """The arrays with a value for each element."""
        return {name: array for name, array in self.arrays.items() if name != "labels"}

    def with_codes(self, codes: Any) -> Keywords:
        """Return these keywords with an array that has the number of each sample's label."""
        names = *self.in_block.names, "labels"
        return Keywords({**self.arrays, "labels": codes}, self.in_block._replace(names=names))


def elements_of(counting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords with a value for each element."""
    return {name: counting[name] for name in OF_ELEMENTS if name in counting}


def keywords_of(
    x: Any, elements: Mapping[str, Any], counting: Mapping[str, Any], own: Axes, *, scaled: bool
) -> Keywords:
    """Return the keywords of a call.

    Parameters
    ----------
    x : lazy array
    elements : mapping
        Of `elements_of`, as lazy arrays.
    counting : mapping
        All keywords for missing values, as far as they are not their defaults.
    own : tuple of int
        The axes of weights that have none to broadcast in.
    scaled : bool
        As in `BlockKeywords`.
    """
    arrays = {}
    for name, array in elements.items():
        if name == "weights" and array.shape == tuple(x.shape[axis] for axis in own):
            array = along(array, own, x.ndim)
        check_broadcasts(name, array.shape, x.shape)
        wide = array[(None,) * (x.ndim - array.ndim)]
        arrays[name] = as_divided(wide, x.chunks)
    policy, fill = counting.get("nan_policy", "propagate"), counting.get("fill")
    return Keywords(arrays, BlockKeywords(tuple(arrays), policy, fill, scaled))


def codes_of(x: Any, channel_axis: Any, labels: Any) -> tuple[Any, Any]:
    """Return the sorted labels, and a lazy array of the number of each sample's label.

    Parameters
    ----------
    x : lazy array
    channel_axis : int or tuple of int
    labels : array
        In memory.
    """
    labels = checked_labels(labels)
    axis = axis_of_samples(labels.shape, x.shape, channel_axis)
    kinds, codes = np.unique(labels, return_inverse=True)
    codes = along(codes.reshape(-1), (axis,), x.ndim)
    chunks = tuple(c if a == axis else (1,) for a, c in enumerate(x.chunks))
    return kinds, library_of(x).from_array(codes, chunks=chunks)
