import math

import pytest
import torch

import reconrisk as rr
from reconrisk.priors.diffusion import draw_clean
from reconrisk.priors.prior import draw_within_range

MEAN = torch.tensor([0.3, 0.6])
COVARIANCE = torch.tensor([[0.010, 0.004], [0.004, 0.006]])
PRIOR = rr.priors.gaussian(MEAN, COVARIANCE)
DRAWS = 20_000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_draws_of_a_gaussian_prior_have_its_mean_and_covariance():
    drawn = draw_within_range(PRIOR.diffusion, DRAWS, generator(), steps=500)
    # five standard errors of a mean of DRAWS values; of variances, and 1 percent for steps that are finite
    assert torch.allclose(drawn.mean(0), MEAN, atol=5 * math.sqrt(0.01 / DRAWS))
    assert torch.allclose(drawn.T.cov(), COVARIANCE, rtol=0.01 + 5 * math.sqrt(2 / DRAWS), atol=2e-4)


@pytest.mark.parametrize("time", [100, 400])
def test_draws_behind_a_noisy_record_follow_the_exact_posterior(time):
    share = float(PRIOR.schedule.signal[time])
    inner = 4 * COVARIANCE.double()  # the prior sees records in [-1, 1]
    gain = share**0.5 * inner @ torch.linalg.inv(share * inner + (1 - share) * torch.eye(2).double())
    noisy = torch.tensor([[0.4, -0.5]])
    centre = 2 * MEAN.double() - 1
    mean = (centre + gain @ (noisy[0].double() - share**0.5 * centre) + 1) / 2
    covariance = (inner - share**0.5 * gain @ inner) / 4
    drawn = draw_clean(PRIOR.diffusion, noisy.expand(DRAWS, 2), time, steps=time + 1, rng=generator(1)).double()
    spread = covariance.diagonal().sqrt()
    assert bool(((drawn.mean(0) - mean).abs() < 5 * spread / math.sqrt(DRAWS)).all())
    # the last step takes the mean: beta_1 = 1e-4 of variance in the prior's units is a quarter of that here
    assert torch.allclose(drawn.T.cov(), covariance, rtol=0.02 + 5 * math.sqrt(2 / DRAWS), atol=1e-4)


def test_one_step_is_the_mean():
    noisy = torch.tensor([[0.4, -0.5]])
    one = draw_clean(PRIOR.diffusion, noisy, 300, steps=1, rng=generator())
    assert torch.allclose(one, PRIOR.diffusion.records(PRIOR.diffusion.clean(noisy, 300)))


def test_chance_is_the_argument_and_nothing_else():
    torch.manual_seed(1)
    one = draw_within_range(PRIOR.diffusion, 3, generator(7), steps=5)
    torch.manual_seed(2)
    assert torch.equal(one, draw_within_range(PRIOR.diffusion, 3, generator(7), steps=5))
    assert not torch.equal(one, draw_within_range(PRIOR.diffusion, 3, generator(8), steps=5))


def test_draws_lie_in_the_data_range():
    wide = rr.priors.gaussian(MEAN, 100 * COVARIANCE)
    drawn = draw_within_range(wide.diffusion, 200, generator(), steps=10)
    assert (float(drawn.min()), float(drawn.max())) == (0.0, 1.0)


@pytest.mark.parametrize("time", [-1, 1000])
def test_a_time_that_the_prior_lacks_is_refused(time):
    with pytest.raises(rr.InvalidInput, match=f"time={time}"):
        draw_clean(PRIOR.diffusion, torch.zeros(1, 2), time, rng=generator())


def test_no_steps_are_refused():
    with pytest.raises(rr.InvalidInput, match="steps=0 >= 1"):
        draw_within_range(PRIOR.diffusion, 1, generator(), steps=0)
