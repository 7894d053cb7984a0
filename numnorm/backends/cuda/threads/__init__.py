"""Which threads hold which elements of a row, and reductions over threads."""
