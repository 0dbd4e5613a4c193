"""The report of an informed adversary as text and as a value that refuses what cannot be."""

from dataclasses import replace

import pytest

from reconrisk.attacks.informed.invert_training.attack import NEEDS
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Status
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.studies.informed.result import InformedReport, InformedTarget

TARGET = InformedTarget(17, "cat", "cat", 1e-9, 90.0, 3, 0.02, 0.05, 1.0, 0)
ACCOUNT = AttackReport("invert_training()", Status(Ending.EXACT, "explained"), (1.0,), Cost(2.0, 40), (0,))
REPORT = InformedReport(
    attack="invert_training",
    model="mlp",
    data="toy",
    training="10 steps",
    noise="none",
    victims="one released model",
    threat=NEEDS,
    shape=(2, 3),
    data_range=(0.0, 1.0),
    known=20,
    requested=1,
    targets=(TARGET,),
    accounts=(ACCOUNT,),
    seed=0,
)


def test_text_has_scores_beside_guesses_and_the_status():
    text = str(REPORT)
    assert "17  cat        cat" in text
    assert "median 1e-09, of the nearest known record 0.02, of the class mean 0.05; 1 of 1 closer" in text
    assert "\nlabel     1 of 1 found" in text
    assert "status    exact: explained." in text
    assert "Cramer-Rao" not in text
    assert "membership" not in text
    assert "20 records and not the target" in text


def test_columns_appear_where_there_is_something_to_say():
    told = replace(TARGET, cramer_rao_mse=0.5, membership="undecided", found="")
    text = str(replace(REPORT, targets=(told, replace(told, cramer_rao_mse=None)), requested=2))
    assert "Cramer-Rao is the smallest mse of unbiased estimates" in text
    assert "undecided" in text
    assert "none" in text
    assert "\nlabel     " not in text


def test_interrupted_reports_say_how_far_they_came():
    assert "INTERRUPTED: 1 of 3 targets were reached." in str(replace(REPORT, requested=3))
    stopped = replace(ACCOUNT, status=Status(Ending.INTERRUPTED, "stopped", "Run again"))
    report = replace(REPORT, accounts=(stopped,))
    assert "INTERRUPTED: the estimates are the best so far." in str(report)
    assert not report.is_complete
    assert report.failed_reports == (stopped,)


def test_many_targets_are_cut():
    assert "and 5 more in the report" in str(replace(REPORT, targets=(TARGET,) * 45, requested=45))


def test_values_without_end_survive_the_round_trip():
    report = replace(REPORT, targets=(replace(TARGET, psnr=float("inf"), cramer_rao_mse=float("inf")),))
    assert from_json(to_json(report)) == report


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": ()}, "targets"),
        ({"accounts": ()}, "accounts"),
        ({"requested": 0}, "requested=0"),
        ({"targets": (replace(TARGET, account=1),)}, "Expected account=1 to be from 0 to 0"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        replace(REPORT, **changes)
