"""Attacks on releases that are on another device than the CPU, such as a graphics card."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.priors.load.gan import new_generator
from reconrisk.priors.train.diffusion import new_network
from tests.other_device import ELSEWHERE, TwoDevices

SHAPE = (1, 8, 8)


class Noise(nn.Module):
    """A network of diffusers that nobody trained."""

    def __init__(self):
        super().__init__()
        self.inner = new_network(SHAPE, (8, 8))

    def forward(self, noisy, times):
        return self.inner(noisy, times).sample


def moved(module):
    return module.eval().requires_grad_(False).to(ELSEWHERE)


def normal():
    return rr.priors.fit_gaussian(torch.rand(80, *SHAPE, generator=torch.Generator().manual_seed(1)))


def diffusion():
    return rr.priors.denoiser(moved(Noise()), SHAPE)


def generator():
    return rr.priors.generator(moved(new_generator(SHAPE, 4, 8)), SHAPE, 4)


def refined(prior):
    few = {"starts": 2, "levels": 2, "last_iterations": 1, "inner_iterations": 2}
    return rr.attacks.plug_and_play(prior, warm_start=rr.attacks.ggss_r(prior, steps=2), **few)


ATTACKS = {
    "ggss_r": lambda: rr.attacks.ggss_r(diffusion(), steps=3),
    "ggss_r, normal": lambda: rr.attacks.ggss_r(normal(), steps=3),
    "plug_and_play": lambda: refined(diffusion()),
    "plug_and_play, normal": lambda: refined(normal()),
    "gaussian_posterior": lambda: rr.attacks.gaussian_posterior(normal(), iterations=2, inner_iterations=2),
    "finetuned_diffusion": lambda: rr.attacks.finetuned_diffusion(diffusion(), steps=1, sampling_steps=2),
    "gias": lambda: rr.attacks.gias(generator(), steps=2, weight_steps=1, restarts=2),
    "gifd": lambda: rr.attacks.gifd(generator(), steps=2, layer_steps=1, restarts=1),
    "ggl": lambda: rr.attacks.ggl(generator(), steps=2, population=4),
    "prior_alone": lambda: rr.attacks.prior_alone(generator()),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("name", ATTACKS)
def test_records_are_rebuilt_where_the_release_is(name):
    with TwoDevices():
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 4)).to(ELSEWHERE)
        attack = ATTACKS[name]()
        record, label = torch.rand(1, *SHAPE).to(ELSEWHERE), torch.tensor([3]).to(ELSEWHERE)
        release = rr.releases.GradientRelease(model, nn.functional.cross_entropy, record, label)
        threat = attack.needs.with_knowledge(rr.Knows.DEFENSE)  # labels have to be inferred
        noise = rr.defenses.gaussian_noise(0.01)
        observation = rr.observe(release, defense=noise, threat=threat, rng=torch.Generator().manual_seed(0))
        found = attack(observation, rng=torch.Generator().manual_seed(0))
        assert found.estimates.device == ELSEWHERE
        assert not found.status.is_failure
