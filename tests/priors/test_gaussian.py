"""The Gaussian prior: its denoiser against the textbook formula, and what is no covariance."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.data.dataset import Dataset
from reconrisk.priors.diffusion import linear_schedule
from reconrisk.priors.gaussian import fit_gaussian, gaussian


def moments(seed, size=5):
    rng = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=rng, dtype=torch.float64)
    return torch.rand(size, generator=rng, dtype=torch.float64), 0.02 * root @ root.T


@given(st.integers(0, 1000), st.integers(0, 99))
def test_the_denoiser_is_the_conditional_mean(seed, time):
    mean, covariance = moments(seed)
    schedule = linear_schedule(100, last=0.1)
    prior = gaussian(mean, covariance, schedule=schedule).diffusion
    noisy = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    share = float(schedule.signal[time])
    # in units of [-1, 1] records have mean 2m - 1 and covariance 4S
    gain = (
        share**0.5
        * 4
        * covariance
        @ torch.linalg.inv(share * 4 * covariance + (1 - share) * torch.eye(5, dtype=torch.float64))
    )
    expected = (2 * mean - 1) + (noisy - share**0.5 * (2 * mean - 1)) @ gain.T
    assert torch.allclose(prior.clean(noisy, time), expected, atol=1e-8)


def test_draws_have_the_moments():
    mean, covariance = moments(3)
    drawn = gaussian(mean, covariance).draw(20_000, torch.Generator().manual_seed(0))
    error = (covariance.diagonal() / 20_000).sqrt()  # of a mean of so many draws
    assert bool(((drawn.mean(0) - mean).abs() < 5 * error).all())
    spread = torch.cov(drawn.T)
    scale = (covariance.diagonal()[:, None] * covariance.diagonal()).sqrt()
    assert bool(((spread - covariance).abs() < 5 * scale * (2 / 20_000) ** 0.5).all())


def test_a_fit_has_the_moments_of_the_records():
    records = torch.rand(50, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    prior = fit_gaussian(records, floor=0.1, data_range=(0.0, 2.0))
    flat = records.double().flatten(1)
    assert prior.shape == (1, 2, 2)
    assert torch.allclose(prior.mean.flatten(), flat.mean(0))
    expected = torch.cov(flat.T, correction=0) + 0.04 * torch.eye(4, dtype=torch.float64)
    assert torch.allclose(prior.root @ prior.root.T, expected)


@pytest.mark.parametrize(
    ("covariance", "words"),
    [
        (torch.eye(3), r"to be \(2, 2\)"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "positive semidefinite"),
        (torch.full((2, 2), float("nan")), "finite"),
    ],
)
def test_what_is_no_covariance_is_refused(covariance, words):
    with pytest.raises(InvalidInput, match=words):
        gaussian(torch.zeros(2), covariance)


def test_a_covariance_without_full_rank_is_one():
    prior = gaussian(torch.zeros(2), torch.ones(2, 2))
    drawn = prior.draw(10, torch.Generator().manual_seed(0))
    assert torch.allclose(drawn[:, 0], drawn[:, 1], atol=1e-6)


def test_in_another_range_it_is_the_prior_of_the_same_records_in_other_units():
    records = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    scaled = fit_gaussian(records, floor=0.1).scaled_to((10.0, 14.0))
    direct = fit_gaussian(10 + 4 * records.double(), floor=0.1, data_range=(10.0, 14.0))
    assert torch.allclose(scaled.mean, direct.mean)
    assert torch.allclose(scaled.root @ scaled.root.T, direct.root @ direct.root.T)
    assert scaled.diffusion.data_range == (10.0, 14.0)


def test_records_of_another_shape_or_range_are_refused():
    prior = gaussian(torch.zeros(2), torch.eye(2))
    prior.check_fits((2,), (0.0, 1.0))
    with pytest.raises(InvalidInput, match=r"prior\.shape"):
        prior.check_fits((3,), (0.0, 1.0))
    with pytest.raises(InvalidInput, match="scaled_to"):
        prior.check_fits((2,), (0.0, 255.0))


@pytest.mark.parametrize("ends", [(1.0, 0.0), (0.0, 0.0), (0.0,)])
def test_what_is_no_range_is_refused(ends):
    prior = gaussian(torch.zeros(2), torch.eye(2))
    for build in (
        lambda: gaussian(torch.zeros(2), torch.eye(2), data_range=ends),
        lambda: fit_gaussian(torch.zeros(2, 2), data_range=ends),
        lambda: prior.scaled_to(ends),
    ):
        with pytest.raises(InvalidInput, match="data_range"):
            build()
    with pytest.raises(InvalidInput, match="within data_range"):
        fit_gaussian(2 + torch.zeros(2, 2))


def test_arrays_of_numpy_are_tensors():
    mean, covariance = moments(2)
    one, other = gaussian(mean, covariance), gaussian(mean.numpy(), covariance.numpy())
    assert torch.equal(one.root, other.root)
    records = torch.rand(9, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(fit_gaussian(records).root, fit_gaussian(records.numpy()).root)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Dataset("toy", torch.rand(4, 2)), r"records='Dataset' to be a tensor.*Pass its \.inputs"),
        ([[0.0, 1.0]], "records='list' to be a tensor"),
        (np.array(["text"]), "records='ndarray' to be a tensor or a numerical array"),
    ],
)
def test_what_are_no_records_is_refused(given, words):
    with pytest.raises(InvalidInput, match=words):
        fit_gaussian(given)
