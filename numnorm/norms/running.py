"""The running statistics of batch norm and instance norm: what their options mean."""

from __future__ import annotations

from typing import Any, NamedTuple

from numnorm.arguments import brief, check_choice, check_flag, check_integer, check_number

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


def _given_statistics(mean: Any, variance: Any, training: bool) -> tuple[Any, Any] | None:
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


class RunningOptions(NamedTuple):
    """What the options of running statistics say.

    Attributes
    ----------
    weight : float
        The weight of the new batch.
    unbiased : bool
        Whether the running variance gets Bessel's correction.
    given : tuple or None
        The running mean and the running variance; None if there are none and none are needed.
    """

    weight: float
    unbiased: bool
    given: tuple[Any, Any] | None

    def correction(self, count: int) -> int:
        """Return what is subtracted from the number of a channel's values for a running variance.

        Raises
        ------
        ValueError
            If a running variance with the correction would be that of 1 value.
        """
        if self.given is not None and self.unbiased and count == 1:
            raise ValueError(
                "x must have at least 2 values in each channel for an unbiased running_var, got 1"
            )
        return int(self.unbiased)


def running_options(
    momentums: tuple[Any, Any, Any], unbiased: Any, running: tuple[Any, Any], training: bool
) -> RunningOptions:
    """Return what the options of running statistics say.

    Parameters
    ----------
    momentums : tuple
        `momentum`, `batches` and `convention`.
    unbiased : bool or None
        Whether the running variance gets Bessel's correction; None leaves it to the convention.
    running : tuple
        The running mean and the running variance, or None.
    training : bool
    """
    weight = new_batch_weight(*momentums)
    unbiased = momentums[2] == "torch" if unbiased is None else check_flag("unbiased", unbiased)
    return RunningOptions(weight, unbiased, _given_statistics(*running, training))
