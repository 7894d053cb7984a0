"""Statistics of a file larger than memory
=======================================

Mean and variance of each channel, in chunks: as exact as at once, and with the right chunks the
same bytes.

The file here is small and so is the memory that the chunks may take, but nothing depends on either.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/streaming_statistics.py``
"""

import tempfile
import tracemalloc
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import numnorm

# %%
# A file
# ------
#
# Temperatures in kelvin from 16 sensors: far from 0, and they vary little.

rng = np.random.default_rng(0)
folder = tempfile.TemporaryDirectory()
path = Path(folder.name, "temperatures.npy")
values = rng.normal(293, 0.05, (400_000, 16)).astype("f4")
np.save(path, values)
BUDGET = 2 * 2**20  # bytes
print(f"{path.stat().st_size / 2**20:.0f} MiB in the file, {BUDGET / 2**20:.0f} MiB of memory")

# %%
# In chunks
# ---------
#
# ``chunk_multiple`` says of which length the chunks should be a multiple, and ``after=`` goes on with
# the moments of the chunks before.


def streamed(path):
    """Return the moments of the channels of a file."""
    source = np.load(path, mmap_mode="r")
    step = numnorm.chunk_multiple(source.shape)
    row_bytes = source[0].nbytes
    rows = max(BUDGET // 2 // row_bytes // step, 1) * step
    moments = None
    for start in range(0, len(source), rows):
        moments = numnorm.batch_moments(np.array(source[start : start + rows]), after=moments)
    return moments


streamed(path)  # compiles
tracemalloc.start()
moments = streamed(path)
peak = tracemalloc.get_traced_memory()[1]
tracemalloc.stop()
print(f"at most {peak / 2**20:.1f} MiB were allocated")
assert peak < BUDGET

at_once = numnorm.batch_moments(values)
same = all(a.tobytes() == b.tobytes() for a, b in zip(moments[1:], at_once[1:], strict=True))
print("the same bytes as of the whole array:", same)
assert same

# %%
# On two machines
# ---------------
#
# Each takes a part, of any length, and the moments are merged. A ``Moments`` is a number and three
# small arrays, to be sent as they are. The squares of float32 values are taken in float32.

left, right = numnorm.batch_moments(values[:123_456]), numnorm.batch_moments(values[123_456:])
merged = left.merge(right)
exact = values.astype(np.longdouble).var(axis=0)
print(f"{merged.count} rows; variances off by {abs(merged.var() / exact - 1).max():.0e}")

# %%
# Why not the sums of x and x²?
# -----------------------------
#
# They stream, too. But the variance is their small difference: it loses twice as many digits as
# the mean has more than the deviation. The same numbers, moved further and further from 0, in
# float64:

offsets = 10.0 ** np.arange(0, 10)
few = rng.normal(0, 1, (20_000, 1))


def by_sums(x):
    """Return the variance from the sums of x and of its squares."""
    return (x**2).mean(axis=0) - x.mean(axis=0) ** 2


def by_moments(x):
    """Return the variance from moments of chunks of 1000."""
    total = None
    for chunk in np.split(x, 20):
        total = numnorm.batch_moments(chunk, after=total)
    return total.var()


errors = {by_sums: [], by_moments: []}
for offset in offsets:
    x = few + offset
    exact = x.astype(np.longdouble).var(axis=0)
    for method, found in errors.items():
        found.append(float(abs(method(x) / exact - 1)[0]))

figure, panel = plt.subplots(figsize=(5.6, 3.0))
for method, label, marker in ((by_sums, "sums of x and x²", "o-"), (by_moments, "moments", "s-")):
    panel.loglog(offsets, np.maximum(errors[method], 1e-17), marker, label=label, markersize=5)
panel.axhline(1, color="C4", linewidth=0.8, linestyle="--")
panel.text(1, 1.7, "no digit is right", va="bottom")
panel.set(xlabel="mean, in deviations", ylabel="relative error of the variance")
figure.legend(loc="outside upper center", ncols=2)
plt.show()

# %%
# With the statistics of the whole file, chunk after chunk is normalized:

running = {"running_mean": moments.mean, "running_var": moments.var()}
chunk = numnorm.batch_norm(values[:1000], training=False, eps=0, **running)
print(f"a chunk: mean {chunk.mean():.3f}, deviation {chunk.std():.3f}")
folder.cleanup()
