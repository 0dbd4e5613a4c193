import pytest

from reconrisk.core.columns import CategoricalColumn, NumericColumn, check_layout, total_width
from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.data import columns as data_columns

AGE = NumericColumn("age", 20.0, 40.0, 0)
SEX = CategoricalColumn("sex", ("F", "M"), 1)


def test_columns_go_through_json() -> None:
    assert from_json(to_json(AGE)) == AGE
    assert from_json(to_json(SEX)) == SEX


def test_the_loaders_speak_of_the_same_columns() -> None:
    assert data_columns.NumericColumn is NumericColumn
    assert data_columns.CategoricalColumn is CategoricalColumn


def test_columns_in_any_order_that_fill_the_record_pass() -> None:
    check_layout([SEX, AGE], (3,))
    assert total_width([SEX, AGE]) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NumericColumn("a", 2.0, 1.0, 0), "low=2.0 <= high=1.0"),
        (lambda: NumericColumn("a", float("nan"), 1.0, 0), "low=nan"),
        (lambda: NumericColumn("a", 0.0, float("inf"), 0), "high=inf to be finite"),
        (lambda: NumericColumn("a", 0.0, 1.0, -1), "start=-1 >= 0"),
        (lambda: CategoricalColumn("a", (), 0), "to be a non-empty tuple without duplicates"),
        (lambda: CategoricalColumn("a", ("x", "x"), 0), "to be a non-empty tuple without duplicates"),
        (lambda: check_layout([], (3,)), "columns with at least one element"),
        (lambda: check_layout([AGE, SEX], (4,)), r"input_shape=\(4,\) to be \(3,\), the width of the columns"),
        (lambda: check_layout([AGE, SEX], (1, 3)), r"input_shape=\(1, 3\) to be \(3,\)"),
        (lambda: check_layout([SEX], (3,)), "start of column 'sex'=1 to be 0"),
        (lambda: check_layout([AGE, SEX, NumericColumn("b", 0, 1, 2)], (3,)), "start of column 'b'=2 to be 3"),
        (lambda: check_layout([AGE, NumericColumn("age", 0, 1, 1)], (2,)), "to contain 'age' once"),
    ],
)
def test_impossible_columns_are_refused(make, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()
