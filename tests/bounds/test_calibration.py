import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from reconrisk.bounds import prior_success, risks
from reconrisk.bounds.calibration import Adjust, calibrate
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Composed, Gaussian, PureDP, dp_sgd
from reconrisk.core.storage.serialization import from_json, to_json

TRAINING = dp_sgd(noise_multiplier=1.0, clip_norm=0.5, sampling_probability=0.02, steps=500)
IDENTIFICATION = risks.identification(candidates=100, at_most=0.05)
SCRATCH = risks.from_scratch(mse=0.01, at_most=1e-3, dimension=12, norm=1.0)
KNOWN_NORM = risks.known_norm(mse=0.01, at_most=1e-3, dimension=12, norm=1.0)
one_release = pytest.mark.filterwarnings("ignore:Expected the release of every record:UserWarning")
ERROR = risks.unbiased_mse(at_least=0.1)


def holds(risk, mechanism):
    return risks.risk_level(risk.guarantee(mechanism)) <= risk.limit


@one_release
@pytest.mark.parametrize("risk", [IDENTIFICATION, SCRATCH, KNOWN_NORM, ERROR], ids=str)
@pytest.mark.parametrize("adjust", Adjust)
def test_the_answer_is_safe_and_a_little_less_would_not_be(risk, adjust):
    answer = calibrate(TRAINING, risks=[risk], adjust=adjust)
    assert holds(risk, answer.mechanism)
    assert answer.guarantees == (risk.guarantee(answer.mechanism),)
    change = {
        Adjust.NOISE_MULTIPLIER: lambda value: value * 0.999,
        Adjust.STEPS: lambda value: value + 1,
        Adjust.SAMPLING_PROBABILITY: lambda value: value * 1.001,
    }[adjust]
    settings = {"noise_multiplier": 1.0, "clip_norm": 0.5, "sampling_probability": 0.02, "steps": 500}
    looser = dp_sgd(**{**settings, adjust.value: change(answer.value)})
    assert not holds(risk, looser)


@one_release
@pytest.mark.parametrize("adjust", Adjust)
def test_several_risks_give_the_strictest_setting(adjust):
    alone = [calibrate(TRAINING, risks=[risk], adjust=adjust).value for risk in (IDENTIFICATION, SCRATCH, ERROR)]
    together = calibrate(TRAINING, risks=[IDENTIFICATION, SCRATCH, ERROR], adjust=adjust)
    strictest = max(alone) if adjust is Adjust.NOISE_MULTIPLIER else min(alone)
    assert together.value == pytest.approx(strictest, rel=1e-6)
    assert all(holds(risk, together.mechanism) for risk in together.risks)


@settings(max_examples=15)
@given(steps=st.integers(1, 2000), rate=st.floats(0.001, 1.0), share=st.floats(0.05, 0.9))
def test_random_trainings_are_calibrated_to_the_safe_side(steps, rate, share):
    risk = risks.identification(prior_success=0.01, at_most=0.01 + 0.99 * share)
    training = dp_sgd(noise_multiplier=1.0, sampling_probability=rate, steps=steps)
    assert holds(risk, calibrate(training, risks=[risk]).mechanism)


def test_a_risk_for_one_release_warns_and_names_the_bound_for_any_release():
    with pytest.warns(UserWarning, match=r"covers no other release.*risks\.known_norm"):
        answer = calibrate(Gaussian(1.0), risks=[SCRATCH])
    assert "only the release x/|x|" in answer.sentence
    other = calibrate(Gaussian(1.0), risks=[KNOWN_NORM])  # a warning would fail this test
    assert "x/|x|" not in other.sentence
    assert other.value > answer.value


def test_a_known_norm_is_a_prior_that_is_uniform_on_the_sphere():
    prior = prior_success.uniform_sphere(dimension=12, norm=1.0, mse=0.01)
    named = risks.identification(prior_success=prior, at_most=1e-3)
    assert calibrate(TRAINING, risks=[KNOWN_NORM]).value == calibrate(TRAINING, risks=[named]).value
    assert from_json(to_json(KNOWN_NORM)) == KNOWN_NORM
    schedule = Composed((TRAINING, dp_sgd(noise_multiplier=2.0, steps=2)))  # not solved by the one-phase search
    assert holds(KNOWN_NORM, calibrate(schedule, risks=[KNOWN_NORM]).mechanism)


def test_full_batch_training_keeps_its_steps_and_meets_the_closed_form():
    risk = risks.identification(prior_success=0.1, at_most=float(norm.cdf(norm.ppf(0.1) + 1)))
    answer = calibrate(dp_sgd(noise_multiplier=1.0, clip_norm=2.0, steps=25), risks=[risk])
    assert answer.mechanism == dp_sgd(noise_multiplier=answer.value, clip_norm=2.0, steps=25)
    assert 5.0 <= answer.value <= 5.0 * (1 + 1e-4)  # Phi(Phi^-1(.1) + 1) at sigma = sqrt(25), never below


def test_a_schedule_is_scaled_as_a_whole():
    schedule = Composed((dp_sgd(noise_multiplier=2.0, steps=4), dp_sgd(noise_multiplier=1.0, steps=9)))
    risk = risks.identification(prior_success=0.1, at_most=float(norm.cdf(norm.ppf(0.1) + 1)))
    answer = calibrate(schedule, risks=[risk])
    first, second = answer.mechanism.mechanisms
    assert first.mechanism.noise_multiplier == pytest.approx(2 * second.mechanism.noise_multiplier)
    assert (4 / first.mechanism.noise_multiplier**2 + 9 / second.mechanism.noise_multiplier**2) == pytest.approx(
        1.0, rel=1e-5
    )
    with pytest.raises(InvalidInput, match="'noise_multiplier' for a mechanism of several phases"):
        calibrate(schedule, risks=[risk], adjust="steps")


def test_the_result_says_which_privacy_it_implies_and_survives_json():
    answer = calibrate(TRAINING, risks=[IDENTIFICATION, ERROR], delta=1e-6)
    assert 0 < answer.epsilon < 10
    assert from_json(to_json(answer)) == answer
    assert answer.sentence.startswith("The smallest noise_multiplier is")
    assert str(IDENTIFICATION) in answer.table()


@pytest.mark.parametrize("adjust", Adjust)
def test_the_printed_setting_is_safe_when_typed_in_again(adjust):
    answer = calibrate(TRAINING, risks=[IDENTIFICATION], adjust=adjust)
    settings = {"noise_multiplier": 1.0, "clip_norm": 0.5, "sampling_probability": 0.02, "steps": 500}
    assert holds(IDENTIFICATION, dp_sgd(**{**settings, adjust.value: float(answer.value_text)}))
    assert answer.value_text in str(answer)


@one_release
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"risks": []}, "risks with at least one"),
        ({"risks": ERROR}, "to be a list of risks"),
        ({"risks": ["x"]}, "to be a list of risks"),
        ({"risks": [ERROR], "adjust": "noise"}, "adjust='noise' to be one of noise_multiplier, steps"),
        ({"risks": [ERROR], "delta": 0.0}, r"delta=0\.0 in \(0, 1\)"),
        (
            {"risks": [risks.from_scratch(mse=0.2, at_most=1e-3, dimension=2, norm=1.0)]},
            "to be attainable.*the guarantee is 0.2",
        ),
    ],
)
def test_impossible_demands_are_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        calibrate(Gaussian(noise_multiplier=1.0), **arguments)


def test_a_stated_epsilon_cannot_be_calibrated():
    with pytest.raises(InvalidInput, match="to describe a training run with Gaussian noise"):
        calibrate(PureDP(1.0, "one record replaced"), risks=[ERROR])
