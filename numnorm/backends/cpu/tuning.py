"""The thresholds of the CPU kernels, each named by what it decides.

They only affect speed, except the ones that say how sums are grouped: those affect rounding. The
measurements behind them are in ``docs/performance/log``.
"""

# Threads. Work is in bytes that a call reads and writes, or that take as long.
PARALLEL_LEAST_WORK = 10 << 20  # Threads gain too little for smaller work.
PARALLEL_WORKQUEUE_LEAST_WORK = 64 << 20  # The same for workqueue, the slowest layer.
PARALLEL_TIMED_BELOW_WORK = 1 << 29  # Larger calls are long beside a time slice of the scheduler.
PARALLEL_SAVED_MOST_NS = 10_000_000  # Parallel calls may lose this much before they stop.
PARALLEL_RETRY = 64  # The other way is tried after this multiple of the time it may take.
PARALLEL_RETRY_MOST_NS = 2_000_000_000  # A call that compiles does not postpone this further.
PART_LEAST_ELEMENTS = 1 << 13  # Smaller parts are not worth a call.
PARTS_MOST = 256  # More parts do not balance the load better.
SUMMED_PART_LEAST_ELEMENTS = 1 << 16  # Smaller parts are not worth sums of their own.
SUMMED_PARTS_MOST = 32  # More parts have too many sums to add up.
SUMMED_PART_INPUTS_PER_SUM = 64  # Keeps the sums of all parts small beside the input.

# Memory.
PLACE_LEAST_ELEMENTS = 1 << 15  # Placing smaller outputs takes longer than it saves.
PLACE_LEAST_BYTES = 1 << 19  # Smaller outputs are in cache, wherever they lie.
PEEL_LEAST_ROW_BYTES = 1 << 10  # Loops over shorter rows do not peel to a cache line.
DX_AT_LINE_MOST_ROW_BYTES = 1 << 11  # Above this, dx gets the same alignment as x.
NONTEMPORAL_LEAST_BYTES = 12 << 20  # Smaller results stay in cache for their reader.
NONTEMPORAL_GRADIENT_LEAST_BYTES = 6 << 20  # A gradient evicts two inputs, not one.
LARGE_L1D_LEAST_KIB = 48  # Smaller first-level caches have no room for prefetched rows.

# Sums over rows.
ROWS_BETWEEN_FLUSHES = 32  # Longer float32 sums lose their last bits.
BROADCAST_BLOCK_ELEMENTS = 1 << 16  # More at once, in float64, take memory and leave the cache.

# Rows.
SUM_BLOCK_ELEMENTS = 2048  # Longer float32 sums continue in float64, to stay exact enough.
FORWARD_TILE_MOST_ROW_BYTES = 1 << 10  # Wider rows are not processed in tiles.
FORWARD_TILE_HALF_MOST_ROW_BYTES = 2 << 10  # The same for 16-bit elements.
PAIR_BELOW_BYTES = 5 << 20  # Larger results leave the cache, and pairs of rows gain nothing.
ADDED_BLOCK_ELEMENTS = 1 << 12  # Larger blocks of a sum and its result leave the cache.
BACKWARD_TILE_BELOW_ROW_BYTES = 256  # Wider rows, in the compute type, are not done in tiles.
PREFETCH_LEAST_ROW_BYTES = 6 << 10  # Wider rows outrun the hardware prefetcher.

# Columns.
GROUP_ROWS = 4  # More rows at once evict each other from the first-level cache.
GROUP_LEAST_ROW_BYTES = 1 << 12  # Several narrower rows lie in one page.
PART_LEAST_GROUPS = 8  # Keeps few rows of a part for the slower loop over single rows.
PIVOT_ROWS = 16  # With fewer rows too many pivots are poor.
MASKED_PIVOT_ROWS = 32  # The same where half of them may be left out.
COLUMN_TILE_ELEMENTS = 512  # A multiple of every number of lanes.
COLUMN_TILE_PEEL_LEAST_ROW_BYTES = 1 << 11  # Tiles of narrower rows do not peel to a line.
GRADIENT_TILE_MOST_BYTES = 1 << 12  # A row, its coefficients and sums fit a large L1 cache.
GRADIENT_ROW_ALONE_LEAST_BYTES = 1 << 11  # Narrower rows are added to their sums in groups.

# Moving norms with missing steps: gradients of some sequences at a time, to save memory.
MOVING_BLOCK_ELEMENTS = 1 << 18  # Smaller blocks are not worth the calls.
MOVING_BLOCKS_MOST = 16  # More blocks have too few sequences for all threads.

# Order statistics of moving windows.
ORDER_NARROW_MOST = 256  # Wider windows take longer to keep sorted than sets of ranks.
ORDER_BLOCK_LEAST = 256  # To rank fewer steps at once costs more a step.
ORDER_STRETCH_BLOCKS = 16  # More blocks are too few parts, fewer sort more than once.

# Matrix products.
MATMUL_MULTIPLICATIONS_PER_WORD = 8  # They take as long as to read or write one element.
MATMUL_BLOCK_ROWS = 480  # These rows stay in cache while every panel passes.
MATMUL_PART_LEAST_ROWS = 48  # A part has rows for a few of the largest tiles.
MATMUL_PARTS_MOST = 64  # More parts do not balance the load better.

# Recurrent cells.
CELL_PART_LEAST_ROWS = 4  # Products of fewer rows are slow.
CELL_FUSED_LEAST_ROWS = 8  # Smaller batches multiply all steps of x at once.
CELL_GROUPS_MOST = 64  # More groups of rows have too many gradient sums to add up.
CELL_SIX_GROUPS_ROWS = 2  # Where groups of 4 rows would be three: six balance two threads.
