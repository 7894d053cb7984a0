"""Quantiles in chunks
===================

The limits between which 98% of the values of each channel lie, of an image that comes in bands:
merged, not averaged.

Here a photograph takes the place of data larger than memory: scientific images come in tiles, and
logs of robots in episodes.

To run it, in the folder of the sources: ``pip install '.[demo,sketches]'``, then
``python docs/gallery/streamed_quantiles.py``
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

import numnorm

# %%
# Bands of an image
# -----------------
#
# 427 rows of 640 pixels with red, green and blue, in bands of 32 rows. The bands differ: there is
# sky above and a roof below.

image = load_sample_image("china.jpg").astype("f4")
bands = np.array_split(image, 14)
LIMITS = [0.01, 0.99]

total = None
for band in bands:
    total = numnorm.quantiles(band, channel_axis=-1, after=total)
print(total)

at_once = np.quantile(image.reshape(-1, 3).astype("f8"), LIMITS, axis=0)
merged = total.quantile(LIMITS)
averaged = np.mean([np.quantile(band, LIMITS, axis=(0, 1)) for band in bands], axis=0)
for name, found in (("at once", at_once), ("merged", merged), ("averaged", averaged)):
    print(f"{name:9}", *(f"{low:.0f} to {high:.0f}" for low, high in found.T), sep="   ")
assert np.array_equal(merged, at_once)
assert abs(averaged - at_once).max() > 10

# %%
# With the limits of the whole image its contrast is stretched. Averaged ones cut off what is bright
# or dark in some bands alone: all that is beyond them is drawn in red.

figure, panels = plt.subplots(1, 3, figsize=(7.5, 2.0), layout="constrained")
panels[0].imshow(image / 255)
panels[0].set_title("as it is", fontsize="small")
for panel, (low, high), name in zip(
    panels[1:], (merged, averaged), ("merged", "averaged"), strict=True
):
    stretched = (image - low) / (high - low)
    beyond = ((stretched < 0) | (stretched > 1)).any(axis=-1)
    shown = np.where(beyond[..., None], [1.0, 0.0, 0.0], stretched)
    panel.imshow(shown.clip(0, 1))
    panel.set_title(f"{name}: {beyond.mean():.0%} beyond the limits", fontsize="small")
for panel in panels:
    panel.set_axis_off()
plt.show()

# %%
# In bounded memory
# -----------------
#
# All values have been kept so far. With an error of rank that is allowed, a channel of more than
# ``keep`` values becomes a sketch, a few KB however long the stream is.

try:
    sketch = None
    for band in bands:
        options = {"channel_axis": -1, "error": 0.01, "keep": 4096}
        sketch = numnorm.quantiles(band, after=sketch, **options)
except ImportError as reason:
    print(reason)
else:
    exact_bytes, bytes_ = (
        sum(array.nbytes for array in each.to_arrays().values()) for each in (total, sketch)
    )
    print(f"{exact_bytes / 1024:.0f} KiB of values, {bytes_ / 1024:.0f} KiB of sketches")
    pixels = image.reshape(-1, 3)
    for q, values in zip(LIMITS, sketch.quantile(LIMITS), strict=True):
        ranks = (pixels <= values).mean(axis=0)
        print(f"the ranks of what is found for {q}:", *ranks.round(3))

# %%
# Kept in a file
# --------------
#
# The next day's images are scaled by the quantiles of these, or merged with them.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "quantiles.npz")
    np.savez(path, **total.to_arrays())
    with np.load(path) as file:
        stored = numnorm.Quantiles.from_arrays(file)
low, high = stored.quantile(LIMITS)
tomorrow = load_sample_image("flower.jpg").astype("f4")
print("a pixel of another image:", ((tomorrow[200, 300] - low) / (high - low)).round(2))
both = numnorm.quantiles(tomorrow, channel_axis=-1, after=stored)
print("the median of both:", both.median())
