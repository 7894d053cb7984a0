"""The methods of quantiles that the installed NumPy computes as it describes them."""

import numpy as np

from numnorm.norms import order_statistics

METHODS = list(order_statistics.METHODS)
if np.__version__ == "2.0.0":  # 2.0.1 mended it
    METHODS.remove("closest_observation")
