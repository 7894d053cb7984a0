"""Dask: `quantile` of its arrays, and `percentile`, which merges those of chunks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da

from ...arrays import in_chunks
from ...cases import Case, Q
from .. import Call

PACKAGES = ("dask", "numpy")

# A graph for each column.
MOST_COLUMNS = 10


def start(threads: int) -> None:
    """Set the number of threads of its scheduler."""
    dask.config.set(num_workers=threads)


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return what makes the graph and computes it."""
    if case.norm == "quantiles_dask":
        function = _quantiles
    elif case.norm == "quantiles_error" and case.shape[1] <= MOST_COLUMNS:
        function = _merged
    else:
        return None
    x = in_chunks(arrays.x)
    return Call(lambda: function(x).compute(), lambda q: [q])


def _quantiles(x: Any) -> Any:
    return da.quantile(x.rechunk((-1, "auto")), Q, axis=0)


def _merged(x: Any) -> Any:
    percents = [100 * q for q in Q]
    return da.stack([da.percentile(column, percents) for column in x.T], axis=1)
