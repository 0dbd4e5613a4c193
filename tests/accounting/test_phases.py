"""Mechanisms as phases: each accountant states by a table which mechanisms it supports."""

import typing

import pytest

from reconrisk.accounting.phases import WITH_PHASES, Phase, has_phases, phases_of, unmerged_phases
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import (
    ApproximateDP,
    Composed,
    Gaussian,
    GaussianDP,
    Mechanism,
    Neighbouring,
    NoiseMechanism,
    PoissonSampled,
    PrivacyCurve,
    PureDP,
    RenyiDP,
    Repeated,
    StatedPrivacy,
    ZeroConcentratedDP,
    dp_sgd,
)

EXAMPLES = (
    Gaussian(1.0),
    PoissonSampled(Gaussian(1.0), 0.1),
    Repeated(Gaussian(2.0), 3),
    Composed((Gaussian(1.0), dp_sgd(noise_multiplier=2.0, sampling_probability=0.5, steps=4))),
    PureDP(1.0, Neighbouring.ADD_OR_REMOVE),
    ApproximateDP(1.0, 1e-5),
    PrivacyCurve((1.0,), (1e-5,)),
    RenyiDP((2.0,), (1.0,)),
    ZeroConcentratedDP(0.5),
    GaussianDP(1.0),
)


def test_there_is_an_example_of_every_mechanism():
    assert {type(each) for each in EXAMPLES} == set(typing.get_args(Mechanism))


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=lambda each: type(each).__name__)
def test_every_mechanism_has_a_success_bound(mechanism):
    assert 0.1 < success_upper_bound(mechanism, prior_success=0.1).value < 1


def test_phases_are_those_of_gaussian_noise():
    assert set(WITH_PHASES) <= set(typing.get_args(NoiseMechanism))
    assert all(map(has_phases, EXAMPLES[:4]))
    assert not any(map(has_phases, (*(each for each in EXAMPLES if isinstance(each, StatedPrivacy)), None, "gaussian")))


def test_phases_as_they_are_stated():
    run = Composed((Repeated(Gaussian(2.0), 4), PoissonSampled(Gaussian(1.0), 1.0), Gaussian(2.0)))
    assert unmerged_phases(run) == (Phase(2.0, 1.0, 4), Phase(1.0, 1.0, 1), Phase(2.0, 1.0, 1))
    assert phases_of(run) == (Phase(2 / 3, 1.0, 1),)


def test_mechanisms_without_phases_are_refused():
    with pytest.raises(InvalidInput, match="an epsilon alone does not determine the noise"):
        phases_of(GaussianDP(1.0))
