"""The benchmarks of a project that depends on numnorm."""
