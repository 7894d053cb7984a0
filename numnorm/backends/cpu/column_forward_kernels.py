"""Normalizing channels by given statistics."""

from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.column_reading import GROUP, make_is_wide
from numnorm.backends.cpu.column_runs import make_output_group, make_output_row
from numnorm.backends.cpu.jit import Twins, stand_alone, twins
from numnorm.backends.cpu.line_heads import make_head
from numnorm.backends.cpu.optional import part, present
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.cpu.streaming import after_stores, is_large, is_streamed


def make_forward_across(storage: Storage) -> Twins:
    """Return a kernel for ``x (outer, channels)``.

    It takes ``x``, the ``terms`` of `make_output_terms`, ``scaled``, which is None if every scale
    is 1, ``y`` and ``parts``.
    """
    output_row, output_group = make_output_row(storage), make_output_group(storage)
    is_wide, head_of = make_is_wide(storage), make_head(storage)

    def kernel(x, terms, scaled, y, parts, first, last):
        stand_alone()
        arrays, y, terms = (borrowed(x),), borrowed(y), borrowed(terms)
        rows = present(scaled, terms[0]), terms[1], terms[2], terms[3]
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        # Out of the third-level cache one row after the other is read faster than eight.
        in_groups = is_wide(x) and is_large(y)
        grouped = stop - (stop - start) % GROUP if in_groups else start
        streamed = is_streamed(y, y.shape[1], head_of(y, y.shape[1]))
        for i in range(start, grouped, GROUP):
            output_group(arrays, i, rows, y, streamed)
        for i in range(grouped, stop):
            output_row((arrays[0][i],), rows, y[i], streamed)
        after_stores(streamed)

    return twins(f"column_forward.across.{storage.name}", kernel)


def make_forward_along(storage: Storage) -> Twins:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    output_row, head_of = make_output_row(storage), make_head(storage)

    def kernel(x, terms, scaled, y, parts, first, last):
        stand_alone()
        x, y, terms = borrowed(x), borrowed(y), borrowed(terms)
        scale, high, factor, offset = present(scaled, terms[0]), terms[1], terms[2], terms[3]
        runs = x.shape[0] * x.shape[1]
        streamed = is_streamed(y, y.shape[2], head_of(y, y.shape[2]))
        for t in range(first * runs // parts, last * runs // parts):
            i, c = t // x.shape[1], t % x.shape[1]
            here = part(scale, c), high[c], factor[c], offset[c]
            output_row((x[i, c],), here, y[i, c], streamed)
        after_stores(streamed)

    return twins(f"column_forward.along.{storage.name}", kernel)
