import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.registry import AttackInfo, PortfolioEntry
from reconrisk.core.mechanism import GaussianDP, dp_sgd
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.data.load import load_dataset
from reconrisk.releases.release import ForwardRelease
from reconrisk.studies.audit.conclusion import LARGEST_GALLERY, ContradictedBound
from reconrisk.studies.common import plan

INPUTS = torch.rand(80, 1, 2, 2, generator=torch.Generator().manual_seed(0))
DATA = Dataset("toy", INPUTS, torch.arange(80) % 2)
RELEASE = ForwardRelease(lambda inputs, labels: {"y": inputs.sum(0)}, INPUTS, DATA.labels)
THREAT = ThreatModel(Sees.ONE_UPDATE, knows={Knows.PRIOR, Knows.DEFENSE})


def run(**settings):
    options = {"attacks": ["best_candidate"], "threat": THREAT, "trials": 3, "budget": None, "goals": ["mse<=0.001"]}
    return rr.audit(RELEASE, DATA, **options | settings)


def test_lines_are_goals_by_defenses_and_can_be_found():
    noise = rr.defenses.gaussian_noise(0.1)
    result = run(defenses={"a": None, "b": noise}, goals=["psnr>=20", "mse<=0.1"])
    assert [(str(line.goal), line.defense) for line in result.lines] == [
        ("psnr>=20", "a"),
        ("psnr>=20", "b"),
        ("mse<=0.1", "a"),
        ("mse<=0.1", "b"),
    ]
    assert result.line("b", rr.goals.mse_at_most(0.1)) is result.lines[3]
    assert result.defenses[0].distortion == 0.0
    assert result.defenses[1].distortion > 0
    assert result.planned == result.done == 2 * 3 * len(result.attacks)


def test_the_result_survives_json_without_its_pictures():
    result = run()
    again = rr.from_json(rr.to_json(result))
    assert again == result
    assert again.pictures == ()
    assert len(result.pictures) == 3


def test_the_gallery_is_limited_and_shows_the_most_exposed():
    result = run(trials=LARGEST_GALLERY + 6, defenses={"a": None, "b": rr.defenses.gaussian_noise(0.3)})
    assert len(result.pictures) == LARGEST_GALLERY
    for label in ("a", "b"):
        shown = [each.exposure for each in result.pictures if each.exposure.defense == label]
        assert shown == [each for each in result.exposures if each.defense == label][: len(shown)]
        assert [each.score for each in shown] == sorted([each.score for each in shown])


def test_an_attack_that_applies_under_one_defense_only_leaves_the_run_complete(monkeypatch):
    class Picky:
        needs = ThreatModel(Sees.ONE_UPDATE)
        name = "picky"

        def __call__(self, observation, *, rng):
            if observation.noise_std is not None:
                rr.attacks.analytic()(observation, rng=rng)  # refuses: there is no layer
            return rr.attacks.gauss_newton(restarts=1)(observation, rng=rng)

    monkeypatch.setitem(plan.PORTFOLIOS, "picky", (PortfolioEntry("picky", 1), PortfolioEntry("best_candidate", 1)))
    monkeypatch.setattr(plan, "ATTACKS", {**plan.ATTACKS, "picky": AttackInfo("picky", "", "Refuses noise.")})
    original = plan.attack_from_knowledge
    monkeypatch.setattr(
        plan,
        "attack_from_knowledge",
        lambda name, settings, knowledge: (
            (Picky(), frozenset()) if name == "picky" else original(name, settings, knowledge)
        ),
    )
    settings = {
        "threat": THREAT.with_knowledge(Knows.LABELS),
        "defenses": {"a": None, "b": rr.defenses.gaussian_noise(0.1)},
    }
    result = run(attacks="picky", trials=4, **settings)
    (picky,) = (each for each in result.attacks if each.label == "picky")
    assert (picky.planned, picky.done, picky.failed) == (4 + 4, 4 + 4, 4)
    assert result.is_complete
    assert "picky" in {each.attack for each in result.line("a", rr.goals.mse_at_most(0.001)).outcomes}
    assert "picky" not in {each.attack for each in result.line("b", rr.goals.mse_at_most(0.001)).outcomes}


def test_a_contradiction_says_both_numbers_and_carries_the_result():
    impossible = rr.success_upper_bound(GaussianDP(0.1), prior_success=0.01)
    with pytest.raises(ContradictedBound) as caught:
        run(trials=12, training=rr.TrainingRun(guarantees=[lambda goal, label: impossible]))
    ((line, each),) = caught.value.result.contradictions
    assert str(each.highest) in str(caught.value)
    assert str(each.guarantee) in str(caught.value)
    assert "best_candidate reaches mse<=0.001 under none" in str(caught.value)
    assert "beats a bound that covers it" in caught.value.result.sentence
    assert line.verdict.value == "the guarantee is contradicted"


def test_more_lines_make_each_alarm_rarer():
    impossible = rr.success_upper_bound(GaussianDP(0.1), prior_success=0.01)
    levels = []
    for goals in (["mse<=0.001"], ["mse<=0.001", "mse<=0.002"]):
        with pytest.raises(ContradictedBound) as caught:
            run(trials=12, goals=goals, training=rr.TrainingRun(guarantees=[lambda goal, label: impossible]))
        levels.append(1 - caught.value.result.contradictions[0][1].highest.confidence)
    assert levels[0] == pytest.approx(2 * levels[1], rel=1e-6)
    # two-sided: an error of 1e-3 on the upper side, shared by all attacks; one bound is compared
    attacks = len(run().attacks)
    assert levels[0] == pytest.approx(2 * 1e-3 / attacks, rel=1e-6)


def test_a_training_run_has_its_corridor_and_none_of_it_is_compared():
    mechanism = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=10)
    result = run(training=mechanism, defenses={"none": None})
    assert result.training.mechanism == mechanism
    assert result.training.corridor is not None
    assert result.training.leakage is None
    assert result.lines[0].comparisons
    assert not any(each.is_compared for each in result.lines[0].comparisons)


def test_the_subject_is_named_and_public_records_are_recognised():
    digits = load_dataset("digits").subset(range(20))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = rr.audit(
        model, digits, attacks=["analytic"], trials=2, budget=None, options=rr.AuditOptions(records=[3, 5, 7])
    )
    assert result.subject.is_bundled
    assert (result.subject.model, result.subject.data, result.subject.population) == ("Sequential", "digits", 3)
    assert {each.record for each in result.exposures} <= {3, 5, 7}
    assert "targets are drawn from 3 records" in result.assumptions[0]
    assert not run().subject.is_bundled
