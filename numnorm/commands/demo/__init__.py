"""``numnorm demo``: how fast small networks learn with each norm."""
