import math

import numpy as np
import pytest

from reconrisk.accounting.phases import Phase, gaussian_mu, phases_of
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import (
    ApproximateDP,
    Composed,
    Gaussian,
    GaussianDP,
    Neighbouring,
    PoissonSampled,
    PureDP,
    RenyiDP,
    Repeated,
    ZeroConcentratedDP,
    dp_sgd,
    output_perturbation,
)
from reconrisk.core.storage.serialization import from_json, to_json

EXAMPLES = [
    Gaussian(1.1, 2.0),
    PoissonSampled(Gaussian(1.1), 0.01),
    Repeated(PoissonSampled(Gaussian(1.1), 0.01), 100),
    Composed((Gaussian(1.0), Repeated(Gaussian(2.0), 3))),
    PureDP(1.0, Neighbouring.REPLACE_ONE),
    ApproximateDP(1.0, 1e-5),
    RenyiDP((2.0, 3.5), (0.1, 0.2), Neighbouring.REPLACE_ONE),
    ZeroConcentratedDP(0.5),
    GaussianDP(0.7),
]


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=lambda mechanism: type(mechanism).__name__)
def test_survives_json(mechanism):
    assert from_json(to_json(mechanism)) == mechanism


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=lambda mechanism: type(mechanism).__name__)
def test_is_a_value(mechanism):
    assert hash(mechanism) == hash(from_json(to_json(mechanism)))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_noise_must_be_a_positive_number(value):
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        dp_sgd(noise_multiplier=value)


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1, math.nan, math.inf])
def test_the_rate_must_be_a_probability_above_zero(value):
    with pytest.raises(InvalidInput, match="sampling_probability"):
        dp_sgd(noise_multiplier=1.0, sampling_probability=value)


@pytest.mark.parametrize("value", [0, -1, 2.5, math.nan, math.inf, "3", True])
def test_steps_must_be_a_whole_number(value):
    with pytest.raises(InvalidInput, match="steps"):
        dp_sgd(noise_multiplier=1.0, steps=value)


def test_layers_that_say_nothing_are_left_out():
    assert dp_sgd(noise_multiplier=2.0) == Gaussian(2.0)
    assert dp_sgd(noise_multiplier=2.0, sampling_probability=0.5) == PoissonSampled(Gaussian(2.0), 0.5)
    assert dp_sgd(noise_multiplier=2.0, steps=3) == Repeated(Gaussian(2.0), 3)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PureDP(-1.0, Neighbouring.REPLACE_ONE), "epsilon"),
        (lambda: PureDP(math.inf, Neighbouring.REPLACE_ONE), "epsilon"),
        (lambda: PureDP(1.0, "both"), "neighbouring"),
        (lambda: ApproximateDP(1.0, 1.5), "delta"),
        (lambda: ApproximateDP(1.0, math.nan), "delta"),
        (lambda: RenyiDP((2.0,), (0.1, 0.2)), "epsilons"),
        (lambda: RenyiDP((), ()), "epsilons"),
        (lambda: RenyiDP((1.0,), (0.1,)), "orders"),
        (lambda: RenyiDP((2.0,), (math.inf,)), "epsilons"),
        (lambda: ZeroConcentratedDP(-0.1), "rho"),
        (lambda: GaussianDP(math.nan), "mu"),
        (lambda: Composed(()), "mechanisms"),
        (lambda: Composed((PureDP(1.0, Neighbouring.REPLACE_ONE),)), "mechanisms"),
        (lambda: Composed((Composed((Gaussian(1.0),)),)), "mechanisms"),
        (lambda: Repeated(Repeated(Gaussian(1.0), 2), 2), "mechanism"),
        (lambda: PoissonSampled(Repeated(Gaussian(1.0), 2), 0.5), "mechanism"),
    ],
)
def test_bad_fields_are_refused_by_name(make, name):
    with pytest.raises(InvalidInput, match=name):
        make()


def test_output_perturbation_has_the_sensitivity_of_one_removed_record():
    mechanism = output_perturbation(noise_std=0.01, records=12_665, regularization=0.01, record_norm=2.0)
    assert mechanism.clip_norm == pytest.approx(2 / 126.65)
    assert mechanism.noise_std == pytest.approx(0.01)


@pytest.mark.parametrize("name", ["noise_std", "records", "regularization", "record_norm"])
def test_output_perturbation_refuses_what_is_not_positive(name):
    setting = {"noise_std": 0.01, "records": 10, "regularization": 0.1, "record_norm": 1.0}
    with pytest.raises(InvalidInput, match=name):
        output_perturbation(**(setting | {name: 0}))


def test_phases_merge_equal_steps_and_all_full_batches():
    sampled = PoissonSampled(Gaussian(2.0), 0.1)
    mechanism = Composed((sampled, Gaussian(1.0), Repeated(sampled, 4), Repeated(Gaussian(2.0), 12)))
    assert phases_of(mechanism) == (Phase(2.0, 0.1, 5), Phase(0.5, 1.0, 1))
    assert gaussian_mu(phases_of(mechanism)[1]) == 2.0


def test_a_subsampled_phase_is_no_gaussian():
    with pytest.raises(InvalidInput, match="full-batch"):
        gaussian_mu(Phase(1.0, 0.5, 1))


def test_numbers_of_numpy_become_plain_and_survive_json():
    mechanism = dp_sgd(noise_multiplier=np.float32(1.5), sampling_probability=np.float64(0.25), steps=np.int64(3))
    assert from_json(to_json(mechanism)) == mechanism


@pytest.mark.parametrize("name", ["replace_one", "one record replaced", Neighbouring.REPLACE_ONE])
def test_a_neighbouring_relation_may_be_named(name):
    assert PureDP(1.0, name).neighbouring is Neighbouring.REPLACE_ONE
