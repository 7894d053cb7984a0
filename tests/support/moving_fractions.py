"""Exponential norms in exact numbers, beside a step whose share in its statistics is near 1."""

from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np

PREFIX, SUFFIX = [10.0, 11.5, 9.75, 10.25], [12.0, 11.0, 12.5]
# A few roundings for each step.
TOLERANCE = 256 * 2.0**-53

# An alpha, and the number of missing steps before the suffix.
GAPS = [
    *((1e-4, 5), (0.1, 30), (0.1, 327), (0.5, 59), (2 / 3, 31), (2 / 3, 37), (0.9, 3)),
    *((1 - 2.0**-30, 0), (1 - 2.0**-30, 1), (1 - 2.0**-50, 0), (1.0, 2)),
]


def inverse_root(variance):
    """Return 1 / sqrt(variance) to 60 digits, 0 for 0."""
    getcontext().prec = 60
    if not variance:
        return Fraction(0)
    return Fraction(1 / (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt())


def exact_norm(values, fadings, dy, alpha, adjust):
    """Return y, rstd and dx; each value comes this many steps after the one before it."""
    alpha, values, dy = Fraction(alpha), [Fraction(v) for v in values], [Fraction(d) for d in dy]
    weight, old, rows, n = Fraction(0), [Fraction(0)] * len(values), [], len(values)
    for t in range(n):
        older = (1 - alpha) ** fadings[t] * (weight if adjust else 1)
        weight = older + (1 if adjust else alpha)
        share = (1 if adjust else alpha) / weight if t else Fraction(1)
        old = [(1 - share) * w + (share if s == t else 0) for s, w in enumerate(old)]
        rows.append(old)
        weight = weight if t else Fraction(1)
    mean = [sum(w * v for w, v in zip(row, values, strict=True)) for row in rows]
    deviations = [v - m for v, m in zip(values, mean, strict=True)]
    variances = [sum(w * d * d for w, d in zip(row, deviations, strict=True)) for row in rows]
    rstd = [inverse_root(v) for v in variances]
    y = [d * r for d, r in zip(deviations, rstd, strict=True)]
    own = [g * r for g, r in zip(dy, rstd, strict=True)]
    moving = [g * d * r**3 for g, d, r in zip(dy, deviations, rstd, strict=True)]
    through = [
        own[s] - deviations[s] * sum(rows[t][s] * moving[t] for t in range(n)) for s in range(n)
    ]
    dx = [through[s] - sum(rows[t][s] * through[t] for t in range(n)) for s in range(n)]
    return (np.array([float(number) for number in numbers]) for numbers in (y, rstd, dx))


def beside_a_gap(alpha, gap, adjust):
    """Return x, dy, the steps that count, and their exact y, rstd and dx."""
    x = np.array(PREFIX + [np.nan] * gap + SUFFIX)
    kept = np.flatnonzero(~np.isnan(x))
    dy = np.random.default_rng(3).normal(size=x.size)
    fadings = np.diff(kept, prepend=0).tolist()
    return x, dy, kept, tuple(exact_norm(x[kept], fadings, dy[kept], alpha, adjust))
