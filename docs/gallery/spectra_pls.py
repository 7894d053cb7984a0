"""Spectra of a fermentation, with PLS
===================================

Glucose from the spectra of a fermentation, with and without a correction of scatter.

The spectra were measured on-line in a real fermentation, and come with chemotools (MIT licence). At
34 times a sample was also analysed in the laboratory; PLS regression is cross-validated on these,
one left out at a time. Samples of one fermentation are alike: expect larger errors for another one.

For data of your own replace `fermentation` by arrays of the shapes (samples, wavenumbers) and
(samples,): a table that pandas read will do. Without it, chemotools is not needed.

In the folder of the sources: ``pip install '.[demo]' chemotools pandas``, then
``python docs/gallery/spectra_pls.py``
"""

import numpy as np
from chemotools.datasets import load_fermentation_test
from sklearn.cross_decomposition import PLSRegression
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.pipeline import make_pipeline

from numnorm.sklearn import LocalStandardNormalVariate, StandardNormalVariate

COMPONENTS = range(1, 6)


def fermentation():
    """Return the spectra at the times of the samples, and their glucose in g/L."""
    spectra, samples = load_fermentation_test()
    # Beyond this range of wavenumbers the spectra are noise.
    wavenumbers = spectra.columns.to_numpy()
    chosen = spectra.to_numpy()[:, (wavenumbers > 950) & (wavenumbers < 1500)]
    # One spectrum every 1.25 minutes.
    nearest = (samples["time"] * 60 / 1.25).round().astype(int).clip(upper=len(chosen) - 1)
    return chosen[nearest], samples["glucose"].to_numpy()


def error(correction, components, spectra, glucose):
    """Return the root mean square error of the predictions of samples that are left out."""
    # Without `scale` wavenumbers are only centred: scaling would raise the noise of flat regions.
    regression = PLSRegression(components, scale=False)
    model = make_pipeline(*correction, regression)
    predicted = cross_val_predict(model, spectra, glucose, cv=LeaveOneOut())
    return float(np.sqrt(np.mean((predicted.ravel() - glucose) ** 2)))


def main():
    """Print the errors of cross-validation (RMSECV), and return them for each correction."""
    spectra, glucose = fermentation()
    corrections = {
        "none": [],
        "standard normal variate": [StandardNormalVariate()],
        "in windows of 51": [LocalStandardNormalVariate(51)],
    }
    print(f"{len(spectra)} spectra of {spectra.shape[1]} wavenumbers, RMSECV of glucose in g/L")
    print(f"{'components':>24}", *(f"{n:6}" for n in COMPONENTS))
    errors = {}
    for name, correction in corrections.items():
        errors[name] = [error(correction, n, spectra, glucose) for n in COMPONENTS]
        print(f"{name:>24}", *(f"{e:6.2f}" for e in errors[name]))
    return errors


def draw(errors):
    """Draw the errors."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(5.6, 3.0))
    for (name, found), marker in zip(errors.items(), "os^", strict=True):
        panel.plot(COMPONENTS, found, f"{marker}-", label=name, markersize=5)
    panel.set(xlabel="components of PLS", ylabel="RMSECV of glucose (g/L)", xticks=COMPONENTS)
    panel.set_ylim(0)
    figure.legend(loc="outside upper center", ncols=3)
    plt.show()


# %%
# The errors
# ----------

if __name__ == "__main__":
    draw(main())
