"""The example of `docs/gallery`, on a real device."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

GALLERY = Path(__file__).parents[2] / "docs" / "gallery" / "fused_layer_norm.py"


def test_gallery():
    spec = importlib.util.spec_from_file_location("fused_layer_norm", GALLERY)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    # Roundings of float32, of an erf and an exp besides.
    assert max(example.main()) < 5e-6
