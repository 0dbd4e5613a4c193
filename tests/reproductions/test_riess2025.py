"""The measurements of riess2025's figures on few records."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import reconrisk as rr
from reconrisk.core.mechanism import Gaussian
from reproductions.riess2025.figure2 import NEURONS, attacked, draw
from reproductions.riess2025.figure4 import (
    NOISES,
    NORM,
    REPLAYED,
    against_whole,
    along_the_row,
    by_the_norm,
    compared,
    linear_beside,
    measured,
    scaled,
    two_by_two,
)


def pictures(count):
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_pictures_are_four_grey_values_of_the_papers_norm():
    small = two_by_two(pictures(5))
    assert small.shape == (5, 1, 2, 2)
    torch.testing.assert_close(small.flatten(1).norm(dim=1), torch.full((5,), NORM))
    even = two_by_two(torch.full((1, 3, 8, 8), 0.3))
    torch.testing.assert_close(even, torch.full((1, 1, 2, 2), NORM / 2))


def test_a_million_parameters_beside_leave_the_law_as_it_is():
    targets, beside = two_by_two(pictures(40)), linear_beside(4)
    assert sum(parameter.numel() for parameter in beside.parameters()) == 1_000_000
    errors = measured(by_the_norm(), beside, targets, draws=2)
    assert errors.mse.shape == (len(NOISES), 80)
    np.testing.assert_allclose(errors.gradient_norms, NORM * np.sqrt(1 + 1 / 250_000), rtol=1e-5)
    for noise, row in zip(NOISES, errors.mse, strict=True):
        law = rr.bounds.analytic_inversion_law(Gaussian(noise), dimension=4, norm=NORM)
        assert kstest(row, law.cdf).pvalue > 0.01 / len(NOISES)  # all four together are wrong in 1 % of draws
    rows = compared("name", errors, 4, "remark")
    assert "80 errors" in rows[0].what
    assert rows[1].what == "name: mean MSE over sigma^2 |x|^2"


def test_a_gradient_beside_biases_what_is_rescaled_by_the_norm_and_not_what_is_replayed():
    class Beside(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Parameter(torch.zeros(4))

        def forward(self, inputs):
            return self.shift.expand(len(inputs), 4)

    targets = two_by_two(pictures(30))
    biased = measured(by_the_norm(), Beside(), targets)
    whole = np.sqrt(NORM**2 + 4)
    np.testing.assert_allclose(biased.gradient_norms, whole, rtol=1e-5)
    # bias (|x|/G - 1) x, and at the least noise nothing else
    assert biased.mse[0].mean() == pytest.approx(((NORM / whole - 1) * NORM) ** 2 / 4, rel=0.05)
    again = measured(rr.attacks.optimal_analytic(), Beside(), targets)
    expected = (np.array(NOISES) * whole) ** 2
    # 30 records of chi-square with 4 degrees: relative standard error .13
    np.testing.assert_allclose(again.mse.mean(1), expected, rtol=0.6)
    assert "G 2.24 to 2.24, rescaled" in against_whole("name", REPLAYED, again, "remark").what
    directed = measured(along_the_row(), Beside(), targets)
    # the noise along the record is gone, 3 of 4 parts are left; 30 records of 3 degrees: relative standard error .15
    np.testing.assert_allclose(directed.mse.mean(1)[:2], 0.75 * expected[:2], rtol=0.6)


def test_more_neurons_make_a_clear_picture_of_an_obscured_one(tmp_path):
    targets = pictures(2)
    mechanism = Gaussian(0.01, 10 * float(targets.flatten(1).norm(dim=1).min()))
    few, many = (attacked(targets, neurons, mechanism) for neurons in NEURONS)
    assert all("clipping does not bind" in ending for ending in few.endings)
    assert not any("clipping does not bind" in ending for ending in many.endings)
    assert (many.plain - targets).square().mean() < 0.02 * (few.plain - targets).square().mean()
    assert many.cut.aminmax().min >= 0
    draw([targets, few.cut, many.cut], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 0


def test_scaling_keeps_the_direction():
    few = pictures(3)
    torch.testing.assert_close(scaled(few) * few.flatten(1).norm(dim=1).view(3, 1, 1, 1), NORM * few)
