"""Attacks with a network in single precision, where double precision is the default."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reproductions.meng2025.jensen_gap import jensen_gap

SHAPE = (1, 8, 8)


class Noise(nn.Module):
    """One convolution."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, noisy, times):
        return self.inner(noisy)


def denoiser():
    return rr.priors.denoiser(Noise().float(), SHAPE)


def generator():
    return rr.priors.generator(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Unflatten(1, SHAPE)).float(), SHAPE, 4)


def refined(prior):
    few = {"starts": 2, "levels": 2, "last_iterations": 1, "inner_iterations": 2}
    return rr.attacks.plug_and_play(prior, warm_start=rr.attacks.ggss_r(prior, steps=2), **few)


def evolved(prior):
    pytest.importorskip("cma", reason="needs the extra diffusion")
    return rr.attacks.ggl(prior, steps=2, population=4)


ATTACKS = {
    "ggss_r": lambda: rr.attacks.ggss_r(denoiser(), steps=3),
    "plug_and_play": lambda: refined(denoiser()),
    "finetuned_diffusion": lambda: rr.attacks.finetuned_diffusion(denoiser(), steps=2, sampling_steps=2),
    "gias": lambda: rr.attacks.gias(generator(), steps=2, weight_steps=2, restarts=2),
    "gifd": lambda: rr.attacks.gifd(generator(), steps=2, layer_steps=2, restarts=2),
    "ggl": lambda: evolved(generator()),
    "prior_alone, diffusion": lambda: rr.attacks.prior_alone(denoiser(), draws=2, steps=2),
    "prior_alone, generator": lambda: rr.attacks.prior_alone(generator(), draws=2),
}


@pytest.fixture
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def rng():
    return torch.Generator().manual_seed(0)


def observed(threat, dtype):
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 4)).to(dtype)
    record = torch.rand(1, *SHAPE, generator=rng()).to(dtype)
    release = rr.releases.GradientRelease(network, nn.functional.cross_entropy, record, torch.tensor([3]))
    return rr.observe(release, defense=rr.defenses.gaussian_noise(0.01), threat=threat, rng=rng())


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("known", [(), (rr.Knows.DEFENSE,)])
@pytest.mark.parametrize("name", ATTACKS)
def test_networks_in_single_precision_serve_where_double_is_the_default(name, known, dtype):
    attack = ATTACKS[name]()
    found = attack(observed(attack.needs.with_knowledge(rr.Knows.LABELS, *known), dtype), rng=rng())
    assert found.estimates.dtype == torch.float64
    assert not found.status.is_failure


@pytest.mark.usefixtures("double_precision")
def test_the_jensen_gap_of_a_network_in_single_precision():
    prior = denoiser()
    attack = rr.attacks.ggss_r(prior, steps=5)
    observation = observed(attack.needs.with_knowledge(rr.Knows.LABELS), torch.float64)
    gap = jensen_gap(prior, observation, attack=attack, draws=4, rng=rng())
    assert all(each.low <= each.high for each in gap.gaps)
