"""Irregular measurements
======================

A sensor that measures more often while something happens has windows of hours, not of
measurements.

The recording is simulated: the pressure of a well in pascal, with a slow drift, waves in which the
sensor measures every few seconds instead of every few minutes, and three faults.

To run it, in the folder of the sources: ``pip install '.[demo]' pandas``, then
``python docs/gallery/irregular_times.py``
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import numnorm

# %%
# The recording
# -------------

rng = np.random.default_rng(8)
count, faults = 6000, np.array([1200, 2890, 4700])
waves = (np.arange(count) // 500) % 3 == 1
seconds = np.cumsum(np.where(waves, 4, 300) * rng.uniform(0.5, 1.5, count))
times = pd.DatetimeIndex(np.datetime64("2026-03-01", "ms") + (1000 * seconds).astype(int))
hours = seconds / 3600
pressure = 2.5e7 + 40 * np.sin(hours / 15) + 3 * rng.normal(size=count)
pressure += np.where(waves, 12 * np.sin(seconds / 60), 0)
pressure[faults] += 60
gaps = np.diff(seconds)
print(f"{count} measurements, {gaps.min():.0f} to {gaps.max():.0f} s apart")

# %%
# The last six hours
# ------------------
#
# ``closed="left"`` leaves the measurement itself out: it is compared with what was before it. A
# window of steps lasts minutes in a wave and a day outside. A window of hours holds more
# measurements in a wave, and lasts as long.

day = pd.Timedelta("6h")
by_time = numnorm.moving_norm(pressure, day, times=times, closed="left")
held = np.arange(count) - np.searchsorted(times, times - day)
print(f"windows of 6 hours hold {held[100:].min()} to {held.max()} measurements")

fading = numnorm.exponential_norm(pressure, halflife=pd.Timedelta("2h"), times=times)

figure, axes = plt.subplots(3, figsize=(5.6, 5.4), sharex=True)
for panel, (title, y) in zip(axes, [
    ("pressure − 25 MPa (Pa)", pressure - 2.5e7),
    ("deviations from the 6 hours before", by_time),
    ("deviations, weights that fade in 2 hours", fading),
], strict=True):  # fmt: skip
    panel.plot(hours, y, linewidth=0.6)
    panel.plot(hours[faults], y[faults], "o", color="C1", markersize=4)
    panel.set_title(title, fontsize="small")
axes[-1].set(xlabel="time (h)")
plt.show()

# %%
# The largest deviations are the faults.

largest = np.sort(np.argsort(-np.abs(np.nan_to_num(by_time[100:])))[: len(faults)] + 100)
print("largest deviations at", *largest, "faults at", *faults)
assert np.array_equal(largest, faults)

# %%
# Beside pandas
# -------------
#
# pandas adds what enters a window and subtracts what leaves it. At 25 MPa that costs digits, here
# it does not: the sums of a window are taken around one of its own values.

exact = numnorm.moving_norm(pressure - 2.5e7, day, times=times, closed="left")
rolling = pd.Series(pressure, times).rolling(day, closed="left")
by_pandas = ((pressure - rolling.mean()) / rolling.std(ddof=0)).to_numpy()
kept = np.arange(count) > 100
for name, y in {"numnorm": by_time, "pandas": by_pandas}.items():
    print(f"{name}: off by {np.abs(y - exact)[kept].max():.0e} from the result without the offset")

# %%
# While it is being measured, the state keeps the measurements of the last six hours.

state, parts = None, []
for part in np.array_split(np.arange(count), 100):
    y, state = numnorm.moving_norm_step(
        pressure[part], day, state, times=times[part], closed="left"
    )
    parts.append(y)
same = np.array_equal(np.concatenate(parts), by_time, equal_nan=True)
print(f"{len(parts)} chunks, the same bytes as in one call: {same}")
assert same
