import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.bounds import risks
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.storage.serialization import from_json, to_json

EXAMPLES = [
    risks.identification(candidates=1000, at_most=0.01),
    risks.identification(log_prior_success=-1e4, at_most=1e-3),
    risks.from_scratch(psnr=20, at_most=1e-3, dimension=12, norm=1.0),
    risks.unbiased_mse(at_least=0.05, diameters=(1.0, 2.0)),
]


@pytest.mark.parametrize("risk", EXAMPLES, ids=str)
def test_risks_survive_json(risk):
    assert from_json(to_json(risk)) == risk


@pytest.mark.parametrize("risk", EXAMPLES, ids=str)
@given(one=st.floats(0.2, 50), other=st.floats(0.2, 50))
def test_more_noise_never_raises_a_risk(risk, one, other):
    less, more = sorted((one, other))
    levels = [risks.risk_level(risk.guarantee(Gaussian(noise_multiplier=noise))) for noise in (less, more)]
    assert levels[1] <= levels[0] + 1e-9 * abs(levels[0])


def test_the_error_guarantee_is_theorem_one_with_the_replace_one_divergence():
    # sigma = 2, full batch: epsilon = (2/2)^2 = 1, records in [0, 1]: 1/(4(e - 1))
    bound = risks.unbiased_mse(at_least=0.05).guarantee(Gaussian(noise_multiplier=2.0))
    assert bound.value == pytest.approx(1 / (4 * math.expm1(1.0)), rel=1e-12)
    assert bound.mechanism == Gaussian(noise_multiplier=2.0)


def test_the_ways_to_state_a_prior_agree():
    one = risks.identification(candidates=8, at_most=0.5)
    assert one.log_prior_success == pytest.approx(math.log(1 / 8), abs=1e-15)
    assert risks.identification(prior_success=1 / 8, at_most=0.5).log_prior_success == pytest.approx(math.log(1 / 8))
    assert risks.identification(log_prior_success=math.log(1 / 8), at_most=0.5).log_prior_success == math.log(1 / 8)
    assert risks.identification(prior_success=PriorSuccess(-2.0, "stated"), at_most=0.5).log_prior_success == -2.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: risks.identification(candidates=1000, at_most=0.001), r"at_most=0\.001 in \(0\.001, 1\)"),
        (lambda: risks.identification(candidates=1000, at_most=1.0), "and below 1"),
        (
            lambda: risks.identification(candidates=10, at_most=0.1),
            "Pass a number above 0.1, the success of guessing alone",
        ),
        (
            lambda: risks.identification(candidates=10, at_most=0.0),
            "Pass a number above 0.1, the success of guessing alone",
        ),
        (lambda: risks.FromScratch(4, 1.0, -1.0, 0.1), r"mse=-1\.0 >= 0"),
        (lambda: risks.from_scratch(psnr=20, at_most=0.1, dimension=4, norm=1.0, data_range=1e200), "data_range"),
        (lambda: risks.identification(at_most=0.1), "exactly one value"),
        (lambda: risks.identification(candidates=10, prior_success=0.1, at_most=0.5), "exactly one value"),
        (lambda: risks.identification(candidates=1, at_most=0.5), "candidates=1 >= 2"),
        (lambda: risks.identification(prior_success=0.0, at_most=0.5), "log_prior_success for tiny"),
        (lambda: risks.identification(prior_success=1.5, at_most=0.5), r"prior_success=1\.5 in \[0, 1\]"),
        (lambda: risks.from_scratch(psnr=20, at_most=0.0, dimension=4, norm=1.0), r"at_most=0\.0 in \(0, 1\)"),
        (
            lambda: risks.from_scratch(mse=0.5, at_most=0.1, dimension=4, norm=1.0),
            r"mse=0\.5 < 0\.25, which is norm\^2/dimension",
        ),
        (lambda: risks.from_scratch(mse=0.1, psnr=3, at_most=0.1, dimension=4, norm=1.0), "exactly one number"),
        (lambda: risks.from_scratch(mse=math.nan, at_most=0.1, dimension=4, norm=1.0), "mse"),
        (lambda: risks.from_scratch(mse=0.1, at_most=0.1, dimension=0, norm=1.0), "dimension=0 >= 1"),
        (lambda: risks.unbiased_mse(at_least=0.25), r"at_least=0\.25 in \(0, 0\.25\)"),
        (lambda: risks.unbiased_mse(at_least=0.1, diameters=()), "at least one width"),
        (lambda: risks.unbiased_mse(at_least=0.1, diameters=(1.0, -1.0)), r"diameters=-1\.0 > 0"),
    ],
)
def test_demands_that_make_no_sense_are_refused(build, message):
    with pytest.raises(InvalidInput, match=message):
        build()
