import dataclasses
import math

import pytest

from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Status
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.core.threat import HONEST_BUT_CURIOUS, MALICIOUS_SERVER, Knows
from reconrisk.studies.rebuild.report import MetricScores, RebuildReport, RebuiltColumn

DONE = Status(Ending.CONVERGED, "settled")
STOPPED = Status(Ending.INTERRUPTED, "stopped by the user", "Run again")
LOST = Status(Ending.NOT_APPLICABLE, "no neuron is active", "Attack the other layers")


def made(count=3, statuses=(DONE,), **fields):
    numbers = tuple(float(number) for number in range(count))
    given = {
        "attack": "dlg",
        "settings": "dlg(steps=3)",
        "model": "lenet",
        "data": "toy",
        "release": "gradient of cross_entropy",
        "defense": "none",
        "threat": HONEST_BUT_CURIOUS,
        "shape": (1, 8, 8),
        "data_range": (0.0, 1.0),
        "batch_size": count,
        "requested": count,
        "records": tuple(range(10, 10 + count)),
        "updates": (0,) * count,
        "labels": ("cat",) * count,
        "inferred": ("dog",) * count,
        "objective": (math.inf, *numbers[1:]),
        "scores": (
            MetricScores("psnr()", "psnr", True, numbers, tuple(-number for number in numbers)),
            MetricScores("mse()", "mse", False, (0.5, *numbers[1:]), numbers),
        ),
        "accounts": tuple(AttackReport("dlg()", status, numbers, Cost(1.5, 7)) for status in statuses),
        "seed": 4,
    }
    return RebuildReport(**{**given, **fields})


def test_it_comes_back_from_json_as_it_was():
    report = made(threat=MALICIOUS_SERVER.with_knowledge(Knows.PRIOR))
    assert from_json(to_json(report)) == report


def test_the_best_rebuilt_record_is_that_of_the_direction():
    psnr, mse = made().scores
    assert (psnr.best, mse.best) == (2, 0)
    text = str(made())
    assert "psnr      mean 1, of a constant guess -1; best rebuilt 2 (record 12)" in text
    assert "best rebuilt 0.5 (record 10)" in text


def test_the_text_has_a_line_per_record_with_attack_and_guess():
    lines = str(made()).splitlines()
    (line,) = [line for line in lines if line.startswith("      12")]
    assert line.split() == ["12", "0", "cat", "dog", "2", "-2", "2", "2", "2"]
    (first,) = [line for line in lines if line.startswith("      10")]
    assert first.split()[-1] == "inf"
    assert lines[0] == "attack    dlg, 1 update of 3 records"


def test_columns_that_say_nothing_are_left_out():
    known = made(1, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS))
    (line,) = [line for line in str(known).splitlines() if line.startswith("      10")]
    assert line.split()[:2] == ["10", "cat"]
    assert "dog" not in str(known)
    assert "knows labels" in str(known)
    assert "and chooses the model" in str(made(threat=MALICIOUS_SERVER))


def test_long_lists_end_in_the_report():
    text = str(made(50))
    assert "... and 10 more in the report" in text
    assert "      49 " in text
    assert "      50 " not in text


def test_each_kind_of_ending_is_told_with_its_number():
    text = str(made(3, statuses=(DONE, LOST, DONE)))
    assert "status    converged: settled. (2 updates; this is 0)" in text
    assert "status    not applicable: no neuron is active. Attack the other layers. (1 update; this is 1)" in text
    assert "cost      4.5 s, 21 evaluations of the release" in text


def test_failures_and_interruptions_are_seen():
    assert made().is_complete
    assert not made().failed_reports
    assert made(statuses=(LOST,)).failed_reports[0].status is LOST
    assert not made(statuses=(STOPPED,)).is_complete
    assert not made(requested=5).is_complete
    assert "INTERRUPTED: 3 of 5 records were reached." in str(made(requested=5))


def test_a_captured_update_has_neither_scores_nor_labels():
    text = str(made(scores=(), labels=("?",) * 3))
    assert "guess" not in text
    assert "psnr" not in text


def test_columns_of_a_table_have_a_line_each():
    age = RebuiltColumn("age", (True, False, True), (0.0, 3.0, 0.0), 0.25, 6.5)
    sex = RebuiltColumn("sex", (True, True, True), typical_right=0.5)
    alone = RebuiltColumn("kind", (False, True, True))
    report = made(shape=(3,), columns=(age, sex, alone))
    assert from_json(to_json(report)) == report
    lines = [line.split() for line in str(report).splitlines()]
    assert ["age", "66.7%", "1", "25.0%", "6.5"] in lines
    assert ["sex", "100.0%", "50.0%"] in lines
    assert ["kind", "66.7%"] in lines
    with pytest.raises(InvalidInput, match="one per record, or none"):
        RebuiltColumn("age", (True, False), (1.0,))


@pytest.mark.parametrize(
    "fields",
    [
        {"records": ()},
        {"requested": 2},
        {"labels": ("cat",)},
        {"objective": (1.0,)},
        {"inferred": ("dog",)},
        {"scores": (MetricScores("m", "m", True, (1.0,), (1.0,)),)},
        {"columns": (RebuiltColumn("age", (True,)),)},
    ],
)
def test_columns_of_another_length_are_refused(fields):
    with pytest.raises(InvalidInput):
        made(**fields)


def test_scores_have_a_guess_for_each_record():
    with pytest.raises(InvalidInput, match="one per record"):
        MetricScores("m", "m", True, (1.0, 2.0), (1.0,))
    assert dataclasses.is_dataclass(MetricScores)
