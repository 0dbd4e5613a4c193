import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from reconrisk.bounds.corridor import corridor_curve, crossover_mse, format_probability, risk, risk_surface
from reconrisk.bounds.gaussian_prior import gaussian_prior_success
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Scope
from reconrisk.core.mechanism import Composed, Gaussian, dp_sgd
from reconrisk.core.storage.serialization import from_json, to_json

RUN = dp_sgd(noise_multiplier=1.1, sampling_probability=0.01, steps=10_000)


def test_both_ends_are_guarantees_with_their_own_scopes():
    corridor = risk(RUN, dimension=48, norm=4.0, psnr=15, prior_success=0.001)
    assert corridor.identification.scope is Scope.ANY_ADVERSARY_WITH_PRIOR
    assert corridor.from_scratch.scope is Scope.KNOWN_NORM_UNIFORM_DIRECTION
    assert corridor.attack_success <= corridor.from_scratch.value
    assert corridor.mse == pytest.approx(10**-1.5)
    assert from_json(to_json(corridor)) == corridor


@settings(max_examples=20)
@given(
    noise=st.floats(0.05, 20), dimension=st.integers(1, 200), share=st.floats(0.01, 0.9), prior=st.floats(0.001, 0.5)
)
def test_the_attack_never_beats_the_guarantee_for_its_threat(noise, dimension, share, prior):
    corridor = risk(
        Gaussian(noise_multiplier=noise), dimension=dimension, norm=1.0, mse=share / dimension, prior_success=prior
    )
    assert corridor.attack_log_success <= corridor.from_scratch.log_value + 1e-9
    assert corridor.identification.value >= prior


def test_the_error_discount_is_where_the_attack_meets_identification():
    corridor = risk(Gaussian(noise_multiplier=0.7), dimension=10, norm=2.0, mse=0.05, prior_success=0.1)
    variance = (0.7 * 2.0) ** 2
    named = norm.cdf(norm.ppf(0.1) + 1 / 0.7)
    assert corridor.error_discount == pytest.approx(variance / 10 * chi2(10).ppf(named), rel=1e-9)


def test_interior_points_are_the_exact_success_with_a_gaussian_prior():
    corridor = risk(
        dp_sgd(noise_multiplier=0.7, steps=4), dimension=6, norm=2.0, mse=0.05, prior_success=0.1, prior_stds=(0.2, 5.0)
    )
    for point in corridor.interior:
        exact = gaussian_prior_success(0.7 * 2.0 / 2, dimension=6, prior_std=point.prior_std, mse=0.05)
        assert point.success == pytest.approx(exact.value, rel=1e-9)
        alone = chi2(6).cdf(6 * 0.05 / point.prior_std**2)
        assert math.exp(point.log_prior_success) == pytest.approx(alone, rel=1e-9)


def test_sampled_interior_averages_over_the_hits():
    run = dp_sgd(noise_multiplier=0.5, sampling_probability=0.3, steps=3)
    corridor = risk(run, dimension=4, norm=1.0, mse=0.02, prior_success=0.1, prior_stds=(0.3,))
    weights = [math.comb(3, k) * 0.3**k * 0.7 ** (3 - k) for k in range(4)]
    precisions = [k / 0.25 + 1 / 0.09 for k in range(4)]
    expected = sum(w * chi2(4).cdf(4 * 0.02 * p) for w, p in zip(weights, precisions, strict=True))
    assert corridor.interior[0].success == pytest.approx(expected, rel=1e-9)


def test_a_schedule_has_a_corridor_too():
    schedule = Composed((dp_sgd(noise_multiplier=2.0, sampling_probability=0.1, steps=20), RUN))
    corridor = risk(schedule, dimension=12, norm=1.0, mse=0.01, prior_success=0.1)
    alone = risk(RUN, dimension=12, norm=1.0, mse=0.01, prior_success=0.1)
    assert corridor.identification.value >= alone.identification.value
    assert corridor.from_scratch.value >= alone.from_scratch.value
    assert "no bound" in corridor.adversaries()[0][2]
    assert not corridor.is_one_phase


def test_simple_guesses_use_the_expected_number_of_releases():
    corridor = risk(RUN, dimension=12, norm=1.0, mse=0.01, prior_success=0.1)
    assert corridor.simple_guesses.observations == 100
    assert "Given 100 release(s)" in corridor.comparison()


def test_where_a_constant_guess_suffices_no_small_number_is_shown():
    corridor = risk(Gaussian(noise_multiplier=1.0), dimension=3072, norm=40.0, mse=0.3, prior_success=0.001)
    assert corridor.simple_guesses.constant_guess_succeeds  # the middle of the range is within .25
    assert corridor.adversaries()[1] == ("guesses a constant", "1", "certain")
    assert "without the release" in corridor.sentence


def test_the_curve_passes_through_the_corridor():
    corridor = risk(Gaussian(noise_multiplier=0.5), dimension=8, norm=1.0, mse=0.02, prior_success=0.1)
    curve = corridor_curve(corridor, points=30)
    assert all(wide >= narrow - 1e-9 for wide, narrow in zip(curve.known_norm, curve.from_scratch, strict=True))
    for values in (curve.attack, curve.known_norm, curve.from_scratch, *curve.interior):
        assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(values))
        assert len(values) == 30
    at_threshold = np.interp(0.02, curve.mse, curve.from_scratch)
    assert at_threshold == pytest.approx(corridor.from_scratch.value, rel=0.1)


def test_the_crossover_of_figure_one():
    # N = 1, Delta = 1, kappa = 1/11, gamma = 10 %: the printed settings of riess2025 Figure 1
    noise = 1 / (norm.ppf(0.1) - norm.ppf(1 / 11))
    crossover = crossover_mse(success=0.1, prior_success=1 / 11, dimension=1, norm=1.0)
    assert crossover == pytest.approx(noise**2 * chi2(1).ppf(0.1), rel=1e-9)
    with pytest.raises(InvalidInput, match="success"):
        crossover_mse(success=0.05, prior_success=0.1, dimension=1, norm=1.0)


def test_the_surface_of_figure_three():
    surface = risk_surface(
        noise_multipliers=np.array([0.5, 1.0, 2.0]),
        mse=np.array([0.1, 0.4]),
        dimension=1,
        norm=1.0,
        prior_success=0.1,
    )
    np.testing.assert_allclose(surface.attack[1], chi2(1).cdf([0.1, 0.4]), rtol=1e-12)
    np.testing.assert_allclose(surface.identification, norm.cdf(norm.ppf(0.1) + np.array([2.0, 1.0, 0.5])), rtol=1e-12)
    assert (np.diff(surface.from_scratch, axis=0) <= 0).all()
    assert (surface.from_scratch >= surface.attack).all()


def test_words_tell_when_a_constant_guess_suffices():
    easy = risk(RUN, dimension=3072, norm=1.0, psnr=20, prior_success=0.001)
    assert "without the release" in easy.sentence
    assert easy.from_scratch.value == 1.0
    hard = risk(RUN, dimension=3072, norm=20.0, psnr=20, prior_success=0.001)
    assert "at most 1e-" in hard.sentence
    assert "law of one attack, no bound" in str(hard)
    kinds = [kind for _, _, kind in hard.adversaries() if "guarantee" in kind]
    assert kinds == ["guarantee for the release x/|x| plus noise only", "guarantee for any release", "guarantee"]


@pytest.mark.parametrize("log_probability", [-0.1, -500.0, -601.0, -1e6])
def test_readable_probabilities_never_round_a_tiny_one_to_zero(log_probability):
    mantissa, _, exponent = format_probability(log_probability).partition("e")
    shown = math.log10(float(mantissa)) + (float(exponent) if exponent else 0.0)
    exact = log_probability / math.log(10)
    assert exact - 1e-9 <= shown <= exact + 1.0  # rounded up


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior_success": 1.2}, "prior_success"),
        ({"dimension": 0}, "dimension=0 >= 1"),
        ({"norm": 0.0}, "norm"),
        ({"psnr": None}, "exactly one number"),
        ({"mse": 0.1}, "exactly one number"),
        ({"data_range": -1.0}, "data_range"),
        ({"prior_stds": (0.0,)}, "prior_std"),
    ],
)
def test_bad_input_is_refused(changes, message):
    settings = {"dimension": 4, "norm": 1.0, "psnr": 20, "prior_success": 0.1, **changes}
    with pytest.raises(InvalidInput, match=message):
        risk(RUN, **settings)
