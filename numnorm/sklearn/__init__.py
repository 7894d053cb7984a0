"""Transformers for scikit-learn: scatter corrections of spectra, and norms of rows and features."""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    message = "numnorm.sklearn needs scikit-learn: pip install 'numnorm[sklearn]'"
    raise ImportError(message) from error

from numnorm.sklearn.batch import BatchNormalizer
from numnorm.sklearn.layer import LayerNormalizer
from numnorm.sklearn.local import LocalStandardNormalVariate
from numnorm.sklearn.moving import MovingNormalizer
from numnorm.sklearn.multiplicative import MultiplicativeScatterCorrection
from numnorm.sklearn.rms import RMSNormalizer
from numnorm.sklearn.robust import RobustNormalVariate
from numnorm.sklearn.standard import StandardNormalVariate

__all__ = [
    "BatchNormalizer",
    "LayerNormalizer",
    "LocalStandardNormalVariate",
    "MovingNormalizer",
    "MultiplicativeScatterCorrection",
    "RMSNormalizer",
    "RobustNormalVariate",
    "StandardNormalVariate",
]
