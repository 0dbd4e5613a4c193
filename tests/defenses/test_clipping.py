import pytest
import torch

from reconrisk.core.errors import InvalidInput
from reconrisk.defenses.clipping import NoiseScales


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_scales_whose_squares_no_float_holds_are_refused(size):
    with pytest.raises(InvalidInput, match=r"in \[2\^-400, 2\^400\]"):
        NoiseScales({"w": torch.tensor([1.0, size], dtype=torch.float64)})
