"""`numnorm.jax` with random masks, weights, missing values and labels: the bytes of NumPy's norms.

The norms and their parameters come from the declarations.
"""

import inspect

import numpy as np
import pytest

import numnorm
from numnorm.norms.declared import BY_NAME

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

import numnorm.jax  # noqa: E402

pytestmark = pytest.mark.jax

BATCHES, SHAPE = 3, (4, 6, 5)
# The arguments that a norm needs, and axes beside the last one.
OPTIONS = {
    "rms_norm": [{}, {"axis": (0, 2)}],
    "weight_norm": [{}, {"axis": (1, 2)}],
    "group_norm": [{"groups": 2}, {"groups": 5, "channel_axis": -1}],
    "instance_norm": [{}, {"channel_axis": 2}],
    "batch_norm": [{}, {"channel_axis": 0}, {"channel_axis": (0, 2)}],
    "moving_norm": [{"window": 3}, {"window": 4, "axis": 1, "center": True}],
    "moving_robust_norm": [{"window": 3}, {"window": 4, "axis": 1, "scale": (0.2, 0.8)}],
    "exponential_norm": [{"alpha": 0.3}, {"alpha": 0.3, "axis": 0}],
    "emsc": [{}, {"degree": 0, "axis": 1}],
    "pcen": [{}, {"axis": 1}],
}
KINDS = ("where", "weights", "nan_policy", "all", "labels", "traced labels")


def kinds_of(name):
    """The kinds of keywords that a norm takes."""
    taken = inspect.signature(BY_NAME[name].function).parameters
    return [
        kind
        for kind in KINDS
        if (kind != "weights" or kind in taken) and ("labels" not in kind or "labels" in taken)
    ]


CASES = [(name, kind) for name in BY_NAME for kind in kinds_of(name)]
# One kind of each norm, and another one of the next.
FEW = [(n, kinds_of(n)[k % len(kinds_of(n))]) for k, n in enumerate(BY_NAME)]


def mask_of(rng):
    """All false, a single true, or random."""
    kind = rng.integers(4)
    mask = rng.random((BATCHES, *SHAPE)) < (0.7 if kind > 1 else 0.0)
    if kind == 1:
        mask[(slice(None), *(rng.integers(n) for n in SHAPE))] = True
    return mask


class Case:
    """A norm with options and the kind of its keywords, compiled once for all data."""

    def __init__(self, name, kind, dtype, rng):
        self.spec, self.kind, self.dtype = BY_NAME[name], kind, dtype
        choices = OPTIONS.get(name, [{}, {"axis": (0, 2)}])
        self.options = dict(choices[rng.integers(len(choices))])
        defaults = inspect.signature(self.spec.function).parameters
        axis = self.options.get(self.spec.axis, defaults[self.spec.axis].default)
        axes = {a % len(SHAPE) for a in (axis if isinstance(axis, tuple) else (axis,))}
        self.shapes = {}
        for parameter, along in {**self.spec.parameters, **self.spec.constants}.items():
            own = [a for a in range(len(SHAPE)) if (a in axes) == (along != "others")]
            scalar = along in ("number", "elements")
            self.shapes[parameter] = () if scalar else tuple(SHAPE[a] for a in own)
        self.samples = SHAPE[min({0, 1, 2} - axes, default=0)]
        if kind in ("nan_policy", "all", "labels"):
            self.options["nan_policy"] = "omit"
        if kind == "all":
            self.options["fill"] = float(rng.choice([0.0, -2.5]))
        if kind == "labels":
            self.options["labels"] = list(rng.choice(list("abc"), self.samples))
        self.takes_weights = "weights" in defaults
        self.mapped = jax.jit(jax.vmap(self.pulled))
        self.gradient = jax.jit(jax.grad(self.loss, argnums=0))

    def loss(self, x, parameters, keywords, dy):
        y = getattr(numnorm.jax, self.spec.name)(x, **parameters, **keywords, **self.options)
        return (y * dy).sum()

    def pulled(self, x, parameters, keywords, dy):
        def norm(x, parameters):
            function = getattr(numnorm.jax, self.spec.name)
            return function(x, **parameters, **keywords, **self.options)

        y, pull = jax.vjp(norm, x, parameters)
        return y, *pull(dy)

    def draw(self, rng):
        """The arrays of a batch of calls."""
        x, dy = rng.normal(2.0, 1.5, (2, BATCHES, *SHAPE))
        x = abs(x) if self.spec.name == "pcen" else x
        if self.kind not in ("where", "weights"):
            x = np.where(mask_of(rng) | (rng.random() < 0.3), x, np.nan)
        keywords = {}
        if self.kind in ("where", "all", "traced labels"):
            keywords["where"] = mask_of(rng)
        if self.kind in ("weights", "all") and self.takes_weights:
            keywords["weights"] = rng.integers(0, 3, x.shape) * rng.random(x.shape)
        if self.kind == "traced labels":
            keywords["labels"] = rng.integers(0, 3, (BATCHES, self.samples))
        parameters = {n: rng.uniform(0.2, 0.9, (BATCHES, *s)) for n, s in self.shapes.items()}
        x, dy, parameters = jax.tree.map(lambda a: a.astype(self.dtype), (x, dy, parameters))
        return x, parameters, keywords, dy

    def expected(self, x, parameters, keywords, dy):
        """NumPy's result, dx and the gradients of the learned parameters."""
        # JAX without float64 has weights in float32.
        keywords = {n: np.asarray(jnp.asarray(a)) for n, a in keywords.items()}
        given = {**parameters, **keywords, **self.options}
        y, *saved = self.spec.forward(x, **given)
        taken = inspect.signature(self.spec.backward).parameters
        given = {n: a for n, a in given.items() if n in taken}
        found = self.spec.backward(dy, x, *saved, **given)
        dx, *gradients = found if isinstance(found, tuple) else (found,)
        return y, dx, dict(zip(self.spec.parameters, gradients, strict=True))

    def check(self, rng):
        arrays = self.draw(rng)
        y, dx, gradients = self.mapped(*arrays)
        for k in range(BATCHES):
            own = jax.tree.map(lambda a, k=k: a[k], arrays)
            right = self.expected(*own)
            np.testing.assert_array_equal(y[k], right[0])
            np.testing.assert_array_equal(dx[k], right[1])
            assert y.dtype == dx.dtype == self.dtype
            for name, gradient in right[2].items():
                np.testing.assert_array_equal(
                    gradients[name][k], np.asarray(gradient, self.dtype), name
                )
        np.testing.assert_array_equal(self.gradient(*own), right[1])


@pytest.mark.parametrize("name, kind", FEW, ids=lambda value: value.replace(" ", "_"))
def test_results_and_gradients_are_the_bytes_of_numpy(name, kind, float64):
    rng = np.random.default_rng(FEW.index((name, kind)))
    case = Case(name, kind, "float64", rng)
    for _ in range(3):
        case.check(rng)


def test_without_float64():
    rng = np.random.default_rng(7)
    Case("batch_norm", "all", "float32", rng).check(rng)
