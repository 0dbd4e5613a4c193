import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from reconrisk.accounting.trade_off import (
    epsilon_from_gaussian,
    epsilon_from_renyi,
    log_complement,
    log_success_from_approximate,
    log_success_from_gaussian,
    log_success_from_posterior_odds,
    log_success_from_renyi,
    log_success_from_zero_concentrated,
)

logs = st.floats(-1e4, -1e-9)
epsilons = st.floats(0, 50)

FORMS = {
    "posterior odds": lambda strength, log_prior: log_success_from_posterior_odds(strength, log_prior),
    "approximate": lambda strength, log_prior: log_success_from_approximate(strength, 1e-6, log_prior),
    "pure": lambda strength, log_prior: log_success_from_approximate(strength, 0.0, log_prior),
    "gaussian": lambda strength, log_prior: log_success_from_gaussian(strength, log_prior),
    "zero concentrated": lambda strength, log_prior: log_success_from_zero_concentrated(strength, log_prior),
    "renyi": lambda strength, log_prior: log_success_from_renyi(
        np.array([1.5, 2.0, 8.0]), strength * np.array([1.0, 1.2, 3.0]), log_prior
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@settings(max_examples=40, deadline=None)
@given(strength=epsilons, log_prior=logs)
def test_lies_between_the_prior_and_one(form, strength, log_prior):
    assert log_prior <= form(strength, log_prior) <= 0


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@settings(max_examples=40, deadline=None)
@given(strength=epsilons, log_prior=logs, factor=st.floats(0, 1))
def test_grows_with_the_prior_and_with_weaker_privacy(form, strength, log_prior, factor):
    value = form(strength, log_prior)
    slack = 1e-9 * (1 - log_prior)  # bisection and rounding, relative to the size of the logarithms
    assert form(strength, log_prior * factor) >= value - slack
    assert form(strength * (1 + factor), log_prior) >= value - slack


@pytest.mark.parametrize("form", [FORMS[name] for name in FORMS if name != "approximate"])
@pytest.mark.parametrize("log_prior", [-600.0, -2.0, -1e-6])
def test_perfect_privacy_leaves_the_prior(form, log_prior):
    # The two-point forms are flat at their minimum: the square root of the rounding allowance is what remains.
    assert form(0.0, log_prior) == pytest.approx(log_prior, abs=1e-4, rel=1e-6)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("log_prior", [-300.0, -5.0, -0.1])
def test_no_privacy_allows_certainty(form, log_prior):
    assert form(5000.0, log_prior) == pytest.approx(0.0, abs=1e-9)


def test_reference_values():
    tenth = math.log(0.1)
    assert math.exp(log_success_from_posterior_odds(2.0, tenth)) == pytest.approx(0.451, abs=5e-4)
    assert 0.1 * math.exp(2.0) == pytest.approx(0.739, abs=5e-4)
    assert math.exp(log_success_from_zero_concentrated(0.5, tenth)) == pytest.approx(0.484, abs=5e-4)
    assert math.exp(-((math.sqrt(-tenth) - math.sqrt(0.5)) ** 2)) == pytest.approx(0.519, abs=5e-4)
    assert math.exp(log_success_from_gaussian(1.0, tenth)) == pytest.approx(norm.cdf(norm.ppf(0.1) + 1), rel=1e-13)


@settings(max_examples=60, deadline=None)
@given(st.floats(1.01, 100), st.floats(0, 5), st.floats(-30, -1e-3))
def test_the_two_point_form_meets_its_equation_and_beats_the_one_term_form(order, epsilon, log_prior):
    log_success = log_success_from_renyi(np.array([order]), np.array([epsilon]), log_prior)
    one_term = min(0.0, (order - 1) / order * (log_prior + epsilon))
    assert log_success <= max(one_term, log_prior) + 1e-9
    reverse = 1 - math.exp(order / (order - 1) * log_complement(log_prior) - epsilon)
    assert math.exp(log_success) <= reverse + 1e-9
    if log_prior < log_success < -1e-9:
        rest, failure = log_complement(log_prior), log_complement(log_success)
        forward = np.logaddexp(order * log_success + (1 - order) * log_prior, order * failure + (1 - order) * rest)
        back = np.logaddexp(order * log_prior + (1 - order) * log_success, order * rest + (1 - order) * failure)
        assert max(forward, back) == pytest.approx((order - 1) * epsilon, abs=1e-6, rel=1e-6)


@given(st.floats(0.05, 3), st.floats(0.01, 0.9))
def test_renyi_of_a_gaussian_is_above_its_closed_form(mu, prior):
    orders = np.geomspace(1.01, 200, 200)
    bound = log_success_from_renyi(orders, orders * mu * mu / 2, math.log(prior))
    assert bound >= log_success_from_gaussian(mu, math.log(prior)) - 1e-12


@given(st.floats(0, 8), st.floats(0.001, 0.999))
def test_posterior_odds_are_attained_by_randomised_response(epsilon, prior):
    # Two records, one likelier: the answer names it truly with odds e^epsilon, and the guess follows the answer.
    truthful = 1 / (1 + math.exp(-epsilon))
    posterior = prior * truthful / (prior * truthful + (1 - prior) * (1 - truthful))
    assert math.exp(log_success_from_posterior_odds(epsilon, math.log(prior))) == pytest.approx(posterior, rel=1e-10)


def test_what_is_no_number_counts_as_no_privacy():
    assert log_success_from_renyi(np.array([2.0]), np.array([np.nan]), -3.0) == 0.0
    assert log_success_from_renyi(np.array([2.0]), np.array([np.inf]), -3.0) == 0.0
    assert epsilon_from_renyi(np.array([2.0]), np.array([np.nan]), 1e-5) == math.inf


@given(st.floats(0.05, 20), st.floats(-40, -0.1))
def test_epsilon_of_a_gaussian_meets_its_delta(mu, log_delta):
    delta = math.exp(log_delta)
    epsilon = epsilon_from_gaussian(mu, delta)
    got = norm.logcdf(mu / 2 - epsilon / mu) + np.log1p(
        -np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu) - norm.logcdf(mu / 2 - epsilon / mu))
    )
    assert got <= log_delta + 1e-6
    if epsilon > 0:
        assert got >= log_delta - 1e-4
    orders = np.geomspace(1.01, 1e4, 400)
    assert epsilon <= epsilon_from_renyi(orders, orders * mu * mu / 2, delta) + 1e-9
