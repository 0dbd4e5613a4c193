"""Denoisers as priors: units, clean records, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.priors.diffusion import NoiseSchedule, denoiser, linear_schedule
from reconrisk.priors.gaussian import gaussian


@given(st.integers(0, 99), st.integers(0, 2**31))
def test_clean_inverts_noising_for_who_knows_the_noise(time, seed):
    rng = torch.Generator().manual_seed(seed)
    schedule = linear_schedule(100)
    clean, noise = torch.randn(2, 3, 4, generator=rng).double()
    share = float(schedule.signal[time])
    noisy = share**0.5 * clean + (1 - share) ** 0.5 * noise
    prior = denoiser(lambda records, times: noise.expand_as(records), (4,), schedule=schedule)
    assert torch.allclose(prior.clean(noisy, time), clean, atol=1e-9)


@given(st.floats(-300, 300), st.floats(0.1, 300))
def test_values_and_records_are_inverse(low, width):
    prior = denoiser(lambda records, times: records, (3,), data_range=(low, low + width), units=(-0.5, 0.5))
    ends = torch.tensor([[low, low + width / 2, low + width]], dtype=torch.float64)
    assert torch.allclose(prior.values(ends), torch.tensor([[-0.5, 0.0, 0.5]], dtype=torch.float64), atol=1e-11)
    assert torch.allclose(prior.records(prior.values(ends)), ends, atol=1e-9 * (abs(low) + width))


def test_denoising_is_in_the_units_of_the_data():
    # records N(0, 1) in units of [-1, 1]: the mean given a noisy value shrinks it by 1 / (1 + level^2)
    schedule = linear_schedule(1000)

    def predict(noisy, times):
        share = schedule.signal[times].to(noisy.dtype)[:, None]
        return noisy * (1 - share).sqrt()

    prior = denoiser(predict, (1,), schedule=schedule, data_range=(0.0, 255.0))
    level = schedule.noise_level(400)
    found = prior.denoise(torch.tensor([[200.0]]).double(), level * 127.5)
    assert float(found) == pytest.approx(127.5 + (200 - 127.5) / (1 + level**2), rel=1e-9)


def test_noise_that_is_no_number_is_refused_by_the_name_of_the_prior():
    prior = denoiser(lambda records, times: records * float("nan"), (2,), name="broken")
    with pytest.raises(InvalidInput, match=r"Expected the noise of broken at time 3 to be finite\. Check"):
        prior.noise(torch.zeros(1, 2), 3)


def test_noise_of_another_shape_is_refused():
    prior = denoiser(lambda records, times: records[:, :1], (2,))
    with pytest.raises(InvalidInput, match=r"to be a tensor of shape \(1, 2\).* It is of shape \(1, 1\)"):
        prior.noise(torch.zeros(1, 2), 3)


def test_records_of_another_shape_or_range_are_refused_with_what_to_do():
    prior = denoiser(lambda records, times: records, (1, 4, 4))
    with pytest.raises(InvalidInput, match=r"reconrisk train-prior"):
        prior.check_fits((3, 4, 4), (0.0, 1.0))
    with pytest.raises(InvalidInput, match=r"scaled_to\(\(0, 255\)\)"):
        prior.check_fits((1, 4, 4), (0, 255))
    prior.scaled_to((0, 255)).check_fits((1, 4, 4), (0, 255))


class Scheduler:
    """As diffusers has them."""

    alphas_cumprod = linear_schedule(100).signal


@pytest.mark.parametrize("schedule", [Scheduler(), [0.9, 0.5, 0.1], [], Scheduler.alphas_cumprod])
def test_what_is_no_schedule_is_refused_with_how_to_make_one(schedule):
    with pytest.raises(InvalidInput, match=r"Pass rr\.priors\.NoiseSchedule\(scheduler\.alphas_cumprod\)"):
        denoiser(lambda records, times: records, (2,), schedule=schedule)
    with pytest.raises(InvalidInput, match="to be a NoiseSchedule"):
        gaussian(torch.zeros(2), torch.eye(2), schedule=schedule)
    assert len(NoiseSchedule(Scheduler.alphas_cumprod)) == len(NoiseSchedule(Scheduler.alphas_cumprod.numpy())) == 100
