"""Public functions of numnorm on a device, called with arrays of the host."""

import numpy as np

import numnorm


class NormsOnDevice:
    """The functions of numnorm: arrays of NumPy go to a device, and results come back."""

    def __init__(self, library):
        self.take = library.take

    def __getattr__(self, name):
        function = getattr(numnorm, name)

        def called(*given, **options):
            given = [self._taken(value) for value in given]
            options = {word: self._taken(value) for word, value in options.items()}
            return self._back(function(*given, **options))

        return called

    def _taken(self, value):
        if not isinstance(value, np.ndarray):
            return value
        # Memory that a test goes on to use stays its own.
        return self.take(value.copy())

    def _back(self, value):
        if isinstance(value, tuple):
            return type(value)(*(self._back(each) for each in value))
        return value.host
