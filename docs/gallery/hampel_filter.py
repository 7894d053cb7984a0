"""Outliers in a recording: Hampel's rule
======================================

A value that lies more than three deviations from the median of its neighbours is an outlier. The
median and its deviation hardly know of it, the mean and its deviation do.

The recording is the number of shares of a company that were traded on each of 1,047 days, which
Matplotlib ships. On the days after its reports there are a few times as many.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/hampel_filter.py``
"""

import matplotlib.cbook
import matplotlib.dates
import matplotlib.pyplot as plt
import numpy as np

import numnorm

WINDOW, LIMIT = 31, 3.5

# %%
# The recording
# -------------
#
# A ratio means the same at any level, so its logarithm is taken.

prices = matplotlib.cbook.get_sample_data("goog.npz")["price_data"]
day, traded = prices["date"], np.log2(prices["volume"])
print(f"{len(day)} days, {2 ** traded.min() / 1e6:.1f} to {2 ** traded.max() / 1e6:.0f} millions")

# %%
# Hampel's rule
# -------------
#
# With ``factor="normal"`` the median absolute deviation of normal data is their standard deviation.
# A window lies around its day, so the rule looks ahead.

around = {"center": True, "factor": "normal"}
y, median, scale = numnorm.moving_robust_norm_forward(traded, WINDOW, **around)
outlier = abs(y) > LIMIT
cleaned = np.where(outlier, median, traded)
by_mean = abs(numnorm.moving_norm(traded, WINDOW, center=True)) > LIMIT
print(f"outliers: {outlier.sum()} by the median, {by_mean.sum()} by the mean")
assert outlier.sum() > 2 * by_mean.sum()

# %%
# That is the definition, window by window.

for t in range(WINDOW // 2, len(traded) - WINDOW // 2):
    window = traded[t - WINDOW // 2 : t + WINDOW // 2 + 1]
    deviation = np.median(abs(window - np.median(window)))
    assert np.isclose(median[t], np.median(window)) and np.isclose(scale[t], deviation)

# %%
# A day with 16 times as many shares changes a moving norm of the days beside it, as it moves their
# mean and widens their deviation. In the robust norm they hardly change.

spoilt = traded.copy()
spoilt[500] += 4
near = np.r_[490:500, 501:511]
changes = {
    norm.__name__: abs(norm(spoilt, WINDOW, center=True) - norm(traded, WINDOW, center=True))[near]
    for norm in (numnorm.moving_norm, numnorm.moving_robust_norm)
}
for name, change in changes.items():
    print(f"{name} of the 20 days beside it: changed by {np.median(change):.2f}")

figure, (above, below) = plt.subplots(2, figsize=(5.6, 4.4), sharex=True, layout="constrained")
above.plot(day, traded, linewidth=0.6)
above.plot(day, median, linewidth=1.2)
above.plot(day[outlier], traded[outlier], ".", color="C3")
above.set(ylabel="shares, log2", title="recorded, the moving median, and outliers")
below.plot(day, y, linewidth=0.6)
below.axhspan(-LIMIT, LIMIT, color="C2", alpha=0.15)
below.set(ylabel="deviations")
below.xaxis.set_major_locator(matplotlib.dates.YearLocator())
below.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%Y"))
plt.show()

# %%
# As the days go by
# -----------------
#
# Day after day there is no tomorrow: windows end with their day, and chunks of days give the bytes
# of one call.

state, parts = None, []
for week in np.split(traded, range(5, len(traded), 5)):
    part, state = numnorm.moving_robust_norm_step(week, WINDOW, state, factor="normal")
    parts.append(part)
same = np.array_equal(
    np.concatenate(parts), numnorm.moving_robust_norm(traded, WINDOW, factor="normal")
)
print(f"{len(parts)} weeks, the same bytes as in one call: {same}")
