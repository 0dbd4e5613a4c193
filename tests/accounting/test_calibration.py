import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from reconrisk.accounting.calibration import largest_sampling_probability, largest_steps, smallest_noise_multiplier
from reconrisk.accounting.subsampled import log_success_of_training
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import dp_sgd

GOAL = {"log_prior": math.log(0.1), "log_target": math.log(0.2)}


def test_reference_value():
    # 2.37942 is where the true success meets .2; the certified bound may ask for a relative 2e-4 more.
    safe = smallest_noise_multiplier(sampling_probability=0.01, steps=10_000, **GOAL)
    assert 2.37942 * (1 - 2e-6) <= safe.value <= 2.37942 * (1 + 2e-4)
    assert math.exp(safe.risk) <= 0.2


@settings(max_examples=15, deadline=None)
@given(
    st.floats(-3, 0).map(lambda e: 10**e),
    st.integers(1, 3000),
    st.floats(1e-6, 0.5),
    st.floats(0.05, 0.95),
)
def test_the_noise_returned_was_checked_and_little_less_would_not_do(rate, steps, prior, share):
    target = prior + share * (1 - prior)
    goal = {"log_prior": math.log(prior), "log_target": math.log(target)}
    safe = smallest_noise_multiplier(sampling_probability=rate, steps=steps, accuracy=1e-3, **goal)

    def risk(noise):
        run = dp_sgd(noise_multiplier=noise, sampling_probability=rate, steps=steps)
        return log_success_of_training(run, goal["log_prior"], 1e-3)

    assert safe.risk == risk(safe.value) <= goal["log_target"]
    if safe.value > 0.0101:
        assert risk(safe.value * (1 - 1e-3)) > goal["log_target"]


def test_full_batch_is_the_closed_form():
    safe = smallest_noise_multiplier(sampling_probability=1.0, steps=25, **GOAL)
    exact = 5 / (ndtri(0.2) - ndtri(0.1))
    assert exact * (1 - 1e-12) <= safe.value <= exact * (1 + 3e-5)


def test_steps_and_rate_invert_the_noise():
    noise = smallest_noise_multiplier(sampling_probability=0.01, steps=1000, **GOAL).value
    steps = largest_steps(noise_multiplier=noise, sampling_probability=0.01, **GOAL)
    assert steps.value in (1000, 1001)
    rate = largest_sampling_probability(noise_multiplier=noise, steps=1000, **GOAL)
    assert rate.value == pytest.approx(0.01, rel=1e-4)
    assert max(steps.risk, rate.risk) <= GOAL["log_target"]


def test_one_more_step_would_be_too_many():
    steps = largest_steps(noise_multiplier=1.0, sampling_probability=0.01, **GOAL)
    run = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=int(steps.value) + 1)
    assert log_success_of_training(run, GOAL["log_prior"]) > GOAL["log_target"] >= steps.risk


def test_a_full_batch_that_is_safe_is_the_answer():
    assert largest_sampling_probability(noise_multiplier=100.0, steps=2, **GOAL).value == 1.0


def test_priors_too_small_for_a_float_work():
    safe = smallest_noise_multiplier(
        sampling_probability=0.01, steps=100, log_prior=-2000.0, log_target=math.log(1e-3), accuracy=1e-3
    )
    assert safe.risk <= math.log(1e-3)


@pytest.mark.parametrize("log_target", [math.log(0.1), math.log(0.05), 0.0, 0.5])
def test_targets_out_of_reach_name_the_nearest(log_target):
    with pytest.raises(
        InvalidInput, match=r"target=.* in \(0.1, 1\)\. Pass a target above the prior success, which needs no release"
    ):
        smallest_noise_multiplier(sampling_probability=0.01, steps=10, log_prior=math.log(0.1), log_target=log_target)


def test_a_step_too_risky_names_its_risk():
    with pytest.raises(InvalidInput, match=r"found a risk of .* at steps=1"):
        largest_steps(noise_multiplier=0.1, sampling_probability=0.9, **GOAL)


@pytest.mark.parametrize(
    "wrong", [{"sampling_probability": 0.0}, {"sampling_probability": 1.5}, {"steps": 2.5}, {"accuracy": 0.0}]
)
def test_bad_settings_are_refused_by_name(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        smallest_noise_multiplier(**({"sampling_probability": 0.01, "steps": 10} | GOAL | wrong))
