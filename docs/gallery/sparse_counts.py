"""Counts in AnnData's layout, scaled and kept sparse
==================================================

An AnnData is a sparse matrix of counts, a table of its rows and a table of its columns. Here it is
a dict of these three. Paragraphs stand in the place of cells, and words in that of genes.

Each column is divided by its standard deviation, before components are taken. The matrix stays
sparse: no mean is subtracted.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/sparse_counts.py``
"""

from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer

import numnorm

# %%
# X, obs and var
# --------------
#
# The texts are the descriptions of data sets that scikit-learn ships. A paragraph belongs to one of
# them, its batch.

texts = {
    file.name.removesuffix(".rst"): file.read_text("utf-8")
    for file in files("sklearn.datasets.descr").iterdir()
    if file.name.endswith(".rst")
}
parts = [(name, part) for name, text in sorted(texts.items()) for part in text.split("\n\n")]
parts = [(name, part) for name, part in parts if len(part.split()) > 5]
vectorizer = CountVectorizer(min_df=2)
X = vectorizer.fit_transform([part for _, part in parts]).tocsr()
data = {
    "X": X.astype(np.float32),
    "obs": pd.DataFrame({"batch": [name for name, _ in parts]}),
    "var": pd.DataFrame(index=vectorizer.get_feature_names_out()),
}
rows, columns = data["X"].shape
print(f"{rows} x {columns}, {data['X'].nnz / (rows * columns):.1%} of it stored")

# %%
# Moments of each column
# ----------------------
#
# They count the zeros, and take memory for each column alone.

data["X"] = data["X"].log1p()
moments = numnorm.batch_moments(data["X"])
data["var"]["mean"], data["var"]["std"] = moments.mean, moments.std()
print(data["var"].sort_values("std", ascending=False).head())

# %%
# Scaled in place
# ---------------
#
# ``clip`` keeps rare words from becoming huge, as scanpy's ``max_value`` does. Centring is refused:
# the message says how large the result would be.

stored = data["X"].nnz
before = data["X"].copy()
numnorm.batch_norm(data["X"], with_mean=False, eps=0, clip=10, out=data["X"])
assert data["X"].nnz == stored
try:
    numnorm.batch_norm(data["X"])
except ValueError as error:
    print(error)

# %%
# The same with the standard deviation that divides by the number of rows, n. scanpy divides by
# n - 1: :doc:`/coming_from/scanpy` has the gain that makes up for it.

std = data["var"]["std"].to_numpy()
expected = np.minimum(before.toarray() / std, 10)
np.testing.assert_allclose(data["X"].toarray(), expected, rtol=1e-5)

# %%
# Two components
# --------------
#
# Without scaling, words such as "the" decide; the scaled ones tell data sets apart by their own
# words.

figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
largest = data["obs"]["batch"].value_counts().index[:4]
for panel, (title, matrix) in zip(
    axes, {"log counts": before, "scaled": data["X"]}.items(), strict=True
):
    places = TruncatedSVD(3, random_state=0).fit_transform(matrix)
    for name in largest:
        own = places[data["obs"]["batch"] == name]
        panel.plot(own[:, 1], own[:, 2], "o", markersize=4, label=name)
    panel.set(title=title, xlabel="component 2", ylabel="component 3")
axes[1].legend(fontsize="small")
plt.show()

# %%
# Batches
# -------
#
# With labels each batch is scaled by its own deviations. Stored ones scale what comes later, in
# place as well.

batches = numnorm.batch_moments(before, labels=data["obs"]["batch"])
later = before[:10].copy()
numnorm.batch_norm(
    later, labels=data["obs"]["batch"][:10], statistics=batches, with_mean=False, eps=0, out=later
)
print(f"{len(batches.labels)} batches, of which the first is {batches.labels[0]!r}")
