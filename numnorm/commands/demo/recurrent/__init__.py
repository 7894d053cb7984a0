"""``numnorm demo lstm``: how fast recurrent networks learn with normalization and without."""
