"""Guided sampling on a linear release under a Gaussian prior, where the posterior is known."""

from dataclasses import replace

import pytest
import torch

import reconrisk as rr
from reconrisk.attacks.with_prior.guided_diffusion import GuidedTrajectory, ggss_r
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.priors.diffusion import denoiser
from reconrisk.priors.gaussian import gaussian
from tests.attacks.gaussian_problem import GaussianProblem

THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR)


def test_error_lies_between_the_posterior_mean_and_a_draw_of_the_posterior():
    # a draw of the posterior has twice the error of its mean; twelve targets leave a third of chance
    problem = GaussianProblem(size=8, equations=24, noise=0.3)
    found, best = [], []
    for seed in range(12):
        target, observation = problem.drawn(seed)
        estimate = ggss_r(problem.prior, guidance=0.3)(observation, rng=torch.Generator().manual_seed(seed)).estimates[
            0
        ]
        found.append(float((estimate - target).square().mean()))
        best.append(float((problem.posterior_mean(observation) - target).square().mean()))
    prior_alone = float(problem.prior.variances.mean())
    assert sum(best) / 12 < sum(found) / 12 < 3 * sum(best) / 12
    assert sum(found) / 12 < 0.7 * prior_alone


class Bent(torch.nn.Module):
    """Noise that is no linear function of the records, with a Jacobian that is not symmetric."""

    def forward(self, noisy, times):
        return (1.5 * noisy + 0.3 * noisy.roll(1, dims=1)).tanh() + 0.001 * times[:, None]


def test_a_step_is_that_of_the_formula():
    """Equation 17 and Algorithm 1 of meng2025 written out for a batch of two, derivatives by differences."""
    prior = denoiser(Bent(), (3,))
    matrix = torch.randn(7, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    seen = matrix @ torch.rand(6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    noise_std = torch.tensor([0.2, 0.5, 1.0, 2.0, 0.1, 3.0, 0.7])
    observation = Observation(
        {"y": seen.float()},
        lambda records, labels: {"y": (matrix.to(records.dtype) @ records.flatten().square())},
        THREAT.with_knowledge(Knows.DEFENSE),
        (3,),
        (0.0, 1.0),
        2,
        labels=torch.zeros(2, dtype=torch.int64),
        noise_std={"y": noise_std},
    )
    visited = []

    def remembering(noisy, times):
        visited.append(noisy.detach().double())
        return Bent()(noisy, times)

    attack = ggss_r(replace(prior, predict_noise=remembering), steps=4, guidance=0.3, step_size=0.8)
    attack.trace(observation, rng=torch.Generator().manual_seed(5))
    times = prior.schedule.times(4)
    shares = [float(prior.schedule.signal[time]) for time in times]

    def clean(noisy):
        found = Bent()(noisy, torch.full((2,), float(times[1]), dtype=torch.float64))
        return (noisy - (1 - shares[1]) ** 0.5 * found) / shares[1] ** 0.5, found

    def loss(noisy):
        records = (clean(noisy)[0] + 1) / 2
        left = (matrix @ records.flatten().square() - seen) / noise_std.double()
        return float(left.norm())

    second = visited[1]
    gradient = torch.zeros(2, 3, dtype=torch.float64)
    for place in range(6):
        nudge = torch.zeros(6, dtype=torch.float64)
        nudge[place] = 1e-5
        nudge = nudge.view(2, 3)
        gradient.view(-1)[place] = (loss(second + nudge) - loss(second - nudge)) / 2e-5
    rng = torch.Generator().manual_seed(5)
    torch.randn(2, 3, generator=rng)  # the start
    torch.randint(2**31, (1,), generator=rng)  # the seed of the noise that residuals are compared with
    torch.randn(2, 3, generator=rng)  # the first step
    drawn = torch.randn(2, 3, generator=rng).double()
    estimate, noise = clean(second)
    sigma = ((1 - shares[2]) / (1 - shares[1])) ** 0.5 * (1 - shares[1] / shares[2]) ** 0.5
    mean = shares[2] ** 0.5 * estimate + (1 - shares[2] - sigma**2) ** 0.5 * noise
    best = -(3**0.5) * sigma * gradient / gradient.norm(dim=1, keepdim=True)
    direction = sigma * drawn + 0.3 * (best - sigma * drawn)
    expected = mean + 0.8 * 3**0.5 * sigma * direction / direction.norm(dim=1, keepdim=True)
    # single precision, whose derivatives have four digits
    torch.testing.assert_close(visited[2], expected, rtol=0, atol=1e-3 * sigma)


def test_without_guidance_it_draws_from_the_prior():
    problem = GaussianProblem(size=4, equations=8, noise=0.1)
    attack = ggss_r(problem.prior, guidance=0.0, steps=100)
    rng = torch.Generator().manual_seed(0)
    _, observation = problem.drawn(0)
    ends = torch.stack([attack.trace(observation, rng=rng).estimates[-1, 0] for _ in range(200)])
    error = (problem.covariance.diagonal() / 200).sqrt()
    # steps are of one length each, so that the mean is that of the prior and the spread about it
    assert bool(((ends.mean(0) - problem.mean).abs() < 5 * error + 0.02).all())
    assert float(ends.var(0).mean() / problem.covariance.diagonal().mean()) == pytest.approx(1, abs=0.4)


def test_clean_release_is_met_with_full_guidance():
    problem = GaussianProblem(size=6, equations=18, noise=0.0)
    target, observation = problem.drawn(1)
    found = ggss_r(problem.prior, guidance=1.0, steps=400)(observation, rng=torch.Generator().manual_seed(0))
    assert float((found.estimates[0] - target).square().mean()) < 1e-3
    assert found.status.ending is Ending.CONVERGED


def test_batches_are_guided_record_by_record():
    problem = GaussianProblem(size=5, equations=20, noise=0.0, records=3)
    targets, observation = problem.drawn(2)
    found = ggss_r(problem.prior, guidance=1.0, steps=400)(observation, rng=torch.Generator().manual_seed(0))
    assert found.estimates.shape == (3, 5)
    assert float((found.estimates - targets).square().mean()) < 3e-3


def test_same_seed_same_estimate():
    _, observation = GaussianProblem(size=3, equations=6, noise=0.1).drawn(0)
    prior = GaussianProblem(size=3, equations=6, noise=0.1).prior
    one, two = (ggss_r(prior, steps=10)(observation, rng=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one.estimates, two.estimates)


def trajectory(residuals, noise_is_known, pulls=None, values=100, overshoots=None):
    count = len(residuals)
    estimates = torch.arange(count).float().reshape(count, 1, 1).expand(count, 1, 4)
    pulls = torch.full((count, 1), 1e9) if pulls is None else torch.tensor(pulls)[:, None]
    noise = torch.full((count, 1), 4.0)
    outside = torch.zeros(count, 1) if overshoots is None else torch.tensor(overshoots)[:, None]
    return GuidedTrajectory(
        tuple(range(count)), torch.tensor(residuals), estimates, values, noise_is_known, pulls, noise, outside
    )


def test_known_noise_stops_where_the_residual_pulls_no_harder_than_noise():
    # geometric means of all steps so far, of up to five, against 4: 256, 32, 5.04, 4, 3.03
    residuals = [400.0, 150.0, 99.0, 83.0, 80.0]
    assert trajectory(residuals, True, [256.0, 4.0, 0.125, 2.0, 1.0]).stop == 3


def test_a_residual_far_from_the_lowest_is_not_noise():
    # four values of records explain at most about four units: 85 may not be the truth's where 80 was reached
    assert trajectory([400.0, 150.0, 99.0, 85.0, 80.0], True, [256.0, 4.0, 0.125, 2.0, 1.0]).stop == 4


def test_no_step_counts_at_which_the_prior_leaves_the_range_of_records():
    residuals, pulls = [83.0, 82.0, 81.0, 80.0], [1.0, 1.0, 1.0, 1.0]
    assert trajectory(residuals, True, pulls).stop == 0
    assert trajectory(residuals, True, pulls, overshoots=[0.9, 0.06, 0.04, 0.0]).stop == 2
    assert trajectory(residuals, True, pulls, overshoots=[0.9, 0.8, 0.6, 0.7]).stop == 2  # the least
    assert (
        trajectory(residuals, True, [9.0, 1e-9, 9.0, 9.0], overshoots=[0.0, 0.9, 0.8, 0.8]).stop == 2
    )  # not the first


def test_how_far_a_prior_leaves_the_range_is_kept_in_widths_of_the_range():
    # noise is found nowhere: the clean record is the noisy one, far outside at first
    outside = denoiser(lambda noisy, times: 0 * noisy, (3,), data_range=(0.0, 4.0))
    _, seen = GaussianProblem(size=3, equations=6, noise=0.1).drawn(0)
    wide = replace(seen, data_range=(0.0, 4.0))
    path = ggss_r(outside, steps=2, guidance=0.0).trace(wide, rng=torch.Generator().manual_seed(0))
    first = torch.randn((1, 3), generator=torch.Generator().manual_seed(0)) / outside.schedule.signal[999] ** 0.5
    expected = (first.abs() - 1).clamp_min(0).square().mean().sqrt() / 2  # the prior's range has width 2
    assert float(path.overshoots[0, 0]) == pytest.approx(float(expected), rel=1e-4)
    assert path.overshoots.shape == (2, 1)


def test_unknown_noise_is_that_of_the_lowest_residual():
    # the lowest residual of a hundred values makes a variance of 0.01, so that noise pulls with 0.04
    assert trajectory([4.0, 1.5, 1.03, 1.0], False, [0.1, 0.05, 0.01, 0.001]).stop == 2


def test_a_residual_that_noise_never_explains_stops_at_the_last():
    assert trajectory([400.0, 150.0, 120.0, 130.0], True).stop == 3
    assert trajectory([400.0, 150.0, 120.0, float("nan")], True).stop == 2


def test_at_the_truth_the_residual_pulls_as_noise_does():
    problem = GaussianProblem(size=6, equations=30, noise=0.3)
    ratios = []
    for seed in range(40):
        target, observation = problem.drawn(seed)
        path = ggss_r(gaussian(target, 1e-12 * torch.eye(6)), steps=2).trace(
            observation, rng=torch.Generator().manual_seed(seed)
        )
        ratios.append(float(path.pulls[-1].sum() / path.noise_pulls[-1].sum()))
    # the logarithm of a ratio of sums of about six squares varies by less than one
    assert abs(float(torch.tensor(ratios).log().mean())) < 3 / 40**0.5


def test_steps_that_are_no_number_are_never_chosen():
    assert trajectory([float("nan"), 5.0, float("nan")], False).stop == 1


def test_a_residual_that_rises_once_does_not_fall_monotonically():
    assert trajectory([3.0, 2.0, 2.0, 1.0], False).falls_monotonically
    assert not trajectory([3.0, 2.0, 2.1, 1.0], False).falls_monotonically


def test_the_oracle_is_at_least_as_near_as_the_stop():
    problem = GaussianProblem(size=6, equations=12, noise=0.5)
    target, observation = problem.drawn(3)
    path = ggss_r(problem.prior, guidance=0.5).trace(observation, rng=torch.Generator().manual_seed(0))
    _, nearest = path.oracle_peak(target[None])
    assert float((nearest - target).square().mean()) <= float((path.estimates_at_stop - target).square().mean())


def test_a_prior_of_another_shape_is_refused():
    _, observation = GaussianProblem(size=3, equations=6, noise=0.1).drawn(0)
    other = denoiser(lambda noisy, times: noisy, (4,))
    with pytest.raises(InvalidInput, match=r"prior\.shape"):
        ggss_r(other)(observation, rng=torch.Generator())


def test_a_threat_without_a_prior_is_refused():
    problem = GaussianProblem(size=3, equations=6, noise=0.0)
    _, seen = problem.drawn(0)
    blind = Observation(
        seen.released,
        seen.forward,
        HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS),
        (3,),
        (0.0, 1.0),
        labels=seen.labels,
    )
    with pytest.raises(InvalidInput, match="to cover what the attack needs"):
        ggss_r(problem.prior)(blind, rng=torch.Generator())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"guidance": 1.5}, "guidance=1.5"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 2000}, "steps=2000"),
        ({"step_size": 0.0}, "step_size"),
        ({"stochasticity": 2.0}, "stochasticity"),
        ({"distance": "cosine"}, "distance='cosine' to be callable"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(rr.InvalidInput, match=words):
        ggss_r(GaussianProblem(size=3, equations=6, noise=0.1).prior, **settings)


def test_what_is_no_prior_is_refused():
    with pytest.raises(InvalidInput, match=r"rr\.priors"):
        ggss_r(torch.nn.Linear(2, 2))
