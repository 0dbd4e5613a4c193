"""Evidence against claimed noise: reference values, fairness under the claim, and the speed of detection."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reconrisk.core.errors import InvalidInput
from reconrisk.statistics.intervals import clopper_pearson
from reconrisk.statistics.noise_scale import (
    log_evidence_of_less_noise,
    log_evidence_of_reused_noise,
    mean_log_evidence,
    releases_needed,
    scale_limits,
)

law = settings(deadline=None, derandomize=True, max_examples=40)
SIZE = 738


@pytest.mark.parametrize(
    ("square_sum", "two_sided", "expected"),
    [(600, False, 5.027847), (738, False, -0.725350), (600, True, 4.336184), (880, True, 3.208530)],
)
def test_evidence_has_the_values_of_an_independent_program(square_sum, two_sided, expected):
    assert log_evidence_of_less_noise(square_sum, SIZE, two_sided=two_sided) == pytest.approx(expected, abs=5.1e-7)


@pytest.mark.parametrize("two_sided", [False, True])
def test_evidence_is_the_mean_of_likelihood_ratios(two_sided):
    residuals = np.random.default_rng(1).normal(0, 0.9, 20)
    scales = 1 - np.exp(np.linspace(math.log(0.001), math.log(0.9), 40))
    scales = np.concatenate([scales, 1 / scales]) if two_sided else scales
    ratios = [np.prod(stats.norm.pdf(residuals, 0, scale) / stats.norm.pdf(residuals)) for scale in scales]
    measured = log_evidence_of_less_noise(float(residuals @ residuals), 20, two_sided=two_sided)
    assert measured == pytest.approx(math.log(np.mean(ratios)), abs=1e-12)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("count", [1, 3, 30])
def test_the_mean_evidence_of_sound_noise_is_at_most_one(count, two_sided):
    # By quadrature over the chi-square law of the sum, up to 8,000: the bet on ten times the noise has a heavy tail.
    # Substituting s = u^4 removes the singularity of the density at zero.
    nodes = np.linspace(0, 8000**0.25, 8001)[1:]
    logs = np.array([log_evidence_of_less_noise(node**4, count, two_sided=two_sided) for node in nodes])

    def mean(law):
        return np.sum(np.exp(logs + law.logpdf(nodes**4)) * 4 * nodes**3) * (nodes[1] - nodes[0])

    assert mean(stats.chi2(count)) == pytest.approx(1, abs=1e-6)
    if not two_sided:
        assert mean(stats.chi2(count, scale=1.2)) < 1
        assert mean(stats.ncx2(count, 1.5)) < 1


@law
@given(st.floats(0, 3000), st.floats(0, 3000))
def test_larger_residuals_are_less_evidence_of_missing_noise(one, other):
    less, more = sorted((one, other))
    assert log_evidence_of_less_noise(less, SIZE) >= log_evidence_of_less_noise(more, SIZE)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(738, 0.917, 1.096), (7380, 0.973, 1.029), (10**5, 0.992, 1.008), (10**6, 0.9976, 1.0024)],
)
def test_intervals_of_the_scale_have_the_values_of_an_independent_program(count, low, high):
    digits = 5e-5 if count == 10**6 else 5e-4
    assert scale_limits(count, count, alpha=0.05) == pytest.approx((low, high), abs=1.02 * digits)


@law
@given(st.integers(1, 5000), st.floats(0.01, 100), st.floats(0.1, 10), st.floats(1e-4, 0.5))
def test_an_interval_of_the_scale_is_the_set_of_scales_that_are_not_rejected(count, mean_square, scale, alpha):
    total = mean_square * count
    low, high = scale_limits(total, count, alpha=alpha)
    assert low <= math.sqrt(mean_square) <= high
    if not (math.isclose(scale, low, rel_tol=1e-6) or math.isclose(scale, high, rel_tol=1e-6)):
        rejected = log_evidence_of_less_noise(total / scale**2, count, two_sided=True) >= -math.log(alpha)
        assert rejected == (not low <= scale <= high)


def test_intervals_without_information():
    assert scale_limits(0.0, 0) == (0, math.inf)
    assert scale_limits(0.0, 1) == (0, math.inf)
    assert scale_limits(0.0, SIZE) == (0, 0)
    assert log_evidence_of_less_noise(0.0, 0) == 0
    assert log_evidence_of_reused_noise([], SIZE) == 0


def test_sound_noise_raises_few_false_alarms_when_one_looks_after_each_release():
    rng = np.random.default_rng(7)
    sums = np.cumsum(rng.chisquare(SIZE, (300, 100)), axis=1)
    alarms = sum(
        any(log_evidence_of_less_noise(s, SIZE * (t + 1)) >= math.log(20) for t, s in enumerate(row)) for row in sums
    )
    assert clopper_pearson(alarms, 300, 0.9).low < 0.05


@pytest.mark.parametrize(("factor", "most"), [(0.5, 1), (0.6, 1), (0.8, 1), (0.9, 3), (0.95, 8), (0.99, 150)])
def test_missing_noise_is_detected_within_the_promised_number_of_releases(factor, most):
    rng = np.random.default_rng(3)
    needed = []
    for _ in range(20):
        total, releases = 0.0, 0
        while releases == 0 or log_evidence_of_less_noise(total, SIZE * releases) < math.log(1000):
            total, releases = total + factor**2 * rng.chisquare(SIZE), releases + 1
        needed.append(releases)
    assert np.mean(needed) <= most
    assert releases_needed(factor, SIZE, alpha=1e-3) == pytest.approx(np.mean(needed), rel=0.35)


def test_the_number_of_releases_follows_from_the_divergence():
    # Mixing costs at most ln 40 nats and the best bet grows by the divergence of normal laws.
    for factor in (0.5, 0.9, 0.99):
        nats = 10 * (-math.log(factor) - (1 - factor**2) / 2)
        measured = releases_needed(factor, 10, alpha=1e-3)
        assert math.log(1000) / nats <= measured * (1 + 1e-9)
        assert measured <= 1.02 * math.log(40_000) / nats  # the nearest bet grows by 2 % less at most
    assert releases_needed(1.0, 10) == releases_needed(1.2, 10) == releases_needed(0.9999, 10) == math.inf
    assert releases_needed(0.1, 10**6) == 1


def test_reused_noise_is_detected_and_fresh_noise_is_not():
    rng = np.random.default_rng(5)
    fresh = rng.normal(size=(400, SIZE))
    fresh /= np.linalg.norm(fresh, axis=1, keepdims=True)
    cosines = (fresh[1:] * fresh[:-1]).sum(1)
    logs = [log_evidence_of_reused_noise(cosines[: t + 1], SIZE) for t in range(399)]
    assert max(logs) < math.log(20)
    for correlation in (0.2, -0.2, 1.0):
        assert log_evidence_of_reused_noise([correlation], SIZE) > math.log(1000)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 100])
def test_the_mean_evidence_of_fresh_noise_is_at_most_one(size):
    # The cosine c with a uniform direction: (1 + c) / 2 has a Beta law with both parameters (p - 1) / 2.
    if size == 1:
        mean = np.mean([math.exp(log_evidence_of_reused_noise([c], 1)) for c in (-1.0, 1.0)])
    else:
        half = (size - 1) / 2
        quantiles = stats.beta(half, half).ppf((np.arange(4000) + 0.5) / 4000)
        mean = np.mean([math.exp(log_evidence_of_reused_noise([c], size)) for c in 2 * quantiles - 1])
    assert mean <= 1


def test_evidence_of_blocks_is_averaged():
    assert mean_log_evidence([0.0, 0.0, math.log(4)]) == pytest.approx(math.log(2))
    assert mean_log_evidence([0.0, math.log(4)], [2, 1]) == pytest.approx(math.log(2))
    assert mean_log_evidence([-math.inf, 5000.0]) == pytest.approx(5000 - math.log(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: log_evidence_of_less_noise(-1.0, 5), "Expected square_sum=-1.0 >= 0."),
        (lambda: log_evidence_of_less_noise(math.inf, 5), "Expected square_sum=inf to be finite."),
        (lambda: scale_limits(1.0, 1.5), "Expected count=1.5 to be a whole number."),
        (lambda: scale_limits(1.0, 1, alpha=0.0), "Expected alpha=0.0 in"),
        (lambda: log_evidence_of_reused_noise([1.5], 5), "to be a sequence of numbers in"),
        (lambda: log_evidence_of_reused_noise([0.5], 0), "Expected size=0 >= 1."),
        (lambda: mean_log_evidence([]), "Expected logs with at least one element"),
        (lambda: mean_log_evidence([math.nan]), "to be numbers, not NaN"),
        (lambda: mean_log_evidence([1.0], [0.0]), "to be 1 positive numbers, one for each e-value"),
        (lambda: releases_needed(0.0, 5), "Expected scale_ratio=0.0 > 0."),
    ],
)
def test_impossible_arguments_are_refused(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
