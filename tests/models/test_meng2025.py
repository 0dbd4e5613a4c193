from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.models import meng2025_cnn, meng2025_mlp, parameter_count

PIXELS = 3 * 256 * 256


@pytest.mark.parametrize(
    ("layers", "counted"),
    [
        (3, (PIXELS + 1) * 512 + 513 * 128 + 129 * 10),
        (4, (PIXELS + 1) * 512 + 513 * 256 + 257 * 64 + 65 * 10),
        (5, (PIXELS + 1) * 1028 + 1029 * 512 + 513 * 256 + 257 * 64 + 65 * 10),
    ],
)
def test_perceptrons_of_appendix_b2_at_256_pixels(layers: int, counted: int) -> None:
    """ "512 and 128", "512, 256, and 64", "1028, 512, 256, and 64 units"; the counts the docstring states."""
    with torch.device("meta"):
        model = meng2025_mlp((3, 256, 256), 10, layers=layers)
    assert parameter_count(model) == counted
    assert f"{counted:,}" in str(meng2025_mlp.__doc__)
    assert sum(isinstance(layer, nn.Linear) for layer in model.modules()) == layers


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(4, 40), st.integers(4, 40), st.integers(2, 12))
def test_network_of_appendix_b2_at_any_size(channels: int, height: int, width: int, classes: int) -> None:
    with torch.device("meta"):
        model = meng2025_cnn((channels, height, width), classes)
        assert model(torch.zeros(2, channels, height, width)).shape == (2, classes)
    flat = 128 * (height // 4) * (width // 4)
    counted = 64 * (9 * channels + 1) + 73_856 + 256 * (flat + 1) + 257 * classes
    assert parameter_count(model) == counted


@pytest.mark.parametrize("layers", [2, 6])
def test_other_depths_are_refused(layers: int) -> None:
    with pytest.raises(InvalidInput, match=f"Expected layers={layers} to be 3, 4 or 5. Use mlp"):
        meng2025_mlp((1, 8, 8), 10, layers=layers)
