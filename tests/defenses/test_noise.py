import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

import reconrisk as rr
from reconrisk.defenses import clip_and_noise, gaussian_noise


def released(scale=1.0):
    rng = torch.Generator().manual_seed(0)
    return {"weight": scale * torch.randn(40, 50, generator=rng), "bias": scale * torch.randn(40, generator=rng)}


def norm_of(tensors):
    return float(torch.cat([value.flatten() for value in tensors.values()]).norm())


@pytest.mark.parametrize("std", [0.01, 3.0])
def test_noise_has_the_stated_variance(std):
    clean = released()
    sent = gaussian_noise(std)(clean, rng=torch.Generator().manual_seed(1))
    added = torch.cat([(sent[name] - clean[name]).flatten() for name in clean]).double()
    low, high = chi2.ppf([1e-6, 1 - 1e-6], len(added)) * std**2
    assert low < float(added.square().sum()) < high
    assert gaussian_noise(std).mechanism is None


@given(clip_norm=st.floats(1e-3, 1e3), scale=st.floats(1e-3, 1e3))
def test_replay_never_exceeds_the_norm_and_keeps_the_direction(clip_norm, scale):
    clean = released(scale)
    clipped = clip_and_noise(noise_multiplier=1.0, clip_norm=clip_norm).replay(clean)
    assert norm_of(clipped) <= clip_norm * (1 + 1e-5)
    factor = min(1.0, clip_norm / norm_of(clean))
    torch.testing.assert_close(clipped["bias"], factor * clean["bias"], rtol=1e-4, atol=1e-7 * clip_norm)


def test_clipping_comes_before_noise_of_multiplier_times_norm():
    defense = clip_and_noise(noise_multiplier=0.5, clip_norm=2.0)
    assert defense.mechanism == rr.mechanisms.Gaussian(noise_multiplier=0.5, clip_norm=2.0)
    sent = defense(released(100.0), rng=torch.Generator().manual_seed(1))
    noise = math.sqrt(2040) * 1.0
    assert norm_of(sent) == pytest.approx(math.hypot(2.0, noise), rel=0.15)
    assert {float(value.unique()) for value in defense.noise_std(sent).values()} == {1.0}
    assert defense.kept(sent) is None


def test_a_zero_release_is_clipped_without_nan_and_can_be_differentiated():
    zero = {"weight": torch.zeros(3, requires_grad=True)}
    clipped = clip_and_noise(noise_multiplier=1.0, clip_norm=1.0).replay(zero)["weight"]
    assert torch.equal(clipped, torch.zeros(3))
    (slope,) = torch.autograd.grad(clipped.sum(), zero["weight"])
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_is_none_is_refused(std):
    with pytest.raises(rr.InvalidInput, match="std"):
        gaussian_noise(std)


@pytest.mark.parametrize("settings", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, math.nan)])
def test_clipping_settings_must_be_positive(settings):
    with pytest.raises(rr.InvalidInput, match=r"noise_multiplier|clip_norm"):
        clip_and_noise(noise_multiplier=settings[0], clip_norm=settings[1])


def test_repr_shows_every_setting():
    assert repr(gaussian_noise(0.5)) == "NoisyRelease(std=0.5, clip_norm=None)"
    assert repr(clip_and_noise(noise_multiplier=2.0, clip_norm=0.5)) == "NoisyRelease(std=1.0, clip_norm=0.5)"


def test_defenses_are_values():
    assert clip_and_noise(noise_multiplier=2.0, clip_norm=0.5) == clip_and_noise(noise_multiplier=2.0, clip_norm=0.5)
    assert gaussian_noise(1.0) != gaussian_noise(2.0)


def test_noise_depends_on_the_generator_alone_and_keeps_shapes_and_precision():
    clean = {"weight": torch.zeros(3, 2, dtype=torch.float64), "scalar": torch.zeros(())}
    state = torch.get_rng_state()
    first, again = (gaussian_noise(1.0)(clean, rng=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    for name, value in clean.items():
        assert torch.equal(first[name], again[name])
        assert (first[name].shape, first[name].dtype) == (value.shape, value.dtype)
    assert not bool(clean["weight"].any())


def test_the_derivative_of_clipping_is_that_of_the_formula():
    values = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    defense = clip_and_noise(noise_multiplier=1.0, clip_norm=2.0)

    def clipped(given):
        return defense.replay({"w": given})["w"]

    unit = values.detach() / 5
    expected = 2.0 / 5 * (torch.eye(2, dtype=torch.float64) - torch.outer(unit, unit))
    torch.testing.assert_close(torch.autograd.functional.jacobian(clipped, values), expected)
    assert torch.equal(clip_and_noise(noise_multiplier=1.0, clip_norm=6.0).replay({"w": values})["w"], values)
