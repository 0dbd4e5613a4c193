"""Fitting and denoising in turn, against the exact posterior mean of a linear release under a Gaussian prior."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from reconrisk.attacks.baselines import constant_guess
from reconrisk.attacks.with_prior.gaussian_posterior import gaussian_posterior
from reconrisk.attacks.with_prior.plug_and_play import plug_and_play
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.priors.gaussian import gaussian
from tests.attacks.gaussian_problem import GaussianProblem


@pytest.mark.parametrize("noise", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("noise_is_known", [True, False])
def test_it_comes_to_the_posterior_mean(noise, noise_is_known):
    problem = GaussianProblem(size=6, equations=30, noise=noise, noise_is_known=noise_is_known)
    found, best = [], []
    for seed in range(8):
        target, observation = problem.drawn(seed)
        estimate = plug_and_play(problem.prior)(observation, rng=torch.Generator().manual_seed(seed)).estimates[0]
        found.append(float((estimate - target).square().mean()))
        best.append(float((problem.posterior_mean(observation) - target).square().mean()))
    # levels fall in steps and end above 0, and unknown noise is estimated from thirty equations
    assert sum(found) < 1.3 * sum(best)


@pytest.mark.parametrize("noise", [1.0, 5.0])
def test_where_noise_leaves_much_open_it_is_still_near_the_posterior_mean(noise):
    # fewer equations than values: the levels alone would leave the records where they begin
    problem = GaussianProblem(size=12, equations=6, noise=noise)
    found, best = [], []
    for seed in range(8):
        target, observation = problem.drawn(seed)
        estimate = plug_and_play(problem.prior)(observation, rng=torch.Generator().manual_seed(seed)).estimates[0]
        found.append(float((estimate - target).square().mean()))
        best.append(float((problem.posterior_mean(observation) - target).square().mean()))
    assert sum(found) < 1.3 * sum(best)


@pytest.mark.parametrize(
    "attack", [partial(plug_and_play, starts=1, levels=3), gaussian_posterior], ids=["pnp", "mean"]
)
def test_laplacian_noise_is_weighted_as_such(attack):
    # least absolute values have half the variance of least squares: the law must be used, and not only its variance
    problem = GaussianProblem(size=6, equations=400, noise=1.0, spread=3.0)
    errors = {"laplace": 0.0, "gaussian": 0.0}
    for seed in range(16):
        target, seen = problem.drawn(seed)
        target = 0.5 + 0.1 * (target - 0.5)
        law_of_noise = torch.distributions.Laplace(0.0, 0.5**0.5)  # of unit variance
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            noise = law_of_noise.sample((400,)).double()
        for law in errors:
            released = {"y": problem.matrix @ target + noise}
            observation = replace(seen, released=released, noise_law=law)
            found = attack(problem.prior)(observation, rng=torch.Generator().manual_seed(seed))
            errors[law] += float((found.estimates[0] - target).square().mean())
    assert errors["laplace"] < 0.8 * errors["gaussian"]


def test_a_clean_release_is_met():
    problem = GaussianProblem(size=6, equations=18, noise=0.0)
    target, observation = problem.drawn(1)
    found = plug_and_play(problem.prior)(observation, rng=torch.Generator().manual_seed(0))
    assert float((found.estimates[0] - target).square().mean()) < 1e-8
    assert found.status.ending is Ending.CONVERGED


def test_the_levels_fall_evenly_on_a_logarithmic_scale():
    attack = plug_and_play(GaussianProblem(3, 6, 0.1).prior, levels=5, first_level=1.0, last_level=1e-4)
    assert attack.noise_levels() == pytest.approx((1.0, 0.1, 0.01, 1e-3, 1e-4))


def test_time_spent_returns_what_there_is():
    problem = GaussianProblem(size=3, equations=6, noise=0.1)
    _, observation = problem.drawn(0)
    found = plug_and_play(problem.prior, seconds=1e-9)(observation, rng=torch.Generator())
    assert found.status.ending is Ending.BUDGET_SPENT
    assert found.estimates.shape == (1, 3)


def test_a_warm_start_adds_what_it_needs():
    prior = GaussianProblem(size=3, equations=6, noise=0.1).prior
    attack = plug_and_play(prior, warm_start=constant_guess(0.25))
    assert Knows.PRIOR in attack.needs.knows


class Scripted:
    """A warm start that returns one estimate after the other."""

    needs = HONEST_BUT_CURIOUS

    def __init__(self, *estimates):
        self.left = list(estimates)

    def __call__(self, observation, *, rng):
        del rng
        return constant_guess(self.left.pop(0))(observation, rng=torch.Generator())


def two_squares(noise_std=None):
    """Released are the squares of a number's distance from 0.5, so that two numbers explain it, and 0.5 does not."""
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR, Knows.DEFENSE)
    noise = None if noise_std is None else {"y": torch.full((1,), noise_std)}
    return Observation(
        {"y": torch.tensor([0.04])},
        lambda records, labels: {"y": (records[0] - 0.5) ** 2},
        threat,
        (1,),
        (0.0, 1.0),
        labels=torch.tensor([0]),
        noise_std=noise,
    )


def test_the_mean_of_ends_that_explain_equally_well_is_returned():
    prior = gaussian(torch.full((1,), 0.5), torch.full((1, 1), 10.0))
    attack = plug_and_play(prior, warm_start=Scripted(0.9, 0.1), starts=2, first_level=0.2)
    found = attack(two_squares(1e-3), rng=torch.Generator().manual_seed(0))
    one = plug_and_play(prior, warm_start=Scripted(0.9), starts=1, first_level=0.2)
    assert float(one(two_squares(1e-3), rng=torch.Generator().manual_seed(0)).estimates) == pytest.approx(0.7, abs=1e-3)
    assert float(found.estimates) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("noise_std", [1e-3, None])
def test_an_end_that_explains_less_is_left_out(noise_std):
    prior = gaussian(torch.full((1,), 0.5), torch.full((1, 1), 10.0))
    attack = plug_and_play(prior, warm_start=Scripted(0.5, 0.9), starts=2, first_level=0.2)  # at 0.5 nothing pulls
    found = attack(two_squares(noise_std), rng=torch.Generator().manual_seed(0))
    assert float(found.estimates) == pytest.approx(0.7, abs=1e-3)


def test_records_of_a_batch_are_averaged_in_one_order():
    problem = GaussianProblem(size=4, equations=12, noise=0.0, records=2)
    targets, observation = problem.drawn(1)
    one = plug_and_play(problem.prior, starts=3)(observation, rng=torch.Generator().manual_seed(0))
    assert float((one.estimates - targets).square().mean()) < 1e-8


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"levels": 0}, "levels=0"),
        ({"first_level": 0.01, "last_level": 0.1}, "last_level=0.1"),
        ({"starts": 0}, "starts=0"),
        ({"seconds": -1.0}, "seconds"),
        ({"warm_start": "ggss_r"}, "warm_start='ggss_r' to be callable"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(InvalidInput, match=words):
        plug_and_play(GaussianProblem(size=3, equations=6, noise=0.1).prior, **settings)
