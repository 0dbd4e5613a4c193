"""The protocol that every prior meets, the package's own and those of others."""

import dataclasses
from typing import ClassVar

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.priors.prior import BasePrior, draw_within_range, is_prior
from reconrisk.priors.registry import PRIORS


@dataclasses.dataclass(frozen=True)
class Uniform(BasePrior):
    """A prior of somebody's own: all that it has to define."""

    kind: ClassVar[str] = "uniform"

    name: str = "uniform"
    shape: tuple[int, ...] = (2,)
    data_range: tuple[float, float] = (0.0, 1.0)

    def draw(self, count, rng):
        low, high = self.data_range
        return low + (high - low) * torch.rand(count, *self.shape, generator=rng)

    def scaled_to(self, data_range):
        return dataclasses.replace(self, data_range=data_range)


def weighted(weight):
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, weight)
    nn.init.zeros_(layer.bias)
    return layer


OWN = {
    "gaussian": lambda scale: rr.priors.gaussian(torch.full((2,), 0.5), 0.01 * scale * torch.eye(2)),
    "diffusion": lambda scale: rr.priors.denoiser(lambda noisy, times: scale * noisy, (2,)),
    "gan": lambda scale: rr.priors.generator(nn.Sequential(weighted(scale), nn.Tanh()), (2,), 2),
}


@pytest.mark.parametrize("kind", OWN)
def test_the_packages_own_priors_meet_the_protocol(kind):
    prior = OWN[kind](1.0)
    assert is_prior(prior)
    assert prior.kind == kind
    assert kind in PRIORS
    assert prior.fingerprint == OWN[kind](1.0).fingerprint
    assert prior.fingerprint != OWN[kind](2.0).fingerprint
    assert prior.fingerprint != prior.scaled_to((0.0, 2.0)).fingerprint
    assert 0 < prior.time_pass() < 10


def test_a_normal_law_and_its_denoiser_are_one_belief():
    law = OWN["gaussian"](1.0)
    assert law.fingerprint == law.diffusion.fingerprint


def test_a_prior_of_ones_own_defines_two_methods():
    prior = Uniform()
    assert is_prior(prior)
    assert prior.mean is None
    assert prior.fingerprint == Uniform().fingerprint != prior.scaled_to((0.0, 2.0)).fingerprint
    assert 0 <= prior.time_pass() < 10
    with pytest.raises(rr.InvalidInput, match=r"prior\.shape"):
        prior.check_fits((3,), (0.0, 1.0))


def test_a_baseline_takes_a_prior_of_ones_own():
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR)
    seen = rr.Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, threat, (2,), (0.0, 1.0))
    found = rr.attacks.prior_alone(Uniform(), draws=4000)(seen, rng=torch.Generator().manual_seed(0))
    assert float((found.estimates - 0.5).abs().max()) < 0.03  # six standard errors of the mean of 4,000 draws


@pytest.mark.parametrize("value", [None, "gaussian", Uniform, object(), nn.Linear(1, 1)])
def test_what_lacks_a_member_is_no_prior(value):
    assert not is_prior(value)
    with pytest.raises(rr.InvalidInput, match="to be a prior"):
        rr.attacks.prior_alone(value)


def test_asking_computes_nothing():
    class Costly(Uniform):
        @property
        def fingerprint(self):
            raise AssertionError("a digest of a large network")

    assert is_prior(Costly())


def test_draws_in_steps_are_those_of_baselines():
    prior = OWN["gaussian"](1.0).diffusion
    made = draw_within_range(prior, 3, torch.Generator().manual_seed(1), steps=7)
    expected = prior.draw_in_steps(3, torch.Generator().manual_seed(1), steps=7).clamp(0, 1)
    assert torch.equal(made, expected)
    assert not torch.equal(made, draw_within_range(prior, 3, torch.Generator().manual_seed(1), steps=8))
