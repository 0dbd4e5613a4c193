import dataclasses
import math

import pytest
import torch

import reconrisk as rr
from reconrisk.attacks.baselines import prior_alone
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows

THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR)
MEAN = torch.tensor([0.2, 0.7, 0.4])
SPREAD = 0.1
GAUSSIAN = rr.priors.gaussian(MEAN, SPREAD**2 * torch.eye(3))
PRIORS = {
    "gaussian": GAUSSIAN,
    "denoiser": GAUSSIAN.diffusion,
    "diffusion": dataclasses.replace(GAUSSIAN.diffusion, mean=None),
    "generator": rr.priors.generator(lambda latents: MEAN + SPREAD * latents, (3,), 3, units=(0.0, 1.0)),
}


def seen(released=1.0, threat=THREAT, records=2):
    def forward(inputs, labels):
        raise AssertionError("The release was looked at")

    return Observation({"y": torch.full((4,), released)}, forward, threat, (3,), (0.0, 1.0), records)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("guess", ["mean", "draw"])
@pytest.mark.parametrize("name", PRIORS)
def test_nothing_of_the_release_is_looked_at(name, guess):
    attack = prior_alone(PRIORS[name], guess=guess, draws=4, steps=4)
    one, other = (attack(seen(released), rng=generator()).estimates for released in (0.0, 1e6))
    assert torch.equal(one, other)
    assert one.shape == (2, 3)


@pytest.mark.parametrize("name", PRIORS)
def test_the_mean_is_that_of_the_prior_and_the_same_for_every_record(name):
    draws = 4000
    found = prior_alone(PRIORS[name], draws=draws)(seen(), rng=generator()).estimates
    tolerance = 1e-6 if name in ("gaussian", "denoiser") else 5 * SPREAD / math.sqrt(draws)  # five standard errors
    assert torch.allclose(found[0], MEAN, atol=tolerance)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("name", PRIORS)
def test_draws_differ_and_spread_as_the_prior_does(name):
    draws = 4000
    found = prior_alone(PRIORS[name], guess="draw", steps=200)(seen(records=draws), rng=generator())
    # five standard errors, and 5 percent for the steps of the diffusion and for what is cut at the range
    assert torch.allclose(found.estimates.std(0), torch.full((3,), SPREAD), rtol=0.05 + 5 / math.sqrt(2 * draws))


def test_a_draw_is_twice_as_far_as_the_mean_in_squared_error():
    targets = GAUSSIAN.draw(4000, generator(1)).float()
    mean, draw = (
        prior_alone(GAUSSIAN, guess=guess)(seen(records=4000), rng=generator(2)).estimates for guess in ("mean", "draw")
    )
    errors = [float((found - targets).square().mean()) for found in (mean, draw)]
    # squares of 12000 normal values: five relative standard errors are 0.065; cutting at the range takes 3 percent
    assert errors[1] / errors[0] == pytest.approx(2.0, rel=0.1)


def test_the_mean_of_a_denoiser_moves_with_the_units():
    moved = GAUSSIAN.diffusion.scaled_to((0.0, 255.0))
    assert torch.allclose(moved.mean.float(), 255 * MEAN)


def test_nothing_speaks_for_the_guess():
    found = prior_alone(GAUSSIAN)(seen(), rng=generator())
    assert found.account.objective == (math.inf, math.inf)
    assert found.account.cost.evaluations == 0
    assert found.account.attack == "prior_alone(gaussian, guess='mean', draws=64, steps=50)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threat": HONEST_BUT_CURIOUS}, "to cover what the attack needs"),
        ({"input_shape": (4,)}, r"prior\.shape"),
        ({"data_range": (0.0, 255.0)}, r"prior\.data_range"),
    ],
)
@pytest.mark.parametrize("name", PRIORS)
def test_what_the_prior_was_not_made_for_is_refused(name, change, message):
    with pytest.raises(rr.InvalidInput, match=message):
        prior_alone(PRIORS[name])(dataclasses.replace(seen(), **change), rng=generator())


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"guess": "mode"}, 'to be "mean" or "draw"'), ({"draws": 0}, "draws=0 >= 1"), ({"steps": 0}, "steps=0 >= 1")],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(rr.InvalidInput, match=message):
        prior_alone(GAUSSIAN, **settings)


def test_what_is_no_prior_is_refused():
    with pytest.raises(rr.InvalidInput, match="to be a prior"):
        prior_alone(MEAN)


def test_a_denoiser_without_numbers_is_refused_by_its_name():
    broken = rr.priors.denoiser(lambda noisy, times: noisy * math.nan, (3,), name="broken")
    with pytest.raises(rr.InvalidInput, match="the noise of broken"):
        prior_alone(broken)(seen(), rng=generator())
