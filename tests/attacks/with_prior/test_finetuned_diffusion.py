"""Tuning the weights of a diffusion: its samples, the fit it reaches, and that the prior is not changed."""

import pytest
import torch
from torch import nn

from reconrisk.attacks.matching.distances import SquaredError
from reconrisk.attacks.with_prior.finetuned_diffusion import Sampler, finetuned_diffusion
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Ending
from reconrisk.priors.diffusion import denoiser
from tests.attacks.gaussian_problem import GaussianProblem


class Trained(nn.Module):
    """The exact denoiser of the problem, with a bias that can be tuned."""

    def __init__(self, exact, size):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))
        self.exact = exact

    def forward(self, noisy, times):
        return self.exact(noisy, times) + self.bias


def with_weights(problem):
    exact = problem.prior.diffusion
    return denoiser(Trained(exact.predict_noise, problem.size), exact.shape, schedule=exact.schedule)


def test_the_sampler_draws_from_the_prior():
    problem = GaussianProblem(size=4, equations=8, noise=0.1)
    prior = with_weights(problem)
    latents = torch.randn(4000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        drawn = prior.records(Sampler(prior, 200)(latents))
    error = (problem.covariance.diagonal() / 4000).sqrt()
    assert bool(((drawn.mean(0) - problem.mean).abs() < 5 * error).all())
    # steps of finite size leave the spread a few hundredths off
    assert torch.allclose(drawn.var(0), problem.covariance.diagonal(), rtol=0.15)


def test_tuning_explains_the_release_and_leaves_the_prior_alone():
    problem = GaussianProblem(size=4, equations=12, noise=0.0)
    prior = with_weights(problem)
    target, observation = problem.drawn(3)
    settings = {"learning_rate": 0.01, "distance": SquaredError()}
    few, many = (
        finetuned_diffusion(prior, steps=steps, **settings)(observation, rng=torch.Generator().manual_seed(0))
        for steps in (1, 400)
    )
    before, after = (float((found.estimates[0] - target).square().mean()) for found in (few, many))
    assert after < 0.01 * before
    assert many.status.ending is Ending.BUDGET_SPENT
    assert not bool(prior.predict_noise.bias.any())


def test_same_seed_same_estimate():
    problem = GaussianProblem(size=3, equations=6, noise=0.0)
    _, observation = problem.drawn(0)
    attack = finetuned_diffusion(with_weights(problem), steps=3)
    one, two = (attack(observation, rng=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one.estimates, two.estimates)


def test_a_prior_without_weights_is_refused():
    with pytest.raises(InvalidInput, match="to be a diffusion prior with weights"):
        finetuned_diffusion(GaussianProblem(size=3, equations=6, noise=0.0).prior.diffusion)


@pytest.mark.parametrize("change", [{}, {"seconds": 1e-9}])
def test_the_remedy_names_settings_that_the_attack_takes(change):
    problem = GaussianProblem(size=3, equations=6, noise=0.0)
    _, observation = problem.drawn(0)
    attack = finetuned_diffusion(with_weights(problem), steps=2, **change)
    status = attack(observation, rng=torch.Generator().manual_seed(1)).status
    assert status.remedy == f"Raise {'seconds' if change else 'steps'}"
