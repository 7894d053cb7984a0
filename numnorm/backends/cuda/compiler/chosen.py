"""The compiler of the kernels: numba-cuda where it is installed, and else numba-cuda-mlir.

One module for each holds all in which they differ, under the same names.
"""

import importlib
import importlib.util
from typing import Any

_NAME = "numba_cuda" if importlib.util.find_spec("numba_cuda") else "numba_cuda_mlir"

compiler: Any = importlib.import_module(f"numnorm.backends.cuda.compiler.{_NAME}")
