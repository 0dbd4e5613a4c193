"""Relative leakage: its fixed points, its invariances and its edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Metric
from reconrisk.metrics import mse, ncc, psnr, relative_leakage, ssim

law = settings(deadline=None, derandomize=True, max_examples=60)
FINITE = [mse(), ncc(), ssim(data_range=(0, 1))]


def random_images(seed: int, records: int = 4) -> Tensor:
    return torch.rand(records, 1, 12, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("metric", FINITE, ids=repr)
def test_one_if_exact_zero_if_no_better_than_the_guess_negative_if_worse(metric: Metric) -> None:
    targets, guess = random_images(0), random_images(1)
    assert relative_leakage(metric, targets, targets, guess).tolist() == pytest.approx([1.0] * 4, abs=1e-9)
    assert relative_leakage(metric, guess, targets, guess).tolist() == [0.0] * 4
    assert (relative_leakage(metric, 1 - targets, targets, guess) < 0).all()


@law
@given(st.integers(0, 2**32 - 1), st.floats(0, 2))
def test_on_the_way_from_guess_to_target_it_is_the_square(seed: int, way: float) -> None:
    # By hand: the error of guess + way (target - guess) is (1 - way)^2 of the error of the guess.
    targets, guess = random_images(seed), random_images(seed + 1)
    leakage = relative_leakage(mse(), guess + way * (targets - guess), targets, guess)
    assert leakage.tolist() == pytest.approx([1 - (1 - way) ** 2] * 4, abs=1e-9)


@law
@given(st.integers(0, 2**32 - 1))
def test_never_above_one_and_blind_to_the_unit_of_the_data(seed: int) -> None:
    estimates, targets, guess = (random_images(seed + offset) for offset in range(3))
    leakage = relative_leakage(mse(), estimates, targets, guess)
    assert (leakage <= 1).all()
    torch.testing.assert_close(relative_leakage(mse(), 255 * estimates, 255 * targets, 255 * guess), leakage)


def test_one_guess_may_serve_all_records() -> None:
    estimates, targets, guess = random_images(2), random_images(3), random_images(4)[0]
    expected = relative_leakage(mse(), estimates, targets, guess.expand_as(targets))
    assert torch.equal(relative_leakage(mse(), estimates, targets, guess), expected)


def test_a_perfect_guess_leaves_nothing_to_leak() -> None:
    estimates, targets = random_images(5), random_images(6)
    guess = random_images(7)
    guess[1] = targets[1]
    leakage = relative_leakage(mse(), estimates, targets, guess)
    assert leakage[1] == 0
    assert (leakage[[0, 2, 3]] != 0).all()
    assert relative_leakage(mse(), targets, targets, targets).tolist() == [0.0] * 4


def test_a_broken_estimate_is_as_bad_as_the_scale_allows() -> None:
    estimates, targets, guess = random_images(8), random_images(9), random_images(10)
    estimates[2, 0, 0, 0] = math.nan
    assert relative_leakage(mse(), estimates, targets, guess)[2] == -math.inf
    prior = ncc()(guess, targets)[2]
    assert float(relative_leakage(ncc(), estimates, targets, guess)[2]) == pytest.approx(
        float((-1 - prior) / (1 - prior))
    )


def test_a_guess_of_infinite_error_is_beaten_by_any_finite_one() -> None:
    targets = torch.zeros(2, 1, dtype=torch.float64)
    estimates = torch.tensor([[5.0], [1e200]], dtype=torch.float64)
    guess = torch.full((1,), 1e200, dtype=torch.float64)
    assert relative_leakage(mse(), estimates, targets, guess).tolist() == [1.0, 0.0]


def test_an_infinite_scale_is_refused_with_the_remedy() -> None:
    records = random_images(11)
    with pytest.raises(InvalidInput, match=r"Expected psnr.best=inf to be finite. Use a metric with a finite best"):
        relative_leakage(psnr(data_range=(0, 1)), records, records, records)


def test_bad_guesses_are_refused() -> None:
    targets = random_images(12)
    with pytest.raises(InvalidInput, match=r"prior_guess.shape=\(2, 1, 12, 12\) to be \(1, 12, 12\), one record, or"):
        relative_leakage(mse(), targets, targets, targets[:2])
    with pytest.raises(InvalidInput, match="Expected prior_guess to be finite"):
        relative_leakage(mse(), targets, targets, targets * math.nan)
