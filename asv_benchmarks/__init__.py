"""Speed: over time (`benchmarks`), beside other libraries (`peers`), on a GPU (`gpu`)."""
