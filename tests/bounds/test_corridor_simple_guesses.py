"""Why one attack's law is no bound: shrinkage, constant and randomised guesses reach what the law calls impossible."""

import math

import numpy as np
import pytest

from reconrisk.bounds.analytic_inversion import analytic_inversion_law
from reconrisk.bounds.corridor import compare_simple_guesses
from reconrisk.bounds.known_norm import from_scratch_success
from reconrisk.core.mechanism import Gaussian

DRAWS = 20_000


def _james_stein(unbiased, variance):
    dimension = unbiased.shape[1]
    return (1 - (dimension - 2) * variance / (unbiased**2).sum(1, keepdims=True)) * unbiased


def test_james_stein_on_uniform_records():
    # MSE .26 against .85, and success half of the time where the law has about 1e-8.
    rng = np.random.default_rng(0)
    targets = rng.random((DRAWS, 64))
    norms = np.linalg.norm(targets, axis=1, keepdims=True)
    unbiased = targets + 0.2 * norms * rng.standard_normal(targets.shape)
    shrunk = ((_james_stein(unbiased, (0.2 * norms) ** 2) - targets) ** 2).mean(1)
    plain = ((unbiased - targets) ** 2).mean(1)
    assert shrunk.mean() == pytest.approx(0.26, abs=0.005)
    assert plain.mean() == pytest.approx(0.85, abs=0.01)
    median = float(np.median(shrunk))
    law = analytic_inversion_law(Gaussian(0.2), dimension=64, norm=float(norms.mean()))
    assert law.success(mse=median) < 1e-6
    guarantee = from_scratch_success(Gaussian(0.2), dimension=64, norm=float(norms.min()), mse=median)
    assert guarantee.value >= 0.5


@pytest.mark.parametrize(("dimension", "noise"), [(3, 0.5), (16, 0.3), (64, 0.2)])
def test_numbers_for_shrinkage_against_simulation(dimension, noise):
    rng = np.random.default_rng(1)
    target = rng.random(dimension) + 0.2
    norm = float(np.linalg.norm(target))
    unbiased = target + noise * norm * rng.standard_normal((DRAWS, dimension))
    errors = ((_james_stein(unbiased, (noise * norm) ** 2) - target) ** 2).mean(1)
    threshold = float(np.median(errors))
    reach = compare_simple_guesses(Gaussian(noise), dimension=dimension, norm=norm, mse=threshold)
    assert errors.mean() == pytest.approx(reach.shrinkage_mse, abs=5 * errors.std() / math.sqrt(DRAWS))
    assert reach.shrinkage_success == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(DRAWS) + 2e-3)  # 2e-3: its grid
    assert reach.zero_guess_mse == pytest.approx((target**2).mean())


def test_a_constant_guess_wins_where_the_law_says_impossible():
    norm = math.sqrt(64 / 3)
    reach = compare_simple_guesses(Gaussian(1.0), dimension=64, norm=norm, mse=0.34)
    assert reach.constant_guess_succeeds
    assert reach.attack_success < 1e-40
    assert "a constant guess always succeeds" in str(reach)
    strict = compare_simple_guesses(Gaussian(1.0), dimension=64, norm=norm, psnr=30.0)
    assert not strict.constant_guess_succeeds
    assert "not certain to succeed" in str(strict)


def test_a_randomised_guess_is_unbiased_and_succeeds_with_its_probability():
    rng = np.random.default_rng(2)
    target = rng.random(16)
    norm, noise, chance = float(np.linalg.norm(target)), 1.0, 0.2
    guess = target + 0.01  # a guess that happens to be near
    unbiased = target + noise * norm * rng.standard_normal((DRAWS, 16))
    lucky = rng.random((DRAWS, 1)) < chance
    estimates = np.where(lucky, guess, (unbiased - chance * guess) / (1 - chance))
    spread = estimates.std(0) / math.sqrt(DRAWS)
    assert (np.abs(estimates.mean(0) - target) < 5 * spread).all()
    success = (((estimates - target) ** 2).mean(1) <= 2e-4).mean()
    assert success == pytest.approx(chance, abs=5 * 0.5 / math.sqrt(DRAWS))
    assert analytic_inversion_law(Gaussian(noise), dimension=16, norm=norm).success(mse=2e-4) < 1e-20


def test_below_three_dimensions_and_without_noise_to_speak_of():
    flat = compare_simple_guesses(Gaussian(0.5), dimension=2, norm=1.0, mse=0.1)
    assert flat.shrinkage_mse == flat.attack_mse
    assert flat.shrinkage_success == flat.attack_success
    quiet = compare_simple_guesses(Gaussian(1e-6), dimension=50, norm=1.0, mse=0.1)
    assert quiet.shrinkage_mse == pytest.approx(quiet.attack_mse, rel=1e-6)
