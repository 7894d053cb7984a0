"""Anomalies by month, and by the climate of other years
=====================================================

What is a warm day? One that is warm for its month and its place. The mean and the deviation of each
month at each point of a grid are a climatology: statistics by label. It is kept in a file, and says
what the days of later years are worth.

The temperatures are simulated: a season that is stronger towards the poles, weather that persists
for some days, and a warming of 0.03 K a year.

To run it, in the folder of the sources: ``pip install '.[demo,xarray]'``, then
``python docs/gallery/climatology.py``
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from scipy import signal

import numnorm
import numnorm.xarray

# %%
# Daily temperatures of 40 years
# ------------------------------

rng = np.random.default_rng(0)
time = xr.date_range("1981-01-01", "2020-12-31", use_cftime=False)
lat, lon = np.arange(-80.0, 81.0, 20.0), np.arange(0.0, 360.0, 30.0)
day = np.arange(time.size)
season = np.cos(2 * np.pi * (day - 200) / 365.25)[:, None, None] * (lat / 90)[:, None] * 15
weather = rng.normal(size=(time.size, lat.size, lon.size))
weather = signal.lfilter([1], [1, -0.8], weather, axis=0) * (1 + abs(lat)[:, None] / 40)
trend = 0.03 / 365.25 * day[:, None, None]
kelvin = 300 - 40 * np.sin(np.deg2rad(lat))[:, None] ** 2 + season + weather + trend
temperature = xr.DataArray(
    kelvin.astype(np.float32),
    {"time": time, "lat": lat, "lon": lon},
    ("time", "lat", "lon"),
    "temperature",
    {"units": "K"},
)

# %%
# The climatology, in a file
# --------------------------
#
# The labels are the months of a coordinate. ``channel_dim`` names what has statistics of its own.

GRID = ("lat", "lon")
reference = temperature.sel(time=slice("1981", "2010"))
climate = numnorm.xarray.batch_moments(reference, channel_dim=GRID, labels=reference.time.dt.month)
print(climate.to_dataset())

with tempfile.TemporaryDirectory() as folder:
    climate.to_dataset().to_netcdf(f"{folder}/climate.nc", engine="scipy")
    with xr.open_dataset(f"{folder}/climate.nc", engine="scipy") as dataset:
        climate = numnorm.xarray.GroupMoments.from_dataset(dataset.load())

# By the definition, for one month:
july = reference[reference.time.dt.month == 7].astype(np.longdouble)
off = abs(climate[7].std() - july.std("time")).max() / july.std("time").min()
print(f"off the definition by {float(off):.0e}")
assert off < 1e-6

# %%
# Later years by this climate
# ---------------------------
#
# ``statistics=`` applies it. Without dividing, anomalies in kelvin are xarray's own arithmetic.

later = temperature.sel(time=slice("2011", "2020"))
standardized = numnorm.xarray.batch_norm(
    later, channel_dim=GRID, labels=later.time.dt.month, statistics=climate, eps=0
)
anomalies = later.groupby("time.month") - climate.moments.mean

# %%
# The mean over the globe
# -----------------------
#
# A cell of the grid has an area that goes with the cosine of its latitude: these are the weights.

weights = np.cos(np.deg2rad(temperature.lat))
globe = numnorm.xarray.batch_moments(anomalies, channel_dim="time", weights=weights)
yearly = globe.mean.groupby("time.year").mean()
print(yearly.values.round(2))
assert (yearly > 0.3).all()  # 0.03 K a year, from the middle of the reference on

site = {"lat": 60.0, "lon": 90.0}
figure, (top, middle, bottom) = plt.subplots(3, figsize=(6, 6.5))
of_site = climate.moments.mean.sel(site), climate.moments.std().sel(site)
months = climate.labels
top.plot(months, of_site[0])
top.fill_between(months, of_site[0] - of_site[1], of_site[0] + of_site[1], alpha=0.3)
top.set(xlabel="month", ylabel="K", title="Mean and deviation at 60° N, 90° E")
year = standardized.sel(site).sel(time="2020")
middle.plot(year.time, year)
middle.axhline(0, color="C4", linewidth=0.8)
middle.set(ylabel="deviations", title="The days of 2020 there")
bottom.bar(yearly.year, yearly)
bottom.set(ylabel="K", title="Mean anomaly of the globe, beside 1981 to 2010")
figure.tight_layout()
plt.show()

# %%
# In chunks
# ---------
#
# A year after the other gives the same climatology, whatever the order: moments are merged.

total = None
for _, year in reference.groupby("time.year"):
    total = numnorm.xarray.batch_moments(
        year, channel_dim=GRID, labels=year.time.dt.month, after=total
    )
xr.testing.assert_allclose(total.moments.std(), climate.moments.std(), rtol=1e-6)

# %%
# Far from 0
# ----------
#
# In other units, such as a geopotential or a pressure in pascal, the mean is many thousand
# deviations. Sums of float32 squares are noise then; moments around a pivot are not.

shifted = (reference.astype(np.float64) + 1e6).astype(np.float32)
exact = shifted.astype(np.float64)
moments = numnorm.xarray.batch_moments(shifted, channel_dim=GRID, labels=exact.time.dt.month)
with xr.set_options(use_flox=False):
    by_groups = shifted.groupby("time.month").std()
    wanted = exact.groupby("time.month").std()
for name, found in (("numnorm", moments.moments.std()), ("xarray's groupby", by_groups)):
    print(f"{name:>16}: off by {float(abs(found / wanted - 1).max()):.0e} of the deviation")
