import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reconrisk as rr
from reconrisk.attacks.knowledge import PublicKnowledge
from reconrisk.attacks.registry import ATTACKS, PORTFOLIOS
from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import HONEST_BUT_CURIOUS, MALICIOUS_SERVER, STRONGEST, Knows
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import ForwardRelease
from reconrisk.studies.common.plan import Plan, PlannedAttack, plan_attacks, time_evaluation
from reconrisk.studies.common.subjects.given_release import GivenRelease

DATA = Dataset("toy", torch.rand(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2)


def knowledge(**change):
    return PublicKnowledge(**{"shape": (3,), "batch_size": 1, "public": DATA, "candidates": DATA} | change)


def labels(attacks):
    return [each.label for each in attacks if not each.is_baseline]


def plan(attacks=2, defenses=2, updates=3, seconds=0.5):
    guess = rr.attacks.constant_guess()
    planned = tuple(PlannedAttack(f"a{place}", guess, place == 0, True, 10) for place in range(attacks))
    return Plan(
        planned, {f"d{each}": None for each in range(defenses)}, tuple((row,) for row in range(updates)), seconds
    )


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
def test_every_trial_is_planned_once_and_every_beginning_is_balanced(attacks, defenses, updates):
    planned = plan(attacks, defenses, updates)
    keys = list(planned.trials())
    assert len(set(keys)) == len(keys) == planned.size == attacks * defenses * updates
    for end in range(len(keys)):
        counts = {}
        for key in keys[:end]:
            counts[key.defense, key.attack] = counts.get((key.defense, key.attack), 0) + 1
        every = [counts.get((f"d{d}", f"a{a}"), 0) for d in range(defenses) for a in range(attacks)]
        assert max(every) - min(every) <= 1


def test_the_plan_says_what_it_will_do_and_how_long():
    words = str(plan())
    assert "12 trials: 3 updates of 1 record, 2 defenses, 2 attacks" in words
    assert "attacks   a1; guesses: a0" in words
    assert plan().expected_seconds == pytest.approx(0.5 * 20 * 3 * 2)
    assert "expected  60 s" in words
    assert "2.0 h" in str(plan(seconds=60.0))
    assert "10 min" in str(plan(seconds=5.0))


@pytest.mark.parametrize("portfolio", PORTFOLIOS)
def test_stronger_threats_can_run_more_of_a_portfolio(portfolio):
    found = [
        set(labels(plan_attacks(portfolio, threat, knowledge())))
        for threat in (HONEST_BUT_CURIOUS, MALICIOUS_SERVER.with_knowledge(Knows.PRIOR), STRONGEST)
    ]
    assert found[0] < found[1] <= found[2]
    assert "best_candidate" in found[1] - found[0]
    assert "imprint" in found[1] - found[0]


@pytest.mark.parametrize("portfolio", PORTFOLIOS)
def test_updates_of_several_records_leave_out_attacks_on_one(portfolio):
    chosen = labels(plan_attacks(portfolio, STRONGEST, knowledge(batch_size=3)))
    single = {entry.name for entry in PORTFOLIOS[portfolio] if not ATTACKS[entry.name].whole_update}
    assert chosen
    assert not single & {label.partition("(")[0] for label in chosen}


def test_every_guess_that_can_be_made_is_planned():
    known = plan_attacks("quick", HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS), knowledge())
    assert {each.label for each in known if each.is_baseline} == {
        name for name, info in ATTACKS.items() if info.is_baseline
    } - {"prior_alone"}
    without = plan_attacks("quick", HONEST_BUT_CURIOUS, knowledge(public=None))
    assert {each.label for each in without if each.is_baseline} == {"constant_guess"}


def test_guesses_are_planned_from_the_simplest_to_the_one_that_knows_most():
    """Of guesses that do equally well, reports name the first."""
    known = plan_attacks("quick", HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS), knowledge())
    assert [each.label for each in known if each.is_baseline] == ["constant_guess", "prior_mean", "class_mean"]


def test_class_means_of_inferred_labels_are_an_attack_not_a_guess():
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR)
    (chosen,) = (each for each in plan_attacks(["class_mean"], threat, knowledge()) if each.label == "class_mean")
    assert not chosen.is_baseline
    (guess,) = (
        each
        for each in plan_attacks(["class_mean"], threat.with_knowledge(Knows.LABELS), knowledge())
        if each.label == "class_mean"
    )
    assert guess.is_baseline


def test_choices_are_names_names_with_settings_or_attacks():
    choices = ["analytic", ("inverting_gradients", {"steps": 7}), rr.attacks.gauss_newton(restarts=2)]
    found = plan_attacks(choices, HONEST_BUT_CURIOUS, knowledge())
    assert labels(found)[:2] == ["analytic", "inverting_gradients(steps=7)"]
    assert "restarts=2" in repr(found[2].attack)
    assert all(each.was_chosen for each in found[:3])


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ("slow", "Expected attacks='slow' to be one of quick, thorough. Or pass a list of attacks by name."),
        (["nonsense"], "nonsense"),
        (["analytic", "analytic"], "to differ"),
        (["imprint"], "to allow everything that imprint needs"),
        ([("analytic", {"steps": 3})], "to be left out for analytic"),
    ],
)
def test_choices_that_cannot_be_made_are_refused(choices, message):
    with pytest.raises(InvalidInput, match=message):
        plan_attacks(choices, HONEST_BUT_CURIOUS, knowledge())


def release(factor=1.0):
    return ForwardRelease(lambda inputs, labels: {"y": factor * inputs.sum(0)}, DATA.inputs, DATA.labels)


def subject(factor=1.0):
    return GivenRelease(release(factor), DATA)


def test_a_release_is_told_from_another_by_what_it_releases():
    assert subject().fingerprint == subject().fingerprint
    assert subject().fingerprint != subject(2.0).fingerprint


def test_one_evaluation_takes_time():
    assert 0 < time_evaluation(subject(), release()) < 10
