import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.data.columns import (
    CategoricalColumn,
    NumericColumn,
    decode,
    encode,
    merge_columns,
    numeric_columns,
    total_width,
)

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
AGE = NumericColumn("age", 20.0, 40.0, 0)
SEX = CategoricalColumn("sex", ("F", "M"), 1)


@given(st.lists(NUMBERS, min_size=1, max_size=20))
@settings(derandomize=True, deadline=None)
def test_numbers_are_scaled_into_the_unit_interval_and_back(numbers: list[float]) -> None:
    values = np.array(numbers)
    columns = numeric_columns(["v"], values[:, None])
    records = encode(columns, [values])
    assert records.min() >= 0
    assert records.max() <= 1
    low, high = columns[0].low, columns[0].high
    if low < high:
        assert records[values.argmin(), 0] == 0
        assert records[values.argmax(), 0] == 1
    back = decode(columns, torch.from_numpy(records))["v"]
    # scaled numbers carry the 2^-24 relative rounding of float32, so the way back errs by that share of the range,
    # beside the float64 rounding of the ends
    step = high / 2 - low / 2
    assert np.all(np.abs(back / 2 - values / 2) <= 2**-23 * step + 4e-16 * max(abs(low), abs(high)))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
@settings(derandomize=True, deadline=None)
def test_categories_are_one_hot_and_come_back(indices: list[int]) -> None:
    column = CategoricalColumn("c", ("a", "b", "c", "d"), 0)
    records = encode([column], [np.array(indices)])
    assert np.array_equal(records.sum(1), np.ones(len(indices)))
    assert [column.categories.index(name) for name in decode([column], torch.from_numpy(records))["c"]] == indices


def test_columns_stand_where_they_say() -> None:
    records = encode([AGE, SEX], [np.array([25.0, 40.0]), np.array([1, 0])])
    assert total_width([AGE, SEX]) == records.shape[1] == 3
    assert records[:, AGE.coordinates].tolist() == [[0.25], [1.0]]
    assert records[:, SEX.coordinates].tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_range_wider_than_the_largest_float_is_scaled() -> None:
    values = np.array([-1.7e308, 0.0, 1.7e308])
    assert encode(numeric_columns(["v"], values[:, None]), [values]).tolist() == [[0.0], [0.5], [1.0]]


def test_a_constant_column_is_zero_and_decodes_to_its_constant() -> None:
    column = NumericColumn("k", 7.5, 7.5, 0)
    records = encode([column], [np.array([7.5, 7.5])])
    assert records.tolist() == [[0.0], [0.0]]
    assert decode([column], torch.from_numpy(records))["k"].tolist() == [7.5, 7.5]


def test_estimates_outside_the_range_decode_outside_it_and_blurred_categories_to_the_largest() -> None:
    values = decode([AGE, SEX], torch.tensor([[1.5, 0.2, 0.1]]))
    assert values["age"].tolist() == [50.0]
    assert values["sex"].tolist() == ["F"]


def test_covering_takes_the_wider_range_and_all_categories() -> None:
    other = (NumericColumn("age", 30, 90, 0), CategoricalColumn("sex", ("M", "X"), 1))
    assert merge_columns([AGE, SEX], other) == (
        NumericColumn("age", 20, 90, 0),
        CategoricalColumn("sex", ("F", "M", "X"), 1),
    )


def test_covering_refuses_columns_of_two_kinds() -> None:
    with pytest.raises(
        InvalidInput,
        match=r"column 'age' of the second table=CategoricalColumn.*the same kind as in the first table, NumericColumn",
    ):
        merge_columns([AGE], [CategoricalColumn("age", ("young",), 0)])


def test_records_of_another_width_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"inputs.shape=\(2, 3\) to be \(records, 1\)"):
        decode([AGE], torch.zeros(2, 3))
