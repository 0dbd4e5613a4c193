import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.columns import CategoricalColumn, NumericColumn
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.metrics import score_columns

AGE = NumericColumn("age", 20, 60, 0)
SEX = CategoricalColumn("sex", ("f", "m"), 1)
CITY = CategoricalColumn("city", ("rome", "oslo", "bonn"), 3)
WAGE = NumericColumn("wage", 0, 1000, 6)
COLUMNS = (AGE, SEX, CITY, WAGE)


def row(age, sex, city, wage):
    record = torch.zeros(7, dtype=torch.float64)
    record[0], record[1 + sex], record[3 + city], record[6] = (age - 20) / 40, 1, 1, wage / 1000
    return record


def rows(seed, count):
    rng = torch.Generator().manual_seed(seed)
    draws = torch.rand(count, 4, generator=rng).tolist()
    return torch.stack([row(20 + 40 * a, int(2 * b), int(3 * c), 1000 * d) for a, b, c, d in draws])


TARGETS = torch.stack([row(30, 0, 0, 100), row(50, 1, 2, 900)])


def test_errors_are_in_the_unit_of_the_column_and_categories_right_or_wrong():
    estimates = torch.stack([row(31, 0, 1, 400), row(45, 1, 2, 910)])
    scores = score_columns(estimates, TARGETS, COLUMNS)
    assert list(scores) == ["age", "sex", "city", "wage"]
    assert scores["age"].error.tolist() == pytest.approx([1, 5])
    assert scores["age"].right.tolist() == [True, False]  # 5 % of 40 years are 2
    assert scores["wage"].error.tolist() == pytest.approx([300, 10])
    assert scores["wage"].mean_error == pytest.approx(155)
    assert scores["city"].right.tolist() == [False, True]
    assert (scores["sex"].accuracy, scores["sex"].error, scores["sex"].mean_error) == (1.0, None, None)
    assert scores.per_record.tolist() == [0.5, 0.75]
    assert scores.accuracy == 0.625
    assert scores.most_exposed == (1, 0.75)


@given(st.integers(0, 2**31), st.integers(1, 6))
def test_exact_estimates_in_any_order_are_all_right(seed, count):
    targets = rows(seed, count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    scores = score_columns(targets[order], targets, COLUMNS)
    assert scores.accuracy == 1
    assert max(scores["age"].mean_error, scores["wage"].mean_error) == 0
    assert torch.equal(order[scores.matched], torch.arange(count))


@given(st.integers(0, 2**31))
def test_the_order_of_the_estimates_does_not_count(seed):
    targets, estimates = rows(seed, 5), rows(seed + 1, 5)
    one, other = (score_columns(each, targets, COLUMNS) for each in (estimates, estimates.flip(0)))
    assert torch.equal(one.per_record, other.per_record)
    assert torch.equal(one["age"].error, other["age"].error)


@given(st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_more_is_right_with_more_tolerance(seed, one, other):
    targets, estimates = rows(seed, 4), rows(seed + 1, 4)
    low, high = (score_columns(estimates, targets, COLUMNS, tolerance=each) for each in sorted([one, other]))
    assert low.accuracy <= high.accuracy
    assert low["city"].accuracy == high["city"].accuracy


def test_blurred_categories_count_by_the_largest():
    estimates = TARGETS.clone()
    estimates[0, 3:6] = torch.tensor([0.4, 0.35, 0.25])
    estimates[1, 3:6] = torch.tensor([0.4, 0.35, 0.25])
    scores = score_columns(estimates, TARGETS, COLUMNS)
    assert scores["city"].right.tolist() == [True, False]


def test_matching_weighs_a_category_as_much_as_the_whole_range_of_a_number():
    targets = torch.stack([row(20, 0, 1, 0), row(20, 0, 2, 900)])
    estimates = torch.stack([row(20, 0, 1, 900), row(20, 0, 2, 0)])
    assert score_columns(estimates, targets, COLUMNS)["city"].accuracy == 1
    doubled = [*COLUMNS, NumericColumn("again", 0, 1, 7)]
    targets, estimates = (torch.cat([each, each[:, 6:]], 1) for each in (targets, estimates))
    assert score_columns(estimates, targets, doubled)["city"].accuracy == 0  # two nine tenths are farther: 1.27


def test_matching_takes_categories_as_they_are_rounded():
    targets = torch.stack([row(20, 0, 1, 0), row(20, 0, 2, 300)])
    estimates = torch.stack([row(20, 0, 1, 300), row(20, 0, 2, 0)])
    estimates[:, 3:6] = torch.tensor([[0.0, 0.51, 0.49], [0.0, 0.49, 0.51]])
    assert score_columns(estimates, targets, COLUMNS)["city"].accuracy == 1


def test_in_order_is_as_stated():
    flipped = TARGETS.flip(0)
    assert score_columns(flipped, TARGETS, COLUMNS, in_order=True)["sex"].accuracy == 0
    assert score_columns(flipped, TARGETS, COLUMNS)["sex"].accuracy == 1
    with pytest.raises(InvalidInput, match=r"estimates\.shape"):
        score_columns(TARGETS[:1], TARGETS, COLUMNS, in_order=True)


@pytest.mark.parametrize("estimates", [TARGETS[:1], torch.stack([TARGETS[0], TARGETS[0] * math.nan]), TARGETS[:0]])
def test_what_is_missing_counts_as_wrong(estimates):
    scores = score_columns(estimates, TARGETS, COLUMNS)
    found = len(estimates) > 0
    assert scores.per_record.tolist() == [float(found), 0.0]
    assert scores["age"].error.tolist() == [0.0 if found else math.inf, math.inf]
    assert scores["age"].mean_error == math.inf
    assert f"{1 if found else 2} without an estimate" in repr(scores)


def test_the_guess_is_the_most_common_category_and_the_median():
    reference = torch.stack([row(30, 0, 1, 0), row(40, 1, 1, 0), row(60, 1, 2, 500)])
    scores = score_columns(TARGETS, TARGETS, COLUMNS, reference=reference)
    assert scores["age"].guess.error.tolist() == pytest.approx([10, 10])
    assert scores["wage"].guess.error.tolist() == pytest.approx([100, 900])
    assert scores["sex"].guess.right.tolist() == [False, True]
    assert scores["city"].guess.accuracy == 0
    assert scores.guess_accuracy == 1 / 8
    assert scores.accuracy == 1
    assert score_columns(TARGETS, TARGETS, COLUMNS).guess_accuracy is None


def test_constant_columns_and_ranges_beyond_the_largest_float_have_errors():
    columns = [NumericColumn("constant", 7, 7, 0), NumericColumn("vast", -1.5e308, 1.5e308, 1)]
    scores = score_columns(torch.tensor([[0.4, 0.0]]), torch.tensor([[0.0, 0.25]]), columns)
    assert scores["constant"].mean_error == 0
    assert scores["constant"].accuracy == 1
    assert scores["vast"].mean_error == pytest.approx(0.75e308)


def test_a_reconstruction_is_scored_by_its_estimates():
    status = Status(Ending.CONVERGED, "done")
    found = Reconstruction(TARGETS, AttackReport("guess()", status, (0.0, 0.0), Cost(0.0, 0)))
    assert score_columns(found, TARGETS, COLUMNS).accuracy == 1


def test_it_prints_as_a_table():
    text = repr(score_columns(TARGETS, TARGETS, COLUMNS, reference=TARGETS))
    assert text.splitlines()[0] == "Columns of 2 records; numbers are right within 0.05 of their range"
    assert re.search(r"^  age +100\.0% +0 +50\.0% +10$", text, re.MULTILINE)
    assert re.search(r"^  sex +100\.0% +50\.0%$", text, re.MULTILINE)
    assert re.search(r"^  all columns +100\.0% +50\.0%$", text, re.MULTILINE)
    assert text.endswith("best reconstructed record 0: 100.0%")
    widths = {len(line) for line in text.splitlines()[1:] if line.endswith(("error", "10", "400"))}
    assert len(widths) == 1  # the columns are aligned


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: score_columns(TARGETS, TARGETS, COLUMNS[:3]),
            r"targets.shape\[1:\]=\(7,\) to be \(6,\), the width of the columns",
        ),
        (lambda: score_columns(TARGETS[:, :6], TARGETS, COLUMNS), r"estimates.shape=\(2, 6\)"),
        (lambda: score_columns(TARGETS, TARGETS, COLUMNS, tolerance=1.5), r"tolerance=1.5 in \[0, 1\]"),
        (
            lambda: score_columns(TARGETS, TARGETS * 0.5, COLUMNS),
            r"targets\[0\] of column 'sex'=\[0.5, 0.0\] to be one-h",
        ),
        (lambda: score_columns(TARGETS, TARGETS + 1, [*COLUMNS]), r"targets\[0\] of column 'age'=\[1.25\] in \[0, 1\]"),
        (lambda: score_columns(TARGETS, TARGETS, COLUMNS, reference=TARGETS * 0.5), r"reference\[0\] of column 'sex'"),
        (lambda: score_columns(TARGETS, TARGETS * math.nan, COLUMNS), "targets to be finite"),
    ],
)
def test_records_that_are_no_rows_of_the_table_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_an_unknown_column_is_named():
    with pytest.raises(KeyError, match="column='ages' to be one of age, sex, city, wage"):
        score_columns(TARGETS, TARGETS, COLUMNS)["ages"]


def test_a_block_of_sum_and_maximum_one_need_not_be_one_hot():
    targets = TARGETS.clone()
    targets[0, 3:6] = torch.tensor([1.0, 0.5, -0.5])
    with pytest.raises(InvalidInput, match=r"targets\[0\] of column 'city'.* to be one-hot"):
        score_columns(TARGETS, targets, COLUMNS)
