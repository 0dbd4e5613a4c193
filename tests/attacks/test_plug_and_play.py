"""Fitting and denoising in turn, against the exact posterior mean of a linear release under a Gaussian prior."""

import pytest
import torch

from reconrisk.attacks.baselines import constant_guess
from reconrisk.attacks.plug_and_play import plug_and_play
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import Knows
from tests.attacks.gaussian_problem import GaussianProblem


@pytest.mark.parametrize("noise", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("noise_is_known", [True, False])
def test_it_comes_to_the_posterior_mean(noise, noise_is_known):
    problem = GaussianProblem(size=6, equations=30, noise=noise, noise_is_known=noise_is_known)
    found, best = [], []
    for seed in range(8):
        target, observation = problem.drawn(seed)
        estimate = plug_and_play(problem.prior)(observation, rng=torch.Generator().manual_seed(seed)).estimates[0]
        found.append(float((estimate - target).square().mean()))
        best.append(float((problem.posterior_mean(observation) - target).square().mean()))
    # levels fall in steps and end above 0, and unknown noise is estimated from thirty equations
    assert sum(found) < 1.3 * sum(best)


def test_a_clean_release_is_met():
    problem = GaussianProblem(size=6, equations=18, noise=0.0)
    target, observation = problem.drawn(1)
    found = plug_and_play(problem.prior)(observation, rng=torch.Generator().manual_seed(0))
    assert float((found.estimates[0] - target).square().mean()) < 1e-8
    assert found.status.ending is Ending.CONVERGED


def test_the_levels_fall_evenly_on_a_logarithmic_scale():
    attack = plug_and_play(GaussianProblem(3, 6, 0.1).prior, levels=5, first_level=1.0, last_level=1e-4)
    assert attack.noise_levels() == pytest.approx((1.0, 0.1, 0.01, 1e-3, 1e-4))


def test_time_spent_returns_what_there_is():
    problem = GaussianProblem(size=3, equations=6, noise=0.1)
    _, observation = problem.drawn(0)
    found = plug_and_play(problem.prior, seconds=1e-9)(observation, rng=torch.Generator())
    assert found.status.ending is Ending.BUDGET_SPENT
    assert found.estimates.shape == (1, 3)


def test_a_warm_start_adds_what_it_needs():
    prior = GaussianProblem(size=3, equations=6, noise=0.1).prior
    attack = plug_and_play(prior, warm_start=constant_guess(0.25))
    assert Knows.PRIOR in attack.needs.knows


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"levels": 0}, "levels=0"),
        ({"first_level": 0.01, "last_level": 0.1}, "last_level=0.1"),
        ({"rounds": 0}, "rounds=0"),
        ({"seconds": -1.0}, "seconds"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(InvalidInput, match=words):
        plug_and_play(GaussianProblem(size=3, equations=6, noise=0.1).prior, **settings)
