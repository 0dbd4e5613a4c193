"""The posterior mean under a Gaussian prior, against its closed form for linear releases."""

import pytest
import torch

from reconrisk.attacks.baselines import constant_guess
from reconrisk.attacks.with_prior.gaussian_posterior import gaussian_posterior
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import Knows
from reconrisk.priors.diffusion import denoiser
from tests.attacks.gaussian_problem import GaussianProblem


@pytest.mark.parametrize("noise", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("equations", [3, 30])
def test_a_linear_release_has_the_exact_posterior_mean(noise, equations):
    problem = GaussianProblem(size=6, equations=equations, noise=noise)
    _, observation = problem.drawn(3)
    found = gaussian_posterior(problem.prior)(observation, rng=torch.Generator())
    # steps end where what is left to gain is a hundredth of the standard error
    spread = problem.prior.variances.max() ** 0.5
    assert float((found.estimates[0] - problem.posterior_mean(observation)).abs().max()) < 0.01 * float(spread)
    assert found.status.ending is Ending.CONVERGED


def test_noise_that_is_not_known_is_taken_from_the_residual():
    problem = GaussianProblem(size=6, equations=60, noise=0.2, noise_is_known=False)
    found, best = [], []
    for seed in range(8):
        target, observation = problem.drawn(seed)
        estimate = gaussian_posterior(problem.prior)(observation, rng=torch.Generator()).estimates[0]
        found.append(float((estimate - target).square().mean()))
        best.append(float((problem.posterior_mean(observation) - target).square().mean()))
    assert sum(found) < 1.1 * sum(best)  # the noise of sixty equations is known to a tenth


def test_batches_are_rebuilt_together():
    problem = GaussianProblem(size=4, equations=40, noise=1e-4, records=3)
    targets, observation = problem.drawn(0)
    found = gaussian_posterior(problem.prior)(observation, rng=torch.Generator())
    assert float((found.estimates - targets).abs().max()) < 1e-3


def test_a_warm_start_comes_to_the_same_mean():
    problem = GaussianProblem(size=6, equations=30, noise=0.2)
    _, observation = problem.drawn(1)
    cold = gaussian_posterior(problem.prior)(observation, rng=torch.Generator())
    attack = gaussian_posterior(problem.prior, warm_start=constant_guess(0.2))
    assert Knows.PRIOR in attack.needs.knows
    assert torch.allclose(attack(observation, rng=torch.Generator()).estimates, cold.estimates, atol=2e-3)


def test_time_spent_returns_what_there_is():
    problem = GaussianProblem(size=3, equations=6, noise=0.1)
    _, observation = problem.drawn(0)
    found = gaussian_posterior(problem.prior, seconds=1e-9)(observation, rng=torch.Generator())
    assert found.status.ending is Ending.BUDGET_SPENT
    assert torch.allclose(found.estimates[0].double(), problem.mean)


def test_another_prior_or_setting_is_refused():
    problem = GaussianProblem(size=3, equations=6, noise=0.1)
    with pytest.raises(InvalidInput, match="to be a Gaussian prior"):
        gaussian_posterior(denoiser(lambda noisy, times: noisy, (3,)))
    with pytest.raises(InvalidInput, match="iterations=0"):
        gaussian_posterior(problem.prior, iterations=0)
    _, observation = GaussianProblem(size=4, equations=6, noise=0.1).drawn(0)
    with pytest.raises(InvalidInput, match=r"prior\.shape"):
        gaussian_posterior(problem.prior)(observation, rng=torch.Generator())
