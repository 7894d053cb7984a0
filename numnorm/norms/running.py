"""The running statistics of batch norm and instance norm: what their options mean."""

from __future__ import annotations

from typing import Any

from numnorm.arguments import brief, check_choice, check_integer, check_number

# In PyTorch momentum is the weight of the new batch and the running variance is unbiased; in
# Keras, Flax and ONNX momentum is the weight of the old statistics and the variance is biased.
_DEFAULT_MOMENTUM = {"torch": 0.1, "keras": 0.99}


def new_batch_weight(momentum: Any, batches: Any, convention: Any) -> float:
    """Return the weight of the new batch in the running statistics."""
    if momentum is None and batches is None and type(convention) is str and convention == "torch":
        return _DEFAULT_MOMENTUM["torch"]
    check_choice("convention", convention, tuple(_DEFAULT_MOMENTUM))
    if isinstance(momentum, str) and momentum == "cumulative":
        if batches is None:
            raise ValueError("batches must be given with momentum='cumulative', got None")
        return 1.0 / (check_integer("batches", batches, 0) + 1)
    if batches is not None:
        raise ValueError(f"batches must be None unless momentum='cumulative', got {brief(batches)}")
    if isinstance(momentum, str):
        raise ValueError(f"momentum must be a number, 'cumulative' or None, got {brief(momentum)}")
    weight = _DEFAULT_MOMENTUM[convention]
    if momentum is not None:
        weight = check_number("momentum", momentum, least=0.0, most=1.0)
    return weight if convention == "torch" else 1.0 - weight


def given_statistics(mean: Any, variance: Any, training: bool) -> tuple[Any, Any] | None:
    """Return both running statistics, or None if there are none and none are needed."""
    if training and mean is None and variance is None:
        return None
    for name, array, other in (
        ("running_mean", mean, "running_var"),
        ("running_var", variance, "running_mean"),
    ):
        if array is None:
            when = f"with {other}" if training else "when training is False"
            raise ValueError(f"{name} must be given {when}, got None")
    return mean, variance


def bessel_correction(unbiased: bool, count: int, running: Any) -> int:
    """Return what is subtracted from the number of values of a channel for a running variance."""
    if running is not None and unbiased and count == 1:
        raise ValueError(
            "x must have at least 2 values in each channel for an unbiased running_var, got 1"
        )
    return int(unbiased)
