"""The time of the import and of the first call, each in a new interpreter."""

import numpy as np

import numnorm

IMPORT = """
import numpy as np
import numnorm
"""
DATA = "x = np.ones((8, 8), np.float32)"
CALL = "numnorm.layer_norm(x)"

# asv takes these for every benchmark in this file.
rounds, number, repeat, warmup_time = 1, 1, 3, 0.0
NEW_CACHE = """
import os
import tempfile
cache = tempfile.TemporaryDirectory()
os.environ["NUMBA_CACHE_DIR"] = cache.name
"""


def timeraw_import_numnorm() -> str:
    """The package, including NumPy."""
    return "import numnorm"


def timeraw_import_numnorm_after_numpy() -> tuple[str, str]:
    """Only the package."""
    return "import numnorm", "import numpy"


def timeraw_first_call_compiles() -> tuple[str, str]:
    """Nothing on disk: import Numba, compile, run."""
    return CALL, "\n".join([NEW_CACHE, IMPORT, DATA])


class Compiled:
    """With the compiled code on disk."""

    def setup_cache(self) -> None:
        """Compile, if necessary."""
        numnorm.layer_norm(np.ones((8, 8), np.float32))

    def timeraw_import_to_first_result(self) -> str:
        """A whole script that normalizes one small array."""
        return "\n".join([IMPORT, DATA, CALL])

    def timeraw_first_call_cached(self) -> tuple[str, str]:
        """Import Numba, read the code, run."""
        return CALL, "\n".join([IMPORT, DATA])
