"""``numnorm doctor``: what numnorm runs on, and whether it computes correctly here."""
