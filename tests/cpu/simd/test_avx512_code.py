"""The machine code for AVX-512 loads with a mask wherever the source does.

LLVM 22 made some of these loads into loads of whole vectors, which read outside of an array.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from every_call import COMPILED

pytestmark = [
    pytest.mark.skipif(not COMPILED, reason="Numba compiles nothing"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="of x86 processors"),
]
CODE = Path(__file__).parents[2] / "support" / "avx512_code.py"
NORMS = "layer_norm,rms_norm,ada_norm,group_norm,instance_norm,weight_norm,batch_norm"


def check(*arguments):
    done = subprocess.run(
        [sys.executable, CODE, *arguments], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = done.stdout.splitlines()
    assert kernels
    assert not [kernel for kernel in kernels if "WRONG" in kernel]


def test_masked_loads_stay_masked():
    check("batch_norm", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_masked_loads_of_every_kernel_stay_masked(dtype):
    check(f"{NORMS},moving_norm,exponential_norm,lstm,gru,rnn", dtype, "weighted")
