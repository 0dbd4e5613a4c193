"""What meng2025 prints as bounds, with a counterexample to each."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import chi2

import reconrisk as rr
from reconrisk.attacks.with_prior.guided_diffusion import ggss_r
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reproductions.meng2025.guidance_heuristics import (
    meng2025_decrease_expression,
    meng2025_gap_lower_expression,
    meng2025_gap_upper_expression,
    meng2025_smoothness,
)
from reproductions.meng2025.jensen_gap import jensen_gap
from tests.attacks.gaussian_problem import GaussianProblem

THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR)


def square_of(mean, spread, released, draws):
    """Guided sampling where the release is x^2, at the first time, at which the posterior is the prior."""
    prior = rr.priors.gaussian(torch.tensor([mean]), torch.tensor([[spread**2]]))
    observation = Observation(
        {"y": torch.tensor([released])},
        lambda records, labels: {"y": records[0].square()},
        THREAT,
        (1,),
        (0.0, 1.0),
        labels=torch.tensor([0]),
    )

    class Half:
        def __call__(self, candidate, observed):
            return (candidate["y"] - observed["y"]).square().sum() / 2

    def measured(of):
        rng = torch.Generator().manual_seed(0)
        attack = ggss_r(prior, distance=Half())
        return jensen_gap(prior, observation, of=of, attack=attack, times=[999], draws=draws, rng=rng).points[0]

    return measured


def test_meng2025_theorem_5_1_fails_for_a_square_under_much_noise():
    point = square_of(0.5, 0.2, 0.3, 2000)("release")
    printed = meng2025_gap_upper_expression(1, 100.0, 2 * 0.5, point.distance_to_mean)
    assert printed.value < point.gap.low
    assert point.gap.low < 0.2**2 < point.gap.high


def test_meng2025_theorem_5_2_fails_where_the_release_bends():
    # E (x^2 - 3)^2 / 2 - (1 - 3)^2 / 2 = 1.5 s^4 for x of mean 1 and variance s^2, and J^T J = 4
    point = square_of(1.0, 0.2, 3.0, 4000)("loss")
    printed = meng2025_gap_lower_expression(1, 0.01, 4.0, point.total_variance)
    assert printed.value == pytest.approx(2 * 0.2**2, rel=0.15)
    assert printed.value > point.gap.high
    assert point.gap.high > 1.5 * 0.2**4


@pytest.mark.parametrize(("form", "peak"), [("theorem", 0.5), ("proof", 1.0)])
def test_meng2025_smoothness_rises_with_the_noise_before_it_falls(form, peak):
    found = minimize_scalar(lambda v: -meng2025_smoothness(7, v, form=form), bounds=(0.05, 5.0), method="bounded")
    assert found.x == pytest.approx(peak, abs=1e-4)  # the search stops at 1e-5


@given(st.floats(0.02, 0.2), st.floats(1.1, 2.0))
def test_meng2025_smoothness_is_not_monotone_below_its_peak(variance, factor):
    assert meng2025_smoothness(3, variance * factor) > meng2025_smoothness(3, variance)


def test_meng2025_lemma_a_2_is_no_lipschitz_constant():
    std = 0.1
    density = torch.distributions.Normal(0.0, std)
    place = torch.tensor(std, dtype=torch.float64, requires_grad=True)
    density.log_prob(place).exp().backward()
    assert abs(float(place.grad)) > 1e20 * meng2025_smoothness(1, std**2)


def test_meng2025_equation_28_drops_the_number_of_released_values():
    # each of m values bends by L and the loss has slope alpha in each: the smallest curvature is -m alpha L
    count, bend, slope = 5, 0.3, 2.0

    def loss(x):
        return slope * (-bend / 2 * x.square()).expand(count).sum()

    curvature = float(torch.autograd.functional.hessian(loss, torch.zeros(())))
    assert curvature == pytest.approx(-count * slope * bend)
    assert curvature < -slope * bend


def test_meng2025_theorem_5_3_the_attack_loss_does_not_fall_in_every_step():
    problem = GaussianProblem(size=6, equations=18, noise=0.0)  # a linear release: the squared residual is convex
    _, observation = problem.drawn(1)
    trace = ggss_r(problem.prior, guidance=1.0, steps=50).trace(observation, rng=torch.Generator().manual_seed(0))
    assert not trace.falls_monotonically


def test_meng2025_theorem_5_4_contradicts_5_3_under_little_noise():
    printed = meng2025_decrease_expression(9, 0.01, 0.1, 4.0, convexity=1.0, shift=0.2)
    assert printed.value == pytest.approx((0.2 + 3 * 0.1) ** 2 / 2)  # the loss rises at least by so much
    assert printed.value > 0


@given(st.integers(100, 2000), st.floats(0.01, 0.2))
def test_meng2025_lemma_4_1_needs_a_minus_sign(size, excess):
    limit = math.exp(-size * excess)
    assert chi2.cdf(size * (1 + 2 * math.sqrt(excess)), size) > limit  # as printed, the larger half of the law
    assert chi2.cdf(size * (1 - 2 * math.sqrt(excess)), size) <= limit


def test_values_follow_the_printed_formulas():
    size, variance = 4, 2.0
    constant = 4 / (math.sqrt(2 * math.pi) * 2.0) * math.exp(-0.25)
    assert meng2025_smoothness(size, variance) == pytest.approx(constant)
    assert meng2025_smoothness(size, variance, form="proof") == pytest.approx(constant * math.sqrt(2))
    upper = meng2025_gap_upper_expression(size, variance, 3.0, 0.5).value
    assert upper == pytest.approx(4 / (math.sqrt(2 * math.pi) * 2.0) * 1.5)
    lower = meng2025_gap_lower_expression(size, variance, 3.0, 0.5, convexity=2.0, smoothness=1.5).value
    assert lower == pytest.approx((6.0 - 1.5 * constant) / 4)
    change = meng2025_decrease_expression(size, variance, 0.5, 9.0, convexity=0.7, shift=0.3).value
    assert change == pytest.approx(0.7 * 4 * 0.25 / 2 + 0.7 * 0.3 * 2 * 0.5 + 0.7 * 0.09 / 2 - 1.3 * 3 * constant)


def test_labels_say_that_they_guarantee_nothing():
    for printed in (
        meng2025_gap_upper_expression(1, 1.0, 1.0, 1.0),
        meng2025_gap_lower_expression(1, 1.0, 1.0, 1.0),
        meng2025_decrease_expression(1, 1.0, 1.0, 1.0, convexity=1.0, shift=1.0),
    ):
        assert "not a guarantee" in str(printed)
        assert "meng2025, printed as" in str(printed)
        assert not isinstance(printed, (float, rr.Guarantee, rr.Estimate))
        with pytest.raises(TypeError):
            float(printed)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: meng2025_smoothness(1, 0.0), "noise_variance=0.0 > 0"),
        (lambda: meng2025_smoothness(0, 1.0), "size=0 >= 1"),
        (lambda: meng2025_smoothness(1, 1.0, form="text"), 'to be "theorem" or "proof"'),
        (lambda: meng2025_gap_upper_expression(1, 1.0, -1.0, 1.0), "jacobian_norm=-1.0 >= 0"),
        (lambda: meng2025_gap_lower_expression(1, 1.0, 1.0, -1.0), "total_variance=-1.0 >= 0"),
        (lambda: meng2025_decrease_expression(1, 1.0, 1.0, 1.0, convexity=1.0, shift=0.0), "shift=0.0 > 0"),
    ],
)
def test_arguments_without_meaning_are_refused(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
