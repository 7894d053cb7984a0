"""Array layouts, alignment, output placement, non-temporal stores and scratch memory."""
