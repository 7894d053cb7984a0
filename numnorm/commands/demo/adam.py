"""The Adam optimizer."""

from __future__ import annotations

import numpy as np

from numnorm.commands.demo.layers import Parameters


class Adam:
    """The Adam optimizer with its usual settings.

    Parameters
    ----------
    parameters : Parameters
        The parameters that it updates.
    rate : float
        The learning rate.
    """

    def __init__(self, parameters: Parameters, rate: float = 1e-3) -> None:
        self.parameters = parameters
        self.rate = rate
        self.first = np.zeros_like(parameters.values)
        self.second = np.zeros_like(parameters.values)
        self.count = 0

    def step(self) -> None:
        """Move the parameters by their gradients."""
        self.count += 1
        gradient = self.parameters.gradients
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient * gradient - self.second)
        size = self.rate * np.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        self.parameters.values -= float(size) * self.first / (np.sqrt(self.second) + 1e-8)
