"""The known-norm guarantee: attained by its own estimator, beaten by nobody, exact against independent integrals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from reconrisk.bounds.analytic_inversion import analytic_inversion_law
from reconrisk.bounds.known_norm import from_scratch_success, known_norm_success, log_from_scratch_success
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Quantity, Scope
from reconrisk.core.mechanism import Composed, Gaussian, Neighbouring, PureDP, Repeated, dp_sgd
from reconrisk.core.threat import Knows, Sees

DRAWS = 40_000


def _directions(rng, dimension):
    points = rng.standard_normal((DRAWS, dimension))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def _attackers(rng, released, noise, norm, threshold):
    """Estimates from the release y = x/|x| + noise, by everybody who might do better than riess2025's attack."""
    dimension = released.shape[1]
    radius = math.sqrt(dimension * threshold)
    lengths = np.linalg.norm(released, axis=1, keepdims=True)
    variance = (noise * norm) ** 2
    unbiased = norm * released
    guess = np.full(dimension, norm / math.sqrt(dimension))
    lucky = rng.random((len(released), 1)) < 0.3
    return {
        "best cap": math.sqrt(max(norm**2 - radius**2, 0.0)) * released / lengths,
        "chi-square": unbiased,
        "projected": norm * released / lengths,
        "James-Stein": (1 - (dimension - 2) * variance / (norm * lengths) ** 2) * unbiased,
        "linear shrinkage": unbiased / (1 + dimension * noise**2),
        "randomised guess": np.where(lucky, guess, (unbiased - 0.3 * guess) / 0.7),
        "zero": np.zeros_like(released),
    }


@pytest.mark.parametrize(
    ("dimension", "noise", "share"),
    [(1, 1.0, 0.5), (2, 0.5, 0.3), (4, 0.1, 0.3), (4, 1.0, 0.2), (16, 0.3, 0.5), (64, 0.2, 0.25), (64, 0.5, 0.055)],
)
def test_attained_by_its_own_estimator_and_beaten_by_none(dimension, noise, share):
    rng = np.random.default_rng(dimension)
    norm = 2.5
    threshold = share * (noise * norm) ** 2
    directions = _directions(rng, dimension)
    released = directions + noise * rng.standard_normal(directions.shape)
    bound = from_scratch_success(Gaussian(noise), dimension=dimension, norm=norm, mse=threshold)
    slack = 5 * math.sqrt(0.25 / DRAWS)  # five standard errors of the largest binomial variance
    for name, estimates in _attackers(rng, released, noise, norm, threshold).items():
        success = float((((estimates - norm * directions) ** 2).mean(1) <= threshold).mean())
        assert success <= bound.value + slack, name
        if name == "best cap":
            assert success == pytest.approx(bound.value, abs=slack)


def test_the_ratio_attack_on_a_layer_with_bias_stays_below():
    rng = np.random.default_rng(5)
    dimension, noise, norm, threshold = 8, 0.1, 2.0, 0.02
    directions = _directions(rng, dimension)
    gradient = np.concatenate([norm * directions, np.ones((DRAWS, 1))], axis=1) / math.hypot(norm, 1.0)
    released = gradient + noise * rng.standard_normal(gradient.shape)
    errors = ((released[:, :-1] / released[:, -1:] - norm * directions) ** 2).mean(1)
    bound = from_scratch_success(Gaussian(noise), dimension=dimension, norm=norm, mse=threshold)
    assert (errors <= threshold).mean() <= bound.value + 5 * math.sqrt(0.25 / DRAWS)


def test_repeated_and_sampled_releases_against_simulation():
    rng = np.random.default_rng(11)
    dimension, noise, threshold, steps, rate = 6, 1.0, 0.05, 12, 0.4
    run = dp_sgd(noise_multiplier=noise, sampling_probability=rate, steps=steps)
    directions = _directions(rng, dimension)
    hits = rng.binomial(steps, rate, (DRAWS, 1))
    # An attacker who is told the hits adds up the releases that contain the record.
    total = hits * directions + np.sqrt(hits) * noise * rng.standard_normal(directions.shape)
    total = np.where(hits > 0, total, rng.standard_normal(directions.shape))
    estimates = math.sqrt(1 - dimension * threshold) * total / np.linalg.norm(total, axis=1, keepdims=True)
    success = float((((estimates - directions) ** 2).mean(1) <= threshold).mean())
    bound = from_scratch_success(run, dimension=dimension, norm=1.0, mse=threshold)
    assert success == pytest.approx(bound.value, abs=5 * math.sqrt(0.25 / DRAWS))
    full = from_scratch_success(Repeated(Gaussian(noise), steps), dimension=dimension, norm=1.0, mse=threshold)
    assert bound.value < full.value
    assert bound.threat.sees is Sees.EVERY_UPDATE
    assert any("knows which releases" in text for text in bound.assumptions)


def test_repetition_is_less_noise():
    repeated = log_from_scratch_success(Repeated(Gaussian(1.5), 9), dimension=20, norm=1.0, mse=0.01)
    assert repeated == pytest.approx(
        log_from_scratch_success(Gaussian(0.5), dimension=20, norm=1.0, mse=0.01), abs=1e-9
    )
    phases = Composed((Gaussian(1.5), Repeated(Gaussian(1.5), 8)))
    assert log_from_scratch_success(phases, dimension=20, norm=1.0, mse=0.01) == pytest.approx(repeated, abs=1e-9)


@pytest.mark.parametrize("steps", [3, 150, 5000])
def test_sampled_run_is_above_the_exact_average(steps):
    dimension, threshold = 30, 0.012
    run = dp_sgd(noise_multiplier=1.0, sampling_probability=0.02, steps=steps)
    counts = np.arange(min(steps, 400) + 1)
    mass = stats.binom.pmf(counts, steps, 0.02)
    tangent = math.tan(math.asin(math.sqrt(dimension * threshold)))

    def given_hits(count):
        signal = math.sqrt(count)
        return integrate.quad(
            lambda z: (
                special.gammainc((dimension - 1) / 2, max(0.0, signal + z) ** 2 * tangent**2 / 2)
                * math.exp(-z * z / 2)
                / math.sqrt(2 * math.pi)
            ),
            -10,
            10,
            epsabs=1e-13,
        )[0]

    exact = sum(weight * given_hits(count) for count, weight in zip(counts, mass, strict=True) if weight > 1e-14)
    value = from_scratch_success(run, dimension=dimension, norm=1.0, mse=threshold).value
    assert exact - 1e-10 <= value <= exact * (1 + (1e-8 if steps < 1000 else 0.01)) + 1e-10


def test_values_of_formulas_2():
    bound = from_scratch_success(Gaussian(0.1), dimension=4, norm=1.0, mse=0.3 * 0.01)
    assert bound.value == pytest.approx(0.253, abs=5e-4)
    assert from_scratch_success(Gaussian(0.05), dimension=784, norm=1.0, mse=0.6 * 0.0025).value == 1


@given(
    noise=st.floats(0.02, 20),
    dimension=st.integers(1, 3072),
    share=st.floats(1e-6, 1.2),
    steps=st.sampled_from([1, 7, 300, 1003, 20_000]),
    rate=st.sampled_from([1.0, 0.3, 0.01]),
)
@settings(max_examples=80, deadline=None)
def test_monotone_and_above_the_law(noise, dimension, share, steps, rate):
    def value(noise=noise, share=share, steps=steps, rate=rate):
        run = dp_sgd(noise_multiplier=noise, sampling_probability=rate, steps=steps)
        return log_from_scratch_success(run, dimension=dimension, norm=3.0, mse=share * 9.0 / dimension)

    base = value()
    slack = 1e-8 * (1 + abs(base))
    assert base <= 0
    assert value(noise=1.3 * noise) <= base + slack
    assert value(share=1.3 * share) >= base - slack
    assert value(steps=steps + 1) >= base - slack
    assert value(rate=min(1.0, 1.1 * rate)) >= base - slack
    law = analytic_inversion_law(Gaussian(noise), dimension=dimension, norm=3.0)
    one = log_from_scratch_success(Gaussian(noise), dimension=dimension, norm=3.0, mse=share * 9.0 / dimension)
    assert one >= law.log_success(mse=share * 9.0 / dimension) - slack
    assert value(steps=1, rate=1.0) >= value(steps=1) - slack


def test_edges():
    assert from_scratch_success(Gaussian(1.0), dimension=3, norm=1.0, mse=0.0).value == 0
    assert from_scratch_success(Gaussian(1.0), dimension=3, norm=1.0, mse=1 / 3).value == 1
    sign = from_scratch_success(Repeated(Gaussian(1.0), 4), dimension=1, norm=1.0, mse=0.0).value
    assert sign == pytest.approx(special.ndtr(2.0), rel=1e-11)
    assert sign >= special.ndtr(2.0)


def test_a_tiny_value_is_never_reported_as_impossible():
    bound = from_scratch_success(Gaussian(1.0), dimension=3072, norm=1.0, mse=1e-8)
    assert 0 < bound.value < 1e-300
    assert log_from_scratch_success(Gaussian(1.0), dimension=150_528, norm=1.0, mse=1e-8) < -5000 * math.log(10)


def test_what_it_says_about_itself():
    bound = from_scratch_success(Gaussian(1.0), dimension=4, norm=1.0, psnr=20.0)
    assert bound.quantity is Quantity.SUCCESS_PROBABILITY
    assert bound.scope is Scope.KNOWN_NORM_UNIFORM_DIRECTION
    assert Knows.RECORD_NORM in bound.threat.knows
    assert Knows.PRIOR not in bound.threat.knows
    assert not bound.threat.controls  # another planted layer would release another function of the record
    assert any("equation 19" in text for text in bound.assumptions)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dimension": 0}, "dimension=0 >= 1"),
        ({"norm": -1.0}, "norm=-1.0 > 0"),
        ({"mse": -0.1}, "mse=-0.1 >= 0"),
        ({"mse": math.nan}, "mse=nan"),
        ({"psnr": 20.0}, "exactly one number"),
        ({"mse": None}, "exactly one number"),
        ({"data_range": 0.0}, "data_range=0.0 > 0"),
        ({"mechanism": PureDP(1.0, Neighbouring.REPLACE_ONE)}, "mechanism=PureDP"),
    ],
)
def test_bad_input_is_named(setting, message):
    arguments = {"mechanism": Gaussian(1.0), "dimension": 4, "norm": 1.0, "mse": 0.1} | setting
    with pytest.raises(InvalidInput, match=message):
        from_scratch_success(arguments.pop("mechanism"), **arguments)


@pytest.mark.parametrize(
    ("noise", "dimension", "square", "expected", "direction"),
    [
        (1.0, 10, 0.3, 0.0135195, 0.0070910),
        (0.5, 10, 0.3, 0.112956, 0.0431628),
        (1.0, 784, 0.95, 4.767e-8, 4.444e-8),
    ],
)
def test_any_release_has_its_reference_values_above_the_exact_ones_of_the_direction(
    noise, dimension, square, expected, direction
):
    record = {"dimension": dimension, "norm": 3.0, "mse": 9 * square / dimension}
    bound = known_norm_success(Gaussian(noise), **record)
    assert bound.value == pytest.approx(expected, rel=1e-4)
    assert from_scratch_success(Gaussian(noise), **record).value == pytest.approx(direction, rel=1e-3)
    assert bound.scope is Scope.KNOWN_NORM_ANY_RELEASE


@settings(max_examples=30, deadline=None)
@given(noise=st.floats(0.1, 5), dimension=st.integers(2, 200), square=st.floats(0.01, 0.99), steps=st.integers(1, 9))
def test_any_release_is_never_below_the_direction(noise, dimension, square, steps):
    record = {"dimension": dimension, "norm": 1.0, "mse": square / dimension}
    mechanism = dp_sgd(noise_multiplier=noise, steps=steps)
    narrow, wide = from_scratch_success(mechanism, **record), known_norm_success(mechanism, **record)
    assert wide.log_value >= narrow.log_value - 1e-8


def test_any_mechanism_has_a_bound_for_a_known_norm():
    record = {"dimension": 12, "norm": 1.0, "psnr": 20.0}
    for mechanism in (
        PureDP(1.0, Neighbouring.ADD_OR_REMOVE),
        dp_sgd(noise_multiplier=1.0, sampling_probability=0.1, steps=9),
    ):
        assert 0 < known_norm_success(mechanism, **record).value < 0.01
    assert known_norm_success(Gaussian(1.0), dimension=4, norm=1.0, mse=0.25).value == 1.0
