"""What priors attain on records, against closed forms."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.spatial.distance import cdist

from reconrisk.core.errors import InvalidInput
from reconrisk.priors import denoiser, denoising_loss, fit_gaussian, frechet_distance, gaussian, nearest_distance


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_loss_of_a_gaussian_is_its_closed_form():
    # values v ~ N(0, s2) in units of [-1, 1]: the noise is left with variance a s2 / (a s2 + 1 - a)
    spread = 0.3
    prior = gaussian(torch.full((1, 4, 4), 0.5), spread**2 / 4 * torch.eye(16)).diffusion
    records = 0.5 + spread / 2 * torch.randn(2000, 1, 4, 4, generator=rng())
    times = (100, 500, 900)
    found = denoising_loss(prior, records, rng=rng(1), times=times)
    assert found.shape == (2000, 3)
    for place, time in enumerate(times):
        share = float(prior.schedule.signal[time])
        expected = share * spread**2 / (share * spread**2 + 1 - share)
        # each is a mean of 32,000 squares of normal values: relative standard error sqrt(2 / 32,000) = 0.8%
        assert float(found[:, place].mean()) == pytest.approx(expected, rel=0.04)


def test_finding_no_noise_has_loss_one_and_draws_depend_on_the_seed_alone():
    prior = denoiser(lambda noisy, times: 0 * noisy, (1, 8, 8))
    found = denoising_loss(prior, torch.rand(200, 1, 8, 8), rng=rng())
    assert float(found.mean()) == pytest.approx(1.0, abs=0.02)  # 128,000 squares: standard error 0.004
    assert torch.equal(found, denoising_loss(prior, torch.rand(200, 1, 8, 8), rng=rng()))


@pytest.mark.parametrize(
    ("records", "times", "words"),
    [
        (torch.rand(2, 1, 3, 3), (1,), "shape"),
        (torch.rand(0, 1, 8, 8), (1,), "empty"),
        (torch.rand(2, 1, 8, 8), (), "times"),
        (torch.rand(2, 1, 8, 8), (1000,), "times=1000 < 1000"),
    ],
)
def test_what_cannot_be_measured_is_refused(records, times, words):
    prior = denoiser(lambda noisy, times: 0 * noisy, (1, 8, 8))
    with pytest.raises(InvalidInput, match=words):
        denoising_loss(prior, records, rng=rng(), times=times)


def test_the_nearest_is_that_of_all_distances():
    records, others = torch.rand(300, 2, 3, generator=rng()), torch.rand(40, 2, 3, generator=rng(1))
    expected = (cdist(records.flatten(1), others.flatten(1)) ** 2).min(1) / 6
    np.testing.assert_allclose(nearest_distance(records, others), expected, rtol=1e-4, atol=1e-6)
    assert float(nearest_distance(records, records).max()) < 1e-6
    with pytest.raises(InvalidInput, match=r"others.shape=\(40, 1, 3\) to be \(40, 2, 3\)"):
        nearest_distance(records, others[:, :1])


def test_the_frechet_distance_is_that_of_a_matrix_root():
    one = torch.randn(50, 4, generator=rng()).double() @ torch.randn(4, 4, generator=rng(1)).double()
    other = torch.randn(60, 4, generator=rng(2)).double() + 1
    first, second = np.cov(one.T), np.cov(other.T)
    gap = np.square(one.numpy().mean(0) - other.numpy().mean(0)).sum()
    expected = gap + np.trace(first + second - 2 * sqrtm(first @ second).real)
    assert frechet_distance(one, other, torch.eye(4)) == pytest.approx(expected, rel=1e-8)
    assert frechet_distance(one, one, torch.eye(4)) == pytest.approx(0, abs=1e-10)
    assert frechet_distance(one, other, torch.eye(4)[:, :2]) < expected


def test_draws_of_a_diffusion_have_the_mean_and_covariance_of_their_gaussian():
    records = torch.rand(60, 1, 2, 2, generator=rng())
    records[:, :, 1] = 0.5 * records[:, :, 0] + 0.2
    fitted = fit_gaussian(records, floor=0.05)
    drawn = fitted.diffusion.draw(4000, rng(1), steps=200).double().flatten(1)
    # 4,000 draws: standard errors of 1.6% of a standard deviation, 2.2% of a variance; 200 steps are nearly exact
    spread = float(fitted.variances.max()) ** 0.5
    assert float((drawn.mean(0) - fitted.mean.flatten()).abs().max()) < 5 * spread / 4000**0.5
    covariance = fitted.root @ fitted.root.T
    assert float((torch.cov(drawn.T) - covariance).abs().max()) < 0.12 * spread**2
    assert torch.equal(fitted.diffusion.draw(3, rng(2)), fitted.diffusion.draw(3, rng(2), steps=50))
    with pytest.raises(InvalidInput, match="count"):
        fitted.diffusion.draw(0, rng())


def test_the_spread_of_one_record_is_refused():
    with pytest.raises(InvalidInput, match=r"len\(others\)=1 >= 2"):
        frechet_distance(torch.rand(3, 2), torch.rand(1, 2), torch.eye(2))
