"""Laplace releases: closed form, direct convolution, dp_accounting and a simulated attack."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.accounting.events import from_event
from reconrisk.accounting.laplace import laplace_profile
from reconrisk.bounds.success import success_upper_bound


def success(releases, prior):
    events = [dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(1 / epsilon), n) for epsilon, n in releases]
    return success_upper_bound(from_event(dp_event.ComposedDpEvent(events)), prior_success=prior).value


def _reference_one_release(epsilon, prior):
    """Return the success of the best threshold test between two Laplace laws."""
    if prior < math.exp(-epsilon) / 2:
        return prior * math.exp(epsilon)
    return 1 - math.exp(-epsilon) / (4 * prior) if prior < 0.5 else 1 - math.exp(-epsilon) * (1 - prior)


@given(epsilon=st.floats(0.01, 6.0), prior=st.floats(1e-6, 0.999))
@settings(max_examples=60, deadline=None)
def test_one_release_has_the_success_of_the_best_threshold(epsilon, prior):
    bound = success_upper_bound(from_event(dp_event.LaplaceDpEvent(1 / epsilon)), prior_success=prior).value
    exact = _reference_one_release(epsilon, prior)
    assert exact * (1 - 1e-12) <= bound <= exact + 1e-4


@pytest.mark.parametrize(
    ("epsilon", "count", "prior", "expected"),
    [
        (1.0, 1, 0.3, 0.693434),
        (0.1, 100, 0.3, 0.67732),
        (0.1, 100, 0.1, 0.38306),
        (0.1, 100, 0.01, 0.08939),
        (1.0, 10, 0.3, 0.98718),
        (1.0, 10, 0.1, 0.93170),
        (1.0, 10, 0.01, 0.66525),
        (0.5, 10, 0.1, 0.57595),
    ],
)
def test_compositions_have_their_reference_values(epsilon, count, prior, expected):
    assert success([(epsilon, count)], prior) == pytest.approx(expected, abs=2e-5)


def _reference_two_releases(first, second, alpha, cells=4000):
    """Return sup P(E) - alpha Q(E) of two releases, by midpoint integration over the loss of the first.

    The first release has two atoms of the loss and a density between them; the second has the closed profile.
    """

    def profile(value):  # of the second release, at alpha = value
        x = np.log(value)
        inside = 1 - np.exp((np.clip(x, -second, second) - second) / 2)
        return np.where(x < -second, 1 - value, np.where(x > second, 0.0, inside))

    loss = -first + 2 * first * (np.arange(cells) + 0.5) / cells
    density = np.exp((loss - first) / 2) / 4 * 2 * first / cells  # of the loss with the record
    atoms = 0.5 * profile(alpha * np.exp(-first)) + 0.5 * math.exp(-first) * profile(alpha * np.exp(first))
    return float(atoms + np.sum(density * profile(alpha * np.exp(-loss))))


@pytest.mark.parametrize(("first", "second"), [(0.7, 0.7), (1.0, 0.3)])
def test_two_releases_agree_with_direct_integration_and_are_not_below_it(first, second):
    profile = laplace_profile([(first, 1), (second, 1)])
    inside = [j for j, epsilon in enumerate(profile.epsilons) if epsilon < first + second - 0.01][::8]
    assert len(inside) > 5
    for j in inside:
        exact = _reference_two_releases(first, second, math.exp(profile.epsilons[j]))
        # One of two different epsilons is rounded up by half a spacing at most, 3e-4 here.
        assert exact - 1e-7 <= profile.deltas[j] <= exact + 2e-4 * (first != second) + 2e-6


@pytest.mark.parametrize(("epsilon", "count"), [(0.1, 100), (1.0, 10), (0.5, 10)])
def test_compositions_agree_with_dp_accounting(epsilon, count):
    peer = privacy_loss_distribution.from_laplace_mechanism(1 / epsilon, value_discretization_interval=epsilon / 512)
    epsilons = np.linspace(0.0, epsilon * count, 20_001)
    deltas = np.asarray(peer.self_compose(count).get_delta_for_epsilon(epsilons))
    for prior in (0.9, 0.3, 0.02, 1e-3, 1e-5, 1e-7):
        forms = np.minimum(deltas + prior * np.exp(epsilons), 1 - np.exp(-epsilons) * (1 - deltas - prior))
        assert success([(epsilon, count)], prior) == pytest.approx(forms.min(), rel=5e-4, abs=2e-5 * (prior > 1e-4))


def test_an_attack_comes_close_and_no_attack_is_above():
    rng = np.random.default_rng(0)
    draws, count, prior = 200_000, 10, 0.1
    loss = [
        (np.abs(noise) - np.abs(noise - 1)).sum(1) / 2
        for noise in (rng.laplace(scale=2.0, size=(draws, count)), 1 + rng.laplace(scale=2.0, size=(draws, count)))
    ]
    threshold = np.quantile(loss[0], 1 - prior)
    power = float(np.mean(loss[1] >= threshold))
    bound = success([(0.5, count)], prior)
    error = 3 * math.sqrt(0.25 / draws) + 3 * math.sqrt(prior / draws) * 4  # of the power, and of the threshold
    assert bound - 2 * error <= power <= bound + error
    assert bound < 0.577  # the Renyi curve alone gives 0.711


def test_different_scales_lie_between_equal_ones_and_order_does_not_matter():
    low, high = success([(0.3, 8)], 0.1), success([(0.4, 8)], 0.1)
    assert low <= success([(0.3, 4), (0.4, 4)], 0.1) <= high
    assert success([(0.3, 4), (0.4, 4)], 0.1) == pytest.approx(success([(0.4, 4), (0.3, 4)], 0.1), rel=1e-9)


def test_many_small_releases_approach_the_gaussian_and_fit_into_memory():
    assert 0.3891 - 1e-4 <= success([(0.001, 1_000_000)], 0.1) <= 0.3891 + 5e-4  # Gaussian DP with mu = 1


@pytest.mark.parametrize("prior", [1e-5, 1e-9, 1e-14, 1e-40])
def test_tiny_priors_stay_below_the_pure_and_the_renyi_bound(prior):
    event = dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(2.0), 10)
    mechanism = from_event(event)
    bound = success_upper_bound(mechanism, prior_success=prior).value
    assert prior <= bound <= prior * math.exp(5.0) * (1 + 1e-9)
    assert bound <= success_upper_bound(mechanism.renyi, prior_success=prior).value
