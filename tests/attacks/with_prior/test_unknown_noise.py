"""Estimated noise where none is known."""

import pytest
import torch

from reconrisk.attacks.with_prior.gaussian_posterior import gaussian_posterior
from reconrisk.attacks.with_prior.plug_and_play import plug_and_play
from reconrisk.attacks.with_prior.unknown_noise import assume_noise, count_sent_values, squared_residual
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.priors.gaussian import gaussian

THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR, Knows.DEFENSE)


def observed(values, kept=None):
    return Observation(
        {"y": values},
        lambda records, labels: {"y": records[0]},
        THREAT,
        tuple(values.shape),
        (0.0, 1.0),
        labels=torch.tensor([0]),
        kept=None if kept is None else {"y": kept},
    )


def test_it_is_the_residual_of_the_values_that_were_sent():
    kept = torch.zeros(1000, dtype=torch.bool)
    kept[:100] = True
    values = torch.where(kept, 0.3 * torch.randn(1000, generator=torch.Generator().manual_seed(0)), 0.0)
    observation = observed(values, kept)
    assert count_sent_values(observation) == 100
    believed = assume_noise(observation, torch.zeros(1, 1000), observation.labels)
    assert float(believed.noise_std["y"][0]) == pytest.approx(float(values[:100].square().mean().sqrt()), rel=1e-5)
    assert squared_residual(believed, torch.zeros(1, 1000), observation.labels) == pytest.approx(100, rel=1e-5)


@pytest.mark.parametrize("build", [plug_and_play, gaussian_posterior])
def test_a_release_of_zeros_is_no_error(build):
    prior = gaussian(torch.full((3,), 0.5), 0.01 * torch.eye(3))
    found = build(prior)(observed(torch.zeros(3)), rng=torch.Generator().manual_seed(0))
    assert bool(found.estimates.isfinite().all())
