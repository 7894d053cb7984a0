"""Random calls of the public functions on arrays beside memory that no process may read.

A process of its own runs them::

    python guarded_calls.py FIRST COUNT DTYPE [PART ...]

It runs the calls with the numbers FIRST to FIRST + COUNT - 1 and prints each of them before: if it
dies, the last line is the call that read outside of an array. The results must be the bytes that
the same call gives for arrays in ordinary memory. PART chooses functions: `rows`, `channels`,
`moving` or `cells`.
"""

import importlib
import inspect
import sys
import warnings

import numpy as np
from guarded_memory import GuardedMemory

import numnorm
from numnorm.rnn.cells import CELLS

# What a row, a channel or a whole array holds: constants, gaps, and values that need a second pass.
CONTENTS = ("normal", "ones", "zeros", "first flat", "last flat", "tiny", "huge", "offset", "gap")
# Less than a vector, whole vectors, vectors and a rest, and more than one block of sums.
NARROW = (1, 3, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100)
WIDTHS = (*NARROW, 127, 256, 300, 512, 1000, 2050)
OFFSETS = (0, 4, 8, 12, 16, 20, 32, 40, 48, 60)
ROW_NORMS = ("layer_norm", "rms_norm", "ada_norm", "weight_norm", "standard_normal_variate")
CHANNEL_NORMS = ("batch_norm", "instance_norm", "group_norm")
PARAMETERS = {"ada_norm": 0, "standard_normal_variate": 0, "rms_norm": 1, "weight_norm": 1}


class Call:
    """One random call: `run` makes its arrays by a function, which may place them."""

    def __init__(self, number, dtype, part):
        self.rng = np.random.default_rng([number, *part.encode(), *dtype.encode()])
        self.dtype, self.part = dtype, part
        self.content = self.pick(CONTENTS)
        self.words = []

    def pick(self, values):
        """Return one of some values."""
        return values[self.rng.integers(len(values))]

    def values(self, shape):
        """Return numbers with the content of this call."""
        values = self.rng.standard_normal(shape)
        if self.content in ("ones", "zeros"):
            values = np.full(shape, float(self.content == "ones"))
        elif self.content in ("first flat", "last flat") and np.ndim(values):
            row = 0 if self.content == "first flat" else -1
            values[row] = 3.0
            if values.ndim > 2:
                values[:, row] = 3.0  # a channel
        elif self.content in ("tiny", "huge"):
            values *= 1e-30 if self.content == "tiny" else 1e30
        elif self.content == "offset":
            values += 1e4
        elif self.content == "gap":
            values[self.rng.random(shape) < 0.1] = np.nan
        if self.dtype == "float16":
            values = np.clip(values, -6e4, 6e4)
        return values.astype(self.dtype)

    def run(self, place):
        """Return the results, with arrays that `place` returns for their values."""
        return getattr(self, self.part)(lambda *shape: place(self.values(shape)), place)

    def keywords(self, shape, place, *, weights=True):
        """Return one of the keywords for missing values and weights, or none."""
        kind = self.pick(("", "", "", "where", "nan_policy", "both", *(["weights"] * weights)))
        keywords = {}
        if kind in ("where", "both"):
            keywords["where"] = place(self.rng.random(shape) < 0.8)
        if kind in ("nan_policy", "both") or (kind and self.content == "gap"):
            keywords["nan_policy"] = "omit"
        if kind == "weights":
            keywords["weights"] = place(self.rng.integers(0, 3, shape).astype(float))
        self.words.append(kind)
        return keywords

    def shape(self, least):
        """Return a random shape of at least this number of axes."""
        count = int(self.rng.integers(least, 5))
        width = int(self.pick(WIDTHS if count < 4 else NARROW))
        return (*map(int, self.rng.integers(1, 7, count - 1)), width)

    def both_passes(self, name, x, dy, given, options, keywords, out):
        """Return the results of a norm's functions."""
        forward = getattr(numnorm, f"{name}_forward")
        backward = getattr(numnorm, f"{name}_backward")
        y, *saved = forward(x, *given, **options, **keywords, **out)
        known = inspect.signature(backward).parameters
        options = {key: value for key, value in options.items() if key in known}
        passed = [saved[-1]] if name in ("rms_norm", "weight_norm") else saved
        gamma = given[:1] if "gamma" in known or "g" in known else []
        gradients = backward(dy, x, *passed, *gamma, **options, **keywords)
        return [y, *saved, *(gradients if isinstance(gradients, tuple) else [gradients])]

    def rows(self, array, place):
        """Run a norm of rows."""
        name, shape = self.pick(ROW_NORMS), self.shape(2)
        axis = self.pick((-1, -1, 0, (-2, -1), tuple(range(len(shape)))))
        x, dy = array(*shape), array(*shape)
        axes = {a % len(shape) for a in np.atleast_1d(axis).tolist()}
        if name == "weight_norm":
            axes = set(range(len(shape))) - axes
        sizes = tuple(size for a, size in enumerate(shape) if a in axes)
        given = [array(*sizes) for _ in range(PARAMETERS.get(name, 2) * self.pick((0, 1)))]
        options = {"axis": axis}
        if name not in ("weight_norm", "standard_normal_variate"):
            options["eps"] = self.pick((1e-5, 0.0))
        keywords = self.keywords(shape, place)
        out = {"out": array(*shape)} if self.pick((0, 1)) else {}
        self.words += [name, shape, options, len(given), *out]
        return self.both_passes(name, x, dy, given, options, keywords, out)

    def channels(self, array, place):
        """Run a norm of channels, or take moments."""
        name, shape = self.pick((*CHANNEL_NORMS, "batch_moments")), self.shape(2)
        axis = self.pick((1, 1, -1)) if len(shape) > 1 else 0
        x, dy, channels = array(*shape), array(*shape), shape[axis]
        keywords = self.keywords(shape, place)
        labels = self.rng.integers(0, 3, shape[0]) if self.pick((0, 0, 1)) else None
        self.words += [name, shape, axis, labels is not None]
        if name == "batch_moments":
            labelled = {} if labels is None else {"labels": place(labels)}
            moments = numnorm.batch_moments(x, channel_axis=axis, **keywords, **labelled)
            if labels is None:
                more = numnorm.batch_moments(dy, channel_axis=axis, after=moments)
                return [*moments, *more]
            return [moments.labels, *moments.moments]
        given = [array(channels) for _ in range(2 * self.pick((0, 1)))]
        options = {"channel_axis": axis, "eps": self.pick((1e-5, 0.0))}
        if name == "group_norm":
            options["groups"] = self.pick([n for n in range(1, channels + 1) if channels % n == 0])
        elif name == "batch_norm" and labels is not None:
            keywords["labels"] = place(labels)
        out = {"out": array(*shape)} if self.pick((0, 1)) else {}
        results = self.both_passes(name, x, dy, given, options, keywords, out)
        if name == "batch_norm" and labels is None:
            stored = {
                "running_mean": place(np.zeros(channels)),
                "running_var": array(channels) ** 2,
            }
            options.update(training=False, **stored)
            results.append(numnorm.batch_norm(x, *given, **options, **keywords))
        return results

    def moving(self, array, place):
        """Run a norm whose statistics move along an axis, at once and in steps."""
        name, shape = self.pick(("moving_norm", "exponential_norm")), self.shape(1)
        axis = int(self.rng.integers(0, len(shape)))
        x, dy = array(*shape), array(*shape)
        size = (
            int(self.pick((1, 2, 5, 40))) if name == "moving_norm" else self.pick((1e-3, 0.3, 1.0))
        )
        keywords = self.keywords(shape, place, weights=False)
        self.words += [name, shape, axis, size]
        forward = getattr(numnorm, f"{name}_forward")
        backward = getattr(numnorm, f"{name}_backward")
        step = getattr(numnorm, f"{name}_step")
        y, mean, rstd = forward(x, size, axis=axis, **keywords)
        dx = backward(dy, x, mean, rstd, size, axis=axis, **keywords)
        after, state = step(x, size, axis=axis, **keywords)
        more, _ = step(dy, size, state, axis=axis)
        return [y, mean, rstd, dx, after, more]

    def cells(self, array, place):
        """Run a recurrent cell."""
        name, norm = self.pick(tuple(CELLS)), self.pick(("layer", None))
        steps, batch, inputs = map(int, self.rng.integers(1, 6, 3))
        inputs, hidden = int(self.pick((inputs, 17, 40))), int(self.pick((1, 5, 16, 17, 33)))
        self.words += [name, norm, steps, batch, inputs, hidden]
        cell = CELLS[name]
        initial = cell.init(inputs, hidden, rng=self.rng, norm=norm, dtype=self.dtype)
        placed = [value if value is None else place(np.asarray(value)) for value in initial]
        parameters = type(initial)(*placed)
        y, *states, saved = cell.forward(array(steps, batch, inputs), parameters, norm=norm)
        gradients = cell.backward(array(steps, batch, hidden), saved)
        return [y, *states, gradients.dx]


def flattened(results):
    """Return all arrays among results, some of which are None or tuples."""
    for result in results:
        if isinstance(result, tuple):
            yield from flattened(result)
        elif result is not None:
            yield np.asarray(result)


def check(number, dtype, part):
    """Run a call with ordinary arrays and with guarded ones; return whether it had results."""
    call = Call(number, dtype, part)
    expected, error = None, None
    try:
        expected = [a.copy() for a in flattened(call.run(np.array))]
    except ValueError as raised:
        error = str(raised)
    print(number, dtype, part, call.content, *call.words, flush=True)
    memory, places = GuardedMemory(), np.random.default_rng(number)

    def placed(values):
        if places.integers(2):
            return memory.before_guard(values)
        offset = int(OFFSETS[places.integers(len(OFFSETS))])
        return memory.after_guard(values, offset // values.itemsize * values.itemsize)

    try:
        found = list(flattened(Call(number, dtype, part).run(placed)))
    except ValueError as raised:
        assert str(raised) == error, (error, raised)
        return False
    assert error is None, error
    for got, wanted in zip(found, expected, strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        # A NaN has any bits, and a zero any sign.
        got, wanted = (np.where(np.isnan(a), np.nan, np.where(a == 0, 0, a)) for a in (got, wanted))
        assert got.tobytes() == wanted.tobytes(), "other bytes than in ordinary memory"
    return True


def main(first, count, dtype, *parts):
    """Run calls."""
    importlib.import_module("ml_dtypes")  # NumPy knows the name bfloat16 from then on
    parts = parts or ("rows", "channels", "moving", "cells")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = range(int(first), int(first) + int(count))
        done = sum(check(number, dtype, parts[number % len(parts)]) for number in numbers)
    assert done > 0.8 * len(numbers), f"only {done} calls of {len(numbers)} had results"
    print("END")


if __name__ == "__main__":
    main(*sys.argv[1:])
