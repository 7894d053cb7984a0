"""The moments of labels of samples: merged, and looked up by label."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numnorm.array_likes import as_plain_array
from numnorm.norms.moments import Moments


class GroupMoments(NamedTuple):
    """The labels of samples, sorted, and the moments of each.

    A label in brackets gives its `Moments`, and ``in`` says whether it is there. Where labels are
    no integers, a position in brackets gives a field, as of any named tuple.

    Attributes
    ----------
    labels : numpy.ndarray
        The labels, ``(G,)``.
    moments : Moments
        Its arrays have a first axis of labels: ``(G, C)``.

    Examples
    --------
    >>> import numnorm
    >>> speakers = numnorm.batch_moments([[1.0], [5.0], [3.0]], groups=["b", "a", "b"])
    >>> speakers.labels, speakers.moments.mean
    (array(['a', 'b'], dtype='<U1'), array([[5.],
           [2.]]))
    >>> speakers["b"].mean, speakers["b"].std()
    (array([2.]), array([1.]))
    >>> "c" in speakers
    False
    """

    labels: Any
    moments: Moments

    def __contains__(self, label: object) -> bool:
        return self._row(label) is not None

    def __getitem__(self, label: Any) -> Any:
        of_integers = np.asarray(self.labels).dtype.kind in "iu"
        if isinstance(label, slice) or (isinstance(label, int | np.integer) and not of_integers):
            return tuple.__getitem__(self, label)
        row = self._row(label)
        if row is None:
            raise KeyError(label)
        return Moments(*(field[row] for field in self.moments))

    def _row(self, label: Any) -> Any:
        """Return the row of a label; None if it is not there."""
        try:
            row, there = rows_of(self, np.asarray(label))
        except TypeError:  # a label of another type
            return None
        return row if there.ndim == 0 and there else None

    def merge(self, other: GroupMoments) -> GroupMoments:
        """Return the moments of all labels of both.

        Parameters
        ----------
        other : GroupMoments
            The moments of the same channels, of any labels of the same type.

        Returns
        -------
        GroupMoments

        Raises
        ------
        TypeError, ValueError
            If the labels are of another type than these, or if `Moments.merge` raises.

        Examples
        --------
        >>> import numnorm
        >>> here = numnorm.batch_moments([[1.0], [5.0]], groups=["b", "a"])
        >>> there = numnorm.batch_moments([[3.0]], groups=["b"])
        >>> here.merge(there).moments.mean.tolist()
        [[5.0], [2.0]]
        """
        if not isinstance(other, GroupMoments):
            raise TypeError(f"other must be GroupMoments, got {type(other).__name__}")
        _check_one_type(self.labels, other.labels)
        labels = np.unique(np.concatenate([self.labels, other.labels]))
        own, others = (_placed(part, labels) for part in (self, other))
        return GroupMoments(labels, own.merge(others))


def rows_of(moments: GroupMoments, labels: Any) -> tuple[Any, Any]:
    """Return the row of each label, and whether it is there; raise for labels of another type."""
    own = np.asarray(moments.labels)
    _check_one_type(own, labels)
    return np.searchsorted(own, labels), np.isin(labels, own)


def _check_one_type(own: Any, others: Any) -> None:
    """Raise unless two arrays of labels can be compared."""
    sides = own, others
    kinds = {"i" if side.dtype.kind == "u" else side.dtype.kind for side in sides}
    # Integers beyond int64 beside negative ones would become floats, of which some are equal.
    if len(kinds) > 1 or (kinds == {"i"} and np.result_type(*sides).kind == "f"):
        types = " and ".join(str(side.dtype) for side in sides)
        raise TypeError(f"labels must be of one type on both sides, got {types}")


def _placed(part: GroupMoments, labels: Any) -> Moments:
    """Return moments for each of the labels, of no values where a label is not there."""
    fields = []
    for field in part.moments:
        array = as_plain_array("moments", field)
        whole = np.zeros((len(labels), *array.shape[1:]))
        whole[np.searchsorted(labels, part.labels)] = array
        fields.append(whole)
    return Moments(*fields)
