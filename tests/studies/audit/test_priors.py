"""Attacks with a generative prior in an audit: which prior, what it achieves alone, and when there is none."""

import dataclasses
import json
import sys

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.knowledge import PublicKnowledge, attack_from_knowledge
from reconrisk.attacks.registry import PORTFOLIOS, PortfolioEntry
from reconrisk.core.digest import identify_settings
from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data.dataset import Dataset
from reconrisk.reports.audit.model_card import model_card
from reconrisk.reports.audit.page import page_of
from reconrisk.studies.audit.job import job_from_spec
from reconrisk.studies.audit.spec import read_spec, spec_from_mapping
from reconrisk.studies.common import plan
from reconrisk.studies.common.plan import CachedPriorGuess, omitted_attacks, plan_attacks, time_prior
from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT
from tests.attacks.tiny_priors import SHAPE, ship, write_gan

RNG = torch.Generator().manual_seed(0)
MIXED = torch.randn(3, 3, generator=RNG)
DATA = Dataset("toy", (0.5 + 0.1 * torch.randn(60, 3, generator=RNG) @ MIXED).clamp(0, 1), torch.arange(60) % 2)
PICTURES = Dataset("pictures", torch.rand(70, *SHAPE, generator=RNG), torch.arange(70) % 2)
FAST = (
    PortfolioEntry("ggss_r", 3, {"prior": "shipped", "steps": 3}),
    PortfolioEntry("plug_and_play", 20, {"prior": "gaussian", "levels": 3}),
    PortfolioEntry("plug_and_play", 20, {"prior": "shipped", "levels": 2}),
    PortfolioEntry("gias", 20, {"prior": "shipped", "steps": 2, "weight_steps": 1, "restarts": 1}),
)
NOISE = rr.defenses.clip_and_noise(noise_multiplier=0.01, clip_norm=1.0)


@pytest.fixture
def fast(monkeypatch):
    """The attacks with a prior that the thorough audit has, with few steps."""
    monkeypatch.setitem(plan.PORTFOLIOS, "thorough", FAST)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package that ships a prior of each kind for the pictures."""
    pytest.importorskip("diffusers", reason="needs the extra diffusion")
    ship(monkeypatch, tmp_path / "bundled")


def network(size=3, classes=2):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 6), nn.Sigmoid(), nn.Linear(6, classes))


def audited(**change):
    stated = {"attacks": "thorough", "trials": 2, "budget": None, "defenses": [None, NOISE]}
    return rr.audit(network(), DATA, options=rr.AuditOptions(records=range(10)), **stated | change)


def beliefs(data=DATA, **change):
    return PublicKnowledge(**{"shape": data.shape, "public": data, "candidates": data} | change)


def labels(attacks, *, baselines=False):
    return [each.label for each in attacks if each.is_baseline == baselines]


def test_the_thorough_portfolio_has_priors_of_every_kind():
    words = {(entry.name, entry.settings["prior"]) for entry in PORTFOLIOS["thorough"] if "prior" in entry.settings}
    assert words == {
        ("ggss_r", "shipped"),
        ("plug_and_play", "shipped"),
        ("gaussian_posterior", "gaussian"),
        ("plug_and_play", "gaussian"),
        ("gias", "shipped"),
        ("ggl", "shipped"),
    }
    assert not any("prior" in entry.settings for entry in PORTFOLIOS["quick"])


@pytest.mark.parametrize("noise", [None, rr.defenses.gaussian_noise(0.01)], ids=["clean", "noisy"])
def test_attacks_with_a_normal_law_take_about_as_long_as_the_plan_says(noise):
    digits = rr.load_dataset("mnist")
    known = beliefs(digits, public=digits.subset(range(10, 1500)))
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR, Knows.LABELS)
    release = rr.releases.GradientRelease(
        network(784, 10), nn.functional.cross_entropy, digits.inputs[:1], digits.labels[:1]
    )
    observation = rr.observe(release, threat=threat, defense=noise, rng=torch.Generator().manual_seed(0))
    entries = [entry for entry in PORTFOLIOS["thorough"] if entry.settings.get("prior") == "gaussian"]
    for entry in entries:
        attack, _ = attack_from_knowledge(entry.name, dict(entry.settings), known)
        taken = attack(observation, rng=torch.Generator().manual_seed(0)).account.cost.evaluations
        assert taken < 1.5 * entry.evaluations


def test_asking_a_normal_law_takes_time_too():
    prior = rr.priors.fit_gaussian(DATA.inputs)
    assert time_prior(prior, rr.attacks.gaussian_posterior(prior), 10) > 0


def test_an_attack_with_other_settings_takes_about_as_long_as_it_is_listed_with():
    found = plan_attacks(["gaussian_posterior(prior=gaussian)"], DEFAULT_THREAT, beliefs(), any_prior=True)
    (listed,) = (entry for entry in PORTFOLIOS["thorough"] if entry.name == "gaussian_posterior")
    assert found[0].evaluations == listed.evaluations


def test_a_thorough_audit_has_a_gaussian_prior_and_says_what_it_achieves_alone(fast):
    result = audited()
    (used,) = (each for each in result.attacks if each.label == "plug_and_play(prior=gaussian, levels=3)")
    assert used.done == 4
    assert used.prior.baseline == "prior_alone(prior=gaussian)"
    assert used.prior.source == "fitted to 50 public records"
    (alone,) = (each for each in result.attacks if each.label == used.prior.baseline)
    assert alone.is_baseline
    assert alone.done == 4
    words = f"prior gaussian (fitted to 50 public records; alone: psnr {used.prior.alone:.3g}; attack under "
    assert f"{used.label}: {words}" in str(result)
    assert [label for label, _ in used.prior.reached] == [each.label for each in result.defenses]
    assert alone.prior.reached == ()
    assert any("the adversary has the prior gaussian" in each for each in result.assumptions)
    assert rr.from_json(rr.to_json(result)) == result


def test_what_a_prior_achieves_alone_is_the_median_score_of_its_mean():
    result = audited(attacks=["plug_and_play(prior=gaussian, levels=1)"], trials=10, defenses=None)
    mean = DATA.inputs[10:].double().mean(0)  # all but the attacked
    errors = (DATA.inputs[:10].double() - mean).square().mean(1)
    expected = sorted((-10 * errors.log10()).tolist())[5]
    assert result.attacks[0].prior.alone == pytest.approx(expected, abs=1e-4)  # float32 estimates
    ((_, reached),) = result.attacks[0].prior.reached
    assert reached > expected  # no noise: the update gives it away


def test_the_page_names_prior_and_baseline(fast):
    result = audited(defenses=None)
    page = page_of(result, redact=True)
    used = next(each.prior for each in result.attacks if each.prior)
    assert "<small>prior gaussian, fitted to 50 public records; alone: psnr" in page
    assert f"prior <code>{used.hash}</code>" in page
    assert "prior_alone(prior=gaussian)" in page
    assert "is not a leak" in page
    assert "Left out: ggss_r(prior=shipped), plug_and_play(prior=shipped), gias(prior=shipped): Expected" in page


def test_shipped_priors_are_run_named_and_qualified(fast, shipped):
    result = rr.audit(
        network(64),
        PICTURES,
        attacks="thorough",
        trials=1,
        budget=None,
        options=rr.AuditOptions(records=range(3), show_plan=None),
    )
    priors = {each.label: each.prior for each in result.attacks if each.prior and not each.is_baseline}
    assert list(priors) == [
        "ggss_r(prior=tiny, steps=3)",
        "plug_and_play(prior=gaussian, levels=3)",
        "plug_and_play(prior=tiny, levels=2)",
        "gias(prior=tiny, steps=2, weight_steps=1, restarts=1)",
    ]
    assert [each.baseline for each in priors.values()] == [
        "prior_alone(prior=tiny)",
        "prior_alone(prior=gaussian)",
        "prior_alone(prior=tiny)",
        "prior_alone(prior=gan/tiny)",
    ]
    assert all(each.alone is not None for each in priors.values())
    assert len({each.hash for each in priors.values()}) == 3
    assert result.is_complete
    assert result.left_out == ()
    assert sum("none of the training records of tiny" in each for each in result.assumptions) == 1


@pytest.mark.parametrize(("split", "count"), [(None, 6), ("train", 6), ("test", 0)])
def test_records_that_a_prior_was_trained_on_are_warned_of(split, count):
    """The first digits are training ones unless the test split is asked for."""
    data = rr.load_dataset("mnist", split=split)
    chosen = ["gias(prior=mnist, steps=1, weight_steps=0, restarts=1)"]
    result = rr.audit(
        network(784, 10), data, attacks=chosen, trials=1, options=rr.AuditOptions(records=range(6)), budget=None
    )
    assumed = [words for words in result.assumptions if "none of the training records" in words]
    assert assumed == []  # it is known, either way
    assert len(result.warnings) == (count > 0)
    if count:
        (warning,) = result.warnings
        assert warning.startswith("6 of 6 audited records are training records of mnist")
        page = page_of(result, redact=True)
        assert f"WARNING: {warning}." in str(result)
        assert f"<strong>Warning:</strong> {warning}." in page
        assert "Warning: 6 of 6" in result._repr_html_()
        assert "Warning: 6 of 6" in model_card(result)
        assert rr.from_json(rr.to_json(result)).warnings == result.warnings


def test_a_missing_extra_is_told_in_plan_and_report(fast, shipped, monkeypatch):
    def missing(*given, **stated):
        raise MissingExtra("diffusers", "diffusion", "This prior")

    monkeypatch.setattr("reconrisk.priors.load.diffusers.diffusion", missing)
    shown = []
    result = rr.audit(
        network(64),
        PICTURES,
        attacks="thorough",
        trials=1,
        options=rr.AuditOptions(records=range(3), show_plan=shown.append),
        budget=None,
    )
    words = "ggss_r(prior=shipped), plug_and_play(prior=shipped): This prior needs diffusers. Install it with: pip"
    assert f"left out  {words}" in shown[0]
    assert f"left out: {words}" in str(result)
    assert any(each.label.startswith("gias") for each in result.attacks)


def test_a_store_goes_on_with_the_same_prior(fast, tmp_path):
    first = audited(trials=1, store=tmp_path / "trials.db")
    resumed = audited(store=tmp_path / "trials.db")
    whole = audited()
    assert first.run == resumed.run == whole.run
    assert resumed.lines == whole.lines
    assert [each.prior for each in resumed.attacks] == [each.prior for each in whole.attacks]


def test_another_prior_is_another_attack_so_that_its_trials_are_not_taken(tmp_path):
    def run(seed):
        folder = write_gan(tmp_path / "mine", seed)
        attacks = [("gias", {"prior": str(folder), "steps": 1, "weight_steps": 0, "restarts": 1})]
        return rr.audit(
            network(64),
            PICTURES,
            attacks=attacks,
            trials=1,
            options=rr.AuditOptions(records=[0]),
            store=tmp_path / "t.db",
            budget=None,
        )

    one, again, other = run(0), run(0), run(1)
    assert one.run == other.run
    assert one.lines == again.lines
    assert one.attacks[0].prior.hash != other.attacks[0].prior.hash
    assert one.exposures[0].score != other.exposures[0].score


def test_priors_are_told_apart_by_what_they_compute():
    one, other = (rr.priors.fit_gaussian(DATA.inputs[rows]) for rows in (slice(30), slice(30, 60)))
    same = rr.priors.fit_gaussian(DATA.inputs[:30].clone())
    for pair in ((one, other), (one.diffusion, other.diffusion)):
        assert pair[0].fingerprint != pair[1].fingerprint
    assert one.diffusion.fingerprint == same.diffusion.fingerprint
    for build in (
        rr.attacks.ggss_r,
        rr.attacks.plug_and_play,
        lambda prior: CachedPriorGuess(rr.attacks.prior_alone(prior)),
    ):
        assert repr(build(one)) == repr(build(other))
        assert identify_settings(build(one)) != identify_settings(build(other))
        assert identify_settings(build(one)) == identify_settings(build(same))


def test_weights_and_units_tell_generators_apart():
    def prior(weight=1.0, **change):
        layer = nn.Linear(2, 2)
        nn.init.constant_(layer.weight, weight)
        nn.init.zeros_(layer.bias)
        return rr.priors.generator(nn.Sequential(layer, nn.Tanh()), (2,), 2, **change)

    assert prior().fingerprint == prior().fingerprint
    assert prior().fingerprint != prior(2.0).fingerprint
    assert prior().fingerprint != prior(data_range=(0.0, 2.0)).fingerprint
    assert identify_settings(rr.attacks.gifd(prior())) != identify_settings(rr.attacks.gifd(prior(2.0)))


def test_the_same_mean_is_guessed_in_every_trial_whatever_the_chance():
    prior = dataclasses.replace(rr.priors.fit_gaussian(DATA.inputs).diffusion, mean=None)  # draws are needed
    observation = rr.Observation(
        {"y": torch.ones(1)},
        lambda inputs, labels: {},
        HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR),
        (3,),
        (0.0, 1.0),
    )
    guess = CachedPriorGuess(rr.attacks.prior_alone(prior, draws=4, steps=2))
    before = identify_settings(guess)
    one, two = (guess(observation, rng=torch.Generator().manual_seed(seed)).estimates for seed in (1, 2))
    assert torch.equal(one, two)
    assert identify_settings(guess) == before
    both = guess(dataclasses.replace(observation, batch_size=2), rng=torch.Generator()).estimates
    assert torch.equal(both, one.expand(2, 3))


def test_a_stated_threat_is_taken_at_its_word(fast):
    assert labels(plan_attacks("thorough", DEFAULT_THREAT, beliefs(), any_prior=True)) == [
        "plug_and_play(prior=gaussian, levels=3)"
    ]
    knowing = plan_attacks("thorough", DEFAULT_THREAT.with_knowledge(Knows.PRIOR), beliefs())
    assert "plug_and_play(prior=gaussian, levels=3)" in labels(knowing)
    with pytest.raises(InvalidInput, match="Expected an attack"):
        plan_attacks("thorough", DEFAULT_THREAT, beliefs())
    (reason,) = omitted_attacks("thorough", DEFAULT_THREAT, beliefs())
    assert reason.endswith("the adversary of the stated threat has no prior")
    with pytest.raises(InvalidInput, match="to allow everything that ggss_r"):
        plan_attacks(["ggss_r(prior=gaussian)"], DEFAULT_THREAT, beliefs())


def test_the_signature_of_a_default_threat_states_none_where_priors_would_be_lost(fast):
    assert "threat=" not in audited(trials=1).signature
    knowing = DEFAULT_THREAT.with_knowledge(Knows.PRIOR)
    assert "'prior'" in audited(trials=1, threat=knowing).signature


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"public": DATA.subset(range(29))}, "Expected public records=29 >= 30 for a Gaussian prior. Pass public"),
        ({"shape": SHAPE, "public": PICTURES.subset(range(63))}, "Expected public records=63 >= 64"),
        (
            {"shape": SHAPE, "public": PICTURES, "holds_targets": True},
            "Expected public records=70 >= 640 for a Gaussian prior, since attacked ones are among them",
        ),
        ({"public": None}, "Expected public records for a Gaussian prior, other than the attacked ones"),
        ({"shape": (5000,)}, "Expected values of a record=5000 <= 4096"),
    ],
)
def test_too_little_is_public_for_a_gaussian_prior(fast, change, message):
    omitted = omitted_attacks("thorough", DEFAULT_THREAT, beliefs(**change), any_prior=True)
    assert any(message in words for words in omitted)


def test_enough_public_records_beside_the_attacked_have_a_gaussian_prior(fast):
    known = beliefs(PICTURES)
    assert "plug_and_play(prior=gaussian, levels=3)" in labels(
        plan_attacks("thorough", DEFAULT_THREAT, known, any_prior=True)
    )


def test_records_that_are_all_attacked_are_not_public_enough():
    attacks = ["plug_and_play(prior=gaussian)"]
    with pytest.raises(InvalidInput, match=r"public records=70 >= 640 .* attacked ones are among them"):
        rr.audit(network(64), PICTURES, attacks=attacks, trials=1)


def test_configure_attacks_have_their_prior_and_its_baseline():
    one, other = (rr.priors.gaussian(torch.full((3,), each), torch.eye(3), name="mine") for each in (0.4, 0.6))
    chosen = [rr.attacks.ggss_r(one, steps=2), rr.attacks.ggss_r(other, steps=2), rr.attacks.plug_and_play(one)]
    found = plan_attacks(chosen, DEFAULT_THREAT, beliefs(), any_prior=True)
    assert labels(found) == ["ggss_r", "ggss_r #2", "plug_and_play"]
    assert labels(found, baselines=True)[-2:] == ["prior_alone(prior=mine)", "prior_alone(prior=mine) #2"]
    assert found[0].prior.source == "configured by the caller"


def test_a_normal_law_has_one_baseline_as_it_is_and_as_a_denoiser():
    prior = rr.priors.fit_gaussian(DATA.inputs[10:])
    chosen = [rr.attacks.ggss_r(prior, steps=2), rr.attacks.gaussian_posterior(prior, iterations=2)]
    result = audited(attacks=chosen, defenses=None)
    uses = [each.prior for each in result.attacks if each.prior is not None]
    assert len(uses) == 3  # two attacks and the guess
    assert len({(use.baseline, use.hash, use.alone) for use in uses}) == 1


def test_one_prior_by_two_words_has_one_baseline(shipped):
    chosen = ["ggss_r(prior=shipped, steps=2)", "ggss_r(prior=tiny, steps=3)"]
    found = plan_attacks(chosen, DEFAULT_THREAT, beliefs(PICTURES), any_prior=True)
    assert labels(found) == ["ggss_r(prior=tiny, steps=2)", "ggss_r(prior=tiny, steps=3)"]
    assert labels(found, baselines=True).count("prior_alone(prior=tiny)") == 1


def test_a_baseline_that_is_chosen_is_not_planned_twice():
    chosen = ["ggss_r(prior=gaussian, steps=2)", "prior_alone(prior=gaussian)"]
    found = plan_attacks(chosen, DEFAULT_THREAT, beliefs(), any_prior=True)
    assert labels(found, baselines=True).count("prior_alone(prior=gaussian)") == 1
    assert all(isinstance(each.attack, CachedPriorGuess) for each in found if each.label.startswith("prior_alone"))


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (rr.priors.gaussian(torch.zeros(2), torch.eye(2), name="flat"), "The prior flat does not fit.*prior.shape"),
        (rr.priors.gaussian(torch.zeros(3), torch.eye(3), data_range=(0.0, 9.0), name="wide"), "The prior wide.*range"),
    ],
)
def test_a_prior_that_does_not_fit_is_refused_before_any_trial(prior, message):
    with pytest.raises(InvalidInput, match=message):
        audited(attacks=[rr.attacks.ggss_r(prior)])


def test_waiting_for_a_prior_is_part_of_the_expected_time():
    rows = {"attacks": (), "defenses": {"none": None}, "updates": ((0,), (1,)), "seconds_per_evaluation": 0.5}
    guess = rr.attacks.constant_guess()
    planned = plan.PlannedAttack("slow", guess, False, True, 10, None, 3.0)
    assert plan.Plan(**rows | {"attacks": (planned,)}).expected_seconds == pytest.approx(2 * (5.0 + 3.0))


def test_trained_models_have_no_priors_and_no_remark():
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double().numpy()
    from sklearn.linear_model import Ridge

    labels = features.sum(1)
    result = rr.audit(Ridge().fit(features, labels), (features, labels), attacks="thorough", trials=1)
    assert result.left_out == ()
    assert not any(each.prior for each in result.attacks)


def test_a_prior_beside_a_spec_is_found_and_named_without_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_gan(tmp_path / "mine")
    stated = {"model": "logistic", "data": "digits", "records": "0-2", "trials": 1, "budget": "none"}
    attack = {"name": "gias", "prior": "mine", "steps": 1, "weight_steps": 0, "restarts": 1}
    (tmp_path / "spec.json").write_text(json.dumps({**stated, "attacks": [attack, "ggss_r(prior=gaussian, steps=1)"]}))
    result = job_from_spec(read_spec(tmp_path / "spec.json")).run()
    assert [each.label for each in result.attacks if not each.is_baseline] == [
        "gias(prior=mine, steps=1, weight_steps=0, restarts=1)",
        "ggss_r(prior=gaussian, steps=1)",
    ]
    assert result.attacks[0].prior.source == "read from a folder"
    assert str(tmp_path) not in rr.to_json(result)


def test_a_spec_that_states_a_threat_without_the_prior_refuses_attacks_with_one():
    stated = {"model": "logistic", "data": "digits", "records": [0, 1], "attacks": "ggss_r(prior=gaussian, steps=1)"}
    job = job_from_spec(spec_from_mapping({**stated, "threat": {"sees": "one-update", "knows": ["defense"]}}))
    with pytest.raises(InvalidInput, match="to allow everything that ggss_r"):
        job.run()
