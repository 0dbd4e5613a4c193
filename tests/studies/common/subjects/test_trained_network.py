"""Trained models audited in one call: tiny networks whose last record is known to come back."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.mechanism import Gaussian, Repeated
from reconrisk.core.threat import Knows, Sees
from reconrisk.data.dataset import Dataset
from reconrisk.studies.common.plan import time_evaluation
from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT, subject_of
from reconrisk.studies.common.subjects.trained_network import TrainedNetwork, TrainedOnce

SHAPE = (1, 2, 3)
INFORMED_THREAT = TrainedNetwork.default_threat


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


INPUTS, LABELS = torch.rand(40, *SHAPE, generator=rng()), torch.arange(40) % 2
DATA = Dataset("toy", INPUTS, LABELS)
FIXED = (INPUTS[:12], LABELS[:12])
GIVEN = {"fixed_inputs": FIXED[0], "fixed_labels": FIXED[1], "optimizer": rr.releases.sgd(0.3, 0.5), "steps": 6}


def network():
    return nn.Sequential(nn.Flatten(), rr.models.mlp(6, (4,), 2, activation=nn.Tanh, rng=rng(1)))


def release(**changes):
    return rr.releases.TrainedModelRelease(
        network(), nn.functional.cross_entropy, INPUTS[20:21], LABELS[20:21], **{**GIVEN, **changes}
    )


def training(**changes):
    return rr.releases.ShadowTraining(network(), *FIXED, GIVEN["optimizer"], GIVEN["steps"], **changes)


@pytest.fixture(scope="module")
def result():
    noise = rr.defenses.gaussian_noise(10.0)
    return rr.audit(release(), DATA, trials=3, defenses=[None, noise], goals=["psnr>=60", "mse<=0.02"])


def test_every_record_comes_back_from_its_model_and_none_through_strong_noise(result):
    clear, hidden = (result.line(each.label, result.goals[0]) for each in result.defenses)
    assert (clear.success.value, clear.best_attack, clear.baseline.value) == (1.0, "invert_training", 0.0)
    # noise of 10 on weights below 1 leaves nothing that a guess does not have
    assert hidden.success.value == 0.0
    assert [each.remark for each in result.attacks] == [""] * 3


def test_the_adversary_is_the_informed_one_and_said_to_be(result):
    assert result.threat == INFORMED_THREAT
    assert result.sentence.startswith("From the trained model and all records but one, with the goal psnr>=60: ")
    assert result.subject.release == "the model after 6 steps of SGD on one record and 12 others that are known"
    assert result.subject.model == "Sequential"


def test_fixed_records_are_never_targets(result):
    assert result.subject.population == 28
    assert {each.record for each in result.exposures} <= set(range(12, 40))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": rr.AuditOptions(records=[20, 3])}, r"records=\[3\] to be none of the fixed records"),
        ({"data": DATA.subset(range(12))}, "data='toy' to hold records other than the fixed ones"),
        ({"options": rr.AuditOptions(records=[40])}, "to be different rows from 0 to 39"),
        ({"update": rr.UpdateRecipe(batch_size=2)}, "batch_size=2 to be 1"),
        ({"update": rr.UpdateRecipe(1, None, 2, 0.1)}, "steps=2 to be left out for a trained model"),
        ({"data": Dataset("other", torch.rand(3, 5), torch.tensor([0, 1, 0]))}, "the shape of a fixed record"),
        ({"attacks": ["analytic"]}, "to allow everything that analytic needs"),
        ({"attacks": ["glm"]}, "to belong to a fitted scikit-learn estimator"),
    ],
)
def test_what_does_not_fit_a_trained_model_is_refused(change, message):
    given = {"data": DATA, "trials": 1, **change}
    with pytest.raises(rr.InvalidInput, match=message):
        rr.audit(release(), given.pop("data"), **given)


def test_updates_cannot_be_attacked_by_what_reads_a_model():
    with pytest.raises(rr.InvalidInput, match="to allow everything that invert_training needs"):
        rr.audit(network(), DATA, attacks=["invert_training"], trials=1)


def test_threats_follow_from_what_is_audited():
    assert subject_of(release(), DATA).threat(None) == INFORMED_THREAT
    assert subject_of(network(), DATA).threat(None) == DEFAULT_THREAT
    stated = rr.ThreatModel(Sees.FINAL_MODEL)
    assert subject_of(release(), DATA).threat(stated) == stated


def test_whoever_has_a_prior_also_tries_every_candidate():
    found = rr.audit(release(), DATA, threat=INFORMED_THREAT.with_knowledge(Knows.PRIOR), trials=2, goals="psnr>=60")
    success = {each.attack: each.success.value for each in found.lines[0].outcomes}
    assert (success["best_candidate"], success["invert_training"]) == (1.0, 1.0)


def test_guesses_are_the_mean_of_the_fixed_records():
    known = subject_of(release(), DATA).known_records
    public = known.dataset(DATA)
    assert torch.equal(public.inputs, FIXED[0])
    assert known.among(DATA) == tuple(range(12))
    assert subject_of(release(fixed_inputs=None, fixed_labels=None), DATA).known_records is None


def test_shadow_training_is_audited_as_the_release_it_stands_for():
    one, other = (rr.audit(each, DATA, trials=2, goals="psnr>=60") for each in (release(), training()))
    assert other.lines[0].success == one.lines[0].success
    assert [each.score for each in other.exposures] == [each.score for each in one.exposures]


@pytest.mark.parametrize("change", [{"draw_start": lambda _: network()}, {"batches": rr.releases.RandomBatches(4)}])
def test_training_with_a_drawn_start_or_order_is_refused(change):
    with pytest.raises(rr.InvalidInput, match="without a random start or order: only its noise may be unknown"):
        rr.audit(training(**change), DATA, trials=1)


def private(noise_multiplier):
    given = {"optimizer": rr.releases.sgd(0.3), "steps": 4, "private": Gaussian(noise_multiplier, 1.0)}
    return rr.releases.ShadowTraining(network(), *FIXED, **given)


@pytest.fixture(scope="module")
def noisy():
    return rr.audit(private(4.0), DATA, trials=2, goals="mse<=0.0001")


def test_private_training_is_compared_with_the_bound_of_its_own_mechanism(noisy):
    line = noisy.lines[0]
    assert line.bound.mechanism == Repeated(Gaussian(4.0, 1.0), 4)
    # four steps of noise 4 are mu = sqrt(4) / 4, and no two of 28 records are within reach of one guess
    kappa = 1 / 28
    normal = torch.distributions.Normal(0.0, 1.0)
    assert line.bound.value == pytest.approx(float(normal.cdf(normal.icdf(torch.tensor(kappa)) + 0.5)), abs=1e-4)
    assert noisy.training.mechanism == Repeated(Gaussian(4.0, 1.0), 4)
    assert "with clipped gradients and noise" in noisy.subject.release


def test_little_noise_is_beaten_and_its_draws_follow_from_the_seed():
    found = rr.audit(private(1e-6), DATA, trials=2, goals="psnr>=40")
    assert found.lines[0].success.value == 1.0
    assert found.lines[0].bound.value == 1.0
    same = rr.audit(private(1e-6), DATA, trials=2, goals="psnr>=40")
    assert [each.score for each in found.exposures] == [each.score for each in same.exposures]


def test_a_claim_of_more_noise_than_there_is_is_contradicted():
    # 5 of 5 rebuilt where at most 5 % may be: a chance of 3e-7
    with pytest.raises(rr.ContradictedBound, match="the mechanism is not implemented as stated"):
        rr.audit(private(1e-6), DATA, trials=5, goals="psnr>=40", training=Repeated(Gaussian(20.0, 1.0), 4))


def test_a_run_with_noise_is_not_compared_with_a_model_trained_without():
    run = rr.mechanisms.dp_sgd(noise_multiplier=4.0, steps=6)
    found = rr.audit(release(), DATA, trials=2, goals="psnr>=40", training=run)
    assert [each.label for each in found.defenses] == ["none"]
    (line,) = found.lines
    assert line.success.value == 1.0
    assert {each.is_compared for each in line.comparisons} == {False}
    assert "but the attacked model was trained without noise" in line.comparisons[0].why


def test_clipping_and_noise_on_the_model_bound_every_attack():
    little, much = (rr.defenses.clip_and_noise(noise_multiplier=s, clip_norm=0.5) for s in (1e-6, 4.0))
    found = rr.audit(release(), DATA, trials=2, goals="psnr>=40", defenses={"little": little, "much": much})
    clear, hidden = found.lines
    assert (clear.success.value, clear.bound.value) == (1.0, 1.0)
    assert hidden.success.value <= hidden.bound.value < 0.1


def test_the_time_of_a_training_is_measured_without_its_derivative(monkeypatch):
    def refuse(self):
        raise AssertionError("the derivative of a whole training was taken")

    monkeypatch.setattr(rr.releases.TrainedModelRelease, "linearize", refuse)
    assert 0 < time_evaluation(subject_of(release(), DATA), release()) < 10


def described(given):
    return subject_of(given, DATA).describe(rr.attacks.constant_guess())


def test_the_training_is_described_in_words():
    queried = replace(release(), queries=INPUTS[:2])
    assert described(queried).startswith("outputs of the model for known queries after 6 steps of SGD on")
    one = release(fixed_inputs=INPUTS[:1], fixed_labels=LABELS[:1], steps=None, batches=[[0, 1], [1]])
    assert described(one) == "the model after 2 steps of SGD on one record and 1 other that are known"


def test_the_report_speaks_of_a_model_and_shows_rebuilt_pictures(result, tmp_path):
    page = result.save(tmp_path / "audit.html", redact=False).read_text()
    words = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
    assert "update" not in re.sub(r"but no update during training", "", words)
    for expected in ("all training records but one", "guess without the model", "how the model was defended"):
        assert expected in words
    assert words.count('alt="Estimate of record') == 6


def test_a_search_that_got_stuck_is_said_to_be_a_lower_bound():
    stuck = rr.attacks.invert_training(iterations=1, refreshes=0, directions=1, labels_tried=1)
    found = rr.audit(release(), DATA, trials=2, goals="psnr>=60", attacks=[stuck])
    attack = next(each for each in found.attacks if not each.is_baseline)
    assert found.lines[0].success.value < 1
    assert attack.remark.startswith("2 of 2 models were not matched, so the success is a lower bound. budget spent")
    assert attack.remark in str(found)


@pytest.mark.parametrize("kind", [release, training])
def test_a_training_that_never_takes_the_target_is_refused(kind):
    batches = {"steps": None, "batches": [[0, 1], [2, 3, 11]]}
    made = (
        kind(**batches)
        if kind is release
        else rr.releases.ShadowTraining(network(), *FIXED, GIVEN["optimizer"], **batches)
    )
    with pytest.raises(rr.InvalidInput, match="Expected batches that contain the attacked record"):
        rr.audit(made, DATA, trials=1)


def test_every_model_is_trained_once_for_all_guesses_and_defenses(monkeypatch):
    trained, value = [], rr.releases.TrainedModelRelease.value

    def counted(self):
        trained.append(self.inputs)
        return value(self)

    monkeypatch.setattr(rr.releases.TrainedModelRelease, "value", counted)
    noise = rr.defenses.gaussian_noise(0.1)
    found = rr.audit(release(), DATA, trials=3, defenses=[None, noise], attacks=["constant_guess"], goals="psnr>=60")
    assert found.done == 3 * 2 * 2
    assert len(trained) == 4  # three draws, and the release itself for its fingerprint


def test_a_model_that_is_kept_cannot_be_changed_by_who_looks_at_it():
    kept = TrainedOnce.of(release(), INPUTS[30:31], LABELS[30:31])
    plain = release().forward(INPUTS[30:31], LABELS[30:31])
    for tensor in kept.value().values():
        tensor.zero_()
    for name, tensor in kept.value().items():
        assert torch.equal(tensor, plain[name])
