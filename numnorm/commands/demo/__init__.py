"""``numnorm demo``: how fast a small classifier learns with each norm."""
