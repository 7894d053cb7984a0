"""numnorm beside its peers on the CPU; run ``python -m peers`` in the folder above.

``python -m peers.accuracy`` compares errors instead of times.
"""
