"""From trials to lines, with trials made by hand: what is counted, compared and concluded."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.bounds.for_goal import BoundResult
from reconrisk.core.guarantee import Guarantee, Quantity, Scope
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.metric import Limit
from reconrisk.core.papers import Reference
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Status
from reconrisk.core.threat import STRONGEST, Knows, Sees, ThreatModel
from reconrisk.metrics.goals import mse_at_most, psnr_at_least
from reconrisk.statistics.intervals import success_interval
from reconrisk.studies.audit.conclusion import Evidence, build_line, rank_exposures
from reconrisk.studies.audit.result import Standing, Verdict
from reconrisk.studies.common.runs import Trial, TrialKey, TrialScores

THREAT = ThreatModel(Sees.ONE_UPDATE, knows={Knows.DEFENSE})
GOAL = mse_at_most(0.1)
BOUND = Guarantee(
    Quantity.SUCCESS_PROBABILITY,
    0.3,
    Gaussian(1.0),
    Scope.ANY_ADVERSARY_WITH_PRIOR,
    STRONGEST,
    Reference("Theorem 2", "balle2022"),
)


LIMIT = Limit(GOAL, 0.3)


def trial(attack, draw, *errors, first_record=None):
    rows = tuple(range(draw, draw + len(errors))) if first_record is None else (first_record,)
    ratios = tuple(-10 * math.log10(error) if error > 0 else math.inf for error in errors)
    account = AttackReport(attack, Status(Ending.CONVERGED, "made"), (0.0,) * len(errors), Cost(0.0, 1))
    scores = (TrialScores("mse", errors), TrialScores("psnr", ratios))
    return Trial(TrialKey("noise", attack, draw), rows, 0, scores, account)


def evidence_of(attacks, *, baselines=("guess",), threats=None, confidence=0.95, level=1e-4):
    trials = {name: [trial(name, draw, error) for draw, error in enumerate(errors)] for name, errors in attacks.items()}
    known = dict.fromkeys(attacks, THREAT) | (threats or {})
    return Evidence(trials, frozenset(baselines) & trials.keys(), known, THREAT, confidence, level, planned=0)


def line(evidence, answers=(), limits=()):
    return build_line("noise", GOAL, evidence, answers, limits)


outcomes = st.lists(st.sampled_from([0.05, 0.1, 0.2, math.inf]), min_size=1, max_size=8)


@given(st.dictionaries(st.sampled_from(["a", "b", "guess"]), outcomes, min_size=1))
def test_shares_are_counts_and_intervals_hold_for_all_attacks_at_once(attacks):
    found = line(evidence_of(attacks))
    for each in found.outcomes:
        reached = sum(error <= 0.1 for error in attacks[each.attack])
        level = 1 - 0.05 / len(attacks)
        expected = success_interval(reached, trials=len(attacks[each.attack]), confidence=level)
        assert each.success.value == expected.value
        assert each.success.low == pytest.approx(expected.low)
        assert each.success.confidence == pytest.approx(level)
    tried = [each for each in found.outcomes if not each.is_baseline]
    assert found.success.value == max((each.success.value for each in tried), default=0.0)


def test_the_best_attack_is_the_most_successful_then_the_nearest():
    assert line(evidence_of({"a": [0.05, 0.9], "b": [0.05, 0.05]})).best_attack == "b"
    assert line(evidence_of({"a": [0.3, 0.3, math.inf], "b": [0.2, 0.2, 0.2]})).best_attack == "b"
    assert line(evidence_of({"a": [0.2, 0.2, math.inf], "b": [0.3, 0.3, 0.3]})).best_attack == "a"


def test_guesses_are_never_the_best_attack_and_attacks_never_the_best_guess():
    found = line(evidence_of({"a": [0.9], "guess": [0.0]}))
    assert (found.best_attack, found.best_baseline) == ("a", "guess")
    assert (found.success.value, found.baseline.value) == (0.0, 1.0)
    assert found.verdict is Verdict.NO_GAIN
    assert found.worst_score == 0.9


def test_attacks_that_beat_guesses_leak_and_without_attacks_nothing_is_said():
    assert line(evidence_of({"a": [0.0], "guess": [0.9]})).verdict is Verdict.LEAKS
    nothing = line(evidence_of({"guess": [0.9]}))
    assert nothing.verdict is Verdict.NOTHING_RUN
    assert nothing.worst_record == -1
    assert (nothing.success.low, nothing.success.high) == (0.0, 1.0)


def test_the_worst_record_is_the_one_any_attack_came_nearest_to():
    found = line(evidence_of({"a": [0.5, 0.02, 0.7], "b": [0.04, 0.9, 0.9], "guess": [0.0, 0.0, 0.0]}))
    assert (found.worst_record, found.worst_score) == (1, 0.02)


def about(guarantee, *, is_about=True):
    return BoundResult(guarantee, is_about, "because")


def test_a_bound_that_covers_and_is_beaten_is_a_contradiction():
    (compared,) = line(evidence_of({"a": [0.0] * 30}), [about(BOUND)]).comparisons
    assert compared.is_contradicted
    assert compared.highest_attack == "a"
    assert compared.highest.low == pytest.approx(1e-4 ** (1 / 30))  # P(30 of 30) at this probability is the level
    assert compared.tightness == pytest.approx(1 / 0.3)
    assert line(evidence_of({"a": [0.0] * 30}), [about(BOUND)]).verdict is Verdict.CONTRADICTION


def test_chance_above_a_bound_is_none():
    (compared,) = line(evidence_of({"a": [0.0] * 4 + [1.0] * 4}), [about(BOUND)]).comparisons
    assert compared.is_compared
    assert not compared.is_contradicted


def test_a_guess_that_beats_a_bound_that_covers_it_is_a_contradiction_too():
    (compared,) = line(evidence_of({"a": [0.9] * 30, "guess": [0.0] * 30}), [about(BOUND)]).comparisons
    assert compared.is_contradicted
    assert compared.highest_attack == "guess"


def test_guesses_that_know_more_than_a_bound_covers_are_not_held_against_it():
    narrow = replace(BOUND, threat=THREAT)
    knowing = {"guess": THREAT.with_knowledge(Knows.PRIOR)}
    found = line(evidence_of({"a": [0.9] * 30, "guess": [0.0] * 30}, threats=knowing), [about(narrow)])
    (compared,) = found.comparisons
    assert (compared.is_compared, compared.is_contradicted, compared.highest_attack) == (True, False, "a")
    (alone,) = line(evidence_of({"guess": [0.0] * 30}, threats=knowing), [about(narrow)]).comparisons
    assert not alone.is_compared


@pytest.mark.parametrize(
    ("guarantee", "is_about", "why"),
    [
        (replace(BOUND, threat=ThreatModel(Sees.FINAL_MODEL)), True, "it does not cover"),
        (BOUND, False, "because"),
        (replace(BOUND, quantity=Quantity.MEAN_SQUARED_ERROR, log_value=None), True, "because"),
    ],
)
def test_what_does_not_cover_is_shown_and_not_compared(guarantee, is_about, why):
    (shown,) = line(evidence_of({"a": [0.0] * 30}), [about(guarantee, is_about=is_about)]).comparisons
    assert not shown.is_compared
    assert not shown.is_contradicted
    assert shown.tightness is None
    assert why in shown.why


@pytest.mark.parametrize(
    ("errors", "at_most", "answers", "standing"),
    [
        ([0.0] * 4, 0.9, [], Standing.ABOVE),
        ([0.9] * 4, 0.9, [], Standing.MEASURED),
        ([0.9] * 4, 0.1, [], Standing.NOT_SHOWN),
        ([0.9] * 4, 0.3, [about(BOUND)], Standing.PROVED),
        ([0.0, 0.0, 0.9], 0.3, [about(BOUND)], Standing.PROVED),  # two of three by chance: the bound is proved
        ([0.0] * 30, 0.3, [about(BOUND)], Standing.ABOVE),  # and here it is refuted
        ([0.9] * 4, 0.3, [about(BOUND, is_about=False)], Standing.NOT_SHOWN),
    ],
)
def test_limits_are_passed_proved_measured_or_not_shown(errors, at_most, answers, standing):
    found = line(evidence_of({"a": errors}), answers, [Limit(GOAL, at_most), Limit(psnr_at_least(20), 0.1)])
    (check,) = found.limits
    assert check.standing is standing


def test_records_of_a_batch_share_the_interval_of_their_updates():
    trials = {"a": [trial("a", draw, 0.0, 0.0, 0.9) for draw in range(4)]}
    evidence = Evidence(trials, frozenset(), {"a": THREAT}, THREAT, 0.95, 1e-4, planned=0)
    assert line(evidence).success == success_interval(
        8, trials=4, per_trial=3, confidence=line(evidence).success.confidence
    )


def test_every_record_is_exposed_by_its_best_estimate_most_exposed_first():
    trials = {
        "a": [
            trial("a", 0, 0.5, first_record=7),
            trial("a", 1, 0.05, first_record=7),
            trial("a", 2, 0.3, first_record=3),
        ],
        "b": [trial("b", 0, 0.2, first_record=3)],
        "guess": [trial("guess", 0, 0.0, first_record=9)],
    }
    evidence = Evidence(trials, frozenset({"guess"}), dict.fromkeys(trials, THREAT), THREAT, 0.95, 1e-4, planned=0)
    first, second = rank_exposures("noise", (GOAL, mse_at_most(0.25)), evidence)
    assert (first.record, first.attack, first.draw, first.score, first.reached) == (7, "a", 1, 0.05, (True, True))
    assert (second.record, second.attack, second.score, second.reached) == (3, "b", 0.2, (False, True))
    by_ratio = rank_exposures("noise", (psnr_at_least(10),), evidence)
    assert [each.record for each in by_ratio] == [7, 3]


def failing(evidence, attack, ending=Ending.DIVERGED):
    """The same evidence with every trial of an attack failed."""
    status = Status(ending, "made", "Try another")
    trials = {
        name: [replace(each, account=replace(each.account, status=status)) if name == attack else each for each in runs]
        for name, runs in evidence.trials.items()
    }
    return replace(evidence, trials=trials)


def test_a_limit_is_not_proved_by_a_bound_that_the_interval_lies_above():
    """Three of three is too little for an alarm, and more than the bound allows all the same."""
    (check,) = line(evidence_of({"a": [0.0] * 3}), [about(replace(BOUND, value=0.1, log_value=None))], [LIMIT]).limits
    assert check.standing is Standing.ABOVE


def test_a_guess_above_the_limit_is_a_risk_too():
    found = line(evidence_of({"a": [0.9] * 40, "guess": [0.0] * 40}), limits=[Limit(GOAL, 0.5)])
    assert found.success.value == 0
    assert [check.standing for check in found.limits] == [Standing.ABOVE]


def test_attacks_that_failed_show_nothing():
    works = evidence_of({"a": [0.9] * 40}, baselines=())
    assert [check.standing for check in line(works, limits=[LIMIT]).limits] == [Standing.MEASURED]
    found = line(failing(works, "a"), limits=[LIMIT])
    assert found.success.high == 1.0
    assert found.verdict is Verdict.NOTHING_RUN
    assert [check.standing for check in found.limits] == [Standing.NOT_SHOWN]
    assert found.unmet_limits() == found.limits


def test_a_failed_trial_that_succeeded_nevertheless_counts_as_one():
    assert line(failing(evidence_of({"a": [0.0] * 4}), "a")).success.value == 1.0


def test_a_trial_that_time_cut_off_counts_against_both_ends():
    whole = line(evidence_of({"a": [0.0, 0.9]})).success
    cut = line(replace(evidence_of({"a": [0.0, 0.9]}), planned=5)).success
    level = whole.confidence
    assert cut.value == whole.value == 0.5
    assert cut.low == pytest.approx(success_interval(1, trials=3, confidence=level).low)
    assert cut.high == pytest.approx(success_interval(2, trials=3, confidence=level).high)


def test_a_bound_proves_a_limit_without_any_trial():
    found = line(evidence_of({}), [about(BOUND)], [Limit(GOAL, 0.3)])
    assert found.bound == BOUND
    assert [check.standing for check in found.limits] == [Standing.PROVED]
    assert found.unmet_limits(strict=True) == ()
