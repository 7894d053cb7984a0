"""How fast numnorm is on a GPU, beside a copy and beside other libraries."""
