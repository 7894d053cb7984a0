"""What a user waits for once: the import and the first call, each in a new interpreter."""

import numpy as np

import numnorm

DATA = """
import numpy as np
import numnorm
x = np.ones((8, 8), np.float32)
"""
NEW_CACHE = """
import os
import tempfile
cache = tempfile.TemporaryDirectory()
os.environ["NUMBA_CACHE_DIR"] = cache.name
"""
CALL = "numnorm.layer_norm(x)"


def timeraw_import_numnorm() -> str:
    """The package alone."""
    return "import numnorm"


def timeraw_first_call_compiles() -> tuple[str, str]:
    """Nothing on disk: import Numba, compile, run."""
    return CALL, NEW_CACHE + DATA


class FirstCall:
    """With the compiled code on disk."""

    def setup(self) -> None:
        """Fill the cache."""
        numnorm.layer_norm(np.ones((8, 8), np.float32))

    def timeraw_first_call_cached(self) -> tuple[str, str]:
        """Import Numba, read the code, run."""
        return CALL, DATA
