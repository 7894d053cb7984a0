"""The limits that decide which way the CPU's kernels go, each named by what it decides.

They are speed alone, but for the few that say how sums are grouped, which rounds them. The
measurements that they come from are in ``docs/performance/log.md``.
"""

# Threads.
PARALLEL_LEAST_ELEMENTS = 1 << 15  # Smaller work is done before threads have started.
PARALLEL_WORKQUEUE_LEAST_ELEMENTS = 1 << 18  # The same for Numba's slowest threading layer.
PART_LEAST_ELEMENTS = 1 << 13  # A part of the work is worth the call.
PARTS_MOST = 256  # More parts than this balance no better.
SUMMED_PART_LEAST_ELEMENTS = 1 << 16  # A part with sums of its own is worth their memory.
SUMMED_PARTS_MOST = 32  # More parts than this have too many sums to add up.
SUMMED_PART_INPUTS_PER_SUM = 64  # The parts' sums stay small beside the input.
FAST_PATH_MOST_ELEMENTS = 1 << 20  # Larger calls gain too little from the fast path.

# Memory.
PLACE_LEAST_BYTES = 1 << 19  # Smaller outputs are in cache, wherever they lie.
PEEL_LEAST_ROW_BYTES = 1 << 10  # Loops over shorter rows do not begin at cache lines.
DX_AT_LINE_MOST_ROW_BYTES = 1 << 11  # With wider rows dx begins as far into a line as x.
NONTEMPORAL_LEAST_BYTES = 12 << 20  # Smaller results stay in cache for their reader.
NONTEMPORAL_GRADIENT_LEAST_BYTES = 6 << 20  # A gradient displaces two inputs, not one.
LARGE_L1D_LEAST_KIB = 48  # Smaller first-level caches have no room for prefetched rows.

# Rows.
SUM_BLOCK_ELEMENTS = 2048  # Longer sums continue in float64, so that float32 stays exact enough.
FORWARD_TILE_MOST_ROW_BYTES = 1 << 10  # Wider rows are not taken in tiles.
FORWARD_TILE_HALF_MOST_ROW_BYTES = 2 << 10  # The same for elements of two bytes.
PAIR_BELOW_BYTES = 5 << 20  # Larger results leave the cache, and pairs gain nothing.
BACKWARD_TILE_BELOW_ROW_BYTES = 256  # Wider rows, in the working type, are not taken in tiles.
PREFETCH_LEAST_ROW_BYTES = 6 << 10  # Wider rows outrun the processor's own prefetches.

# Columns.
GROUP_ROWS = 4  # More rows at once evict each other from the first-level cache.
GROUP_LEAST_ROW_BYTES = 1 << 12  # Several narrower rows lie in one page.
PART_LEAST_GROUPS = 8  # Few rows of a part are left for the slower loop.
PIVOT_ROWS = 16  # With fewer rows too many pivots are poor.
COLUMN_TILE_ELEMENTS = 512  # A multiple of every number of lanes.
COLUMN_TILE_PEEL_LEAST_ROW_BYTES = 1 << 11  # Tiles of narrower rows do not begin at lines.
GRADIENT_TILE_MOST_BYTES = 1 << 12  # Such a row, its terms and sums fit a large first-level cache.
GRADIENT_ROW_ALONE_LEAST_BYTES = 1 << 11  # Narrower rows are added to their sums in groups.

# Matrix products.
MATMUL_BLOCK_ROWS = 480  # These rows stay in cache while every panel passes.
MATMUL_PART_LEAST_ROWS = 48  # A part has rows for a few of the largest tiles.
MATMUL_PARTS_MOST = 64  # More parts than this balance no better.
