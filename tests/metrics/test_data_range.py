import pytest
import torch

from reconrisk.core.errors import InvalidInput
from reconrisk.metrics import psnr, ssim


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_a_number_is_the_range_above_zero(metric):
    rng = torch.Generator().manual_seed(0)
    estimates, targets = torch.rand(2, 1, 16, 16, generator=rng) * 4, torch.rand(2, 1, 16, 16, generator=rng) * 4
    assert torch.equal(metric(data_range=4)(estimates, targets), metric(data_range=(0.0, 4.0))(estimates, targets))
    with pytest.raises(InvalidInput, match=r"data_range=-1\.0 > 0"):
        metric(data_range=-1)
