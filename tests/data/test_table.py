from pathlib import Path

import pytest
import torch

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data.columns import CategoricalColumn, NumericColumn
from reconrisk.data.dataset import Dataset
from reconrisk.data.table import MOST_CATEGORIES, TextTable, infer_types, is_number


def dataset_from_table(source: TextTable, *, regression: bool = False, **options) -> Dataset:
    return infer_types(source, **options).dataset(regression=regression)


def table(**columns: list[str]) -> TextTable:
    records = len(next(iter(columns.values())))
    lines = tuple(range(2, 2 + records))
    return TextTable(Path("t.csv"), tuple(columns), lines, tuple(tuple(cells) for cells in columns.values()))


@pytest.mark.parametrize(
    ("text", "answer"), [("1", True), ("-1e3", True), ("inf", True), ("nan", False), ("1_0", False), ("", False)]
)
def test_what_is_a_number(text: str, answer: bool) -> None:
    assert is_number(text) is answer


def test_a_missing_category_is_a_category_of_its_own() -> None:
    dataset = dataset_from_table(table(c=["a", "?", "", "NA", "b"]))
    assert dataset.columns == (CategoricalColumn("c", ("?", "a", "b"), 0),)
    assert dataset.inputs.argmax(1).tolist() == [1, 0, 0, 0, 2]


def test_a_missing_number_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidFile, match=r"t.csv, line 3, column 'n': Expected a number, found ''\..*missing='drop'"):
        dataset_from_table(table(n=["1", "", "3", "?"]))


def test_drop_leaves_out_every_incomplete_record_and_its_categories() -> None:
    dataset = dataset_from_table(
        table(n=["1", "", "3", "9"], c=["a", "b", "?", "c"], y=["u", "v", "u", "v"]), label="y", missing="drop"
    )
    assert dataset.columns == (NumericColumn("n", 1.0, 9.0, 0), CategoricalColumn("c", ("a", "c"), 1))
    assert dataset.labels.tolist() == [0, 1]
    with pytest.raises(InvalidFile, match="line 2: Expected a complete record"):
        dataset_from_table(table(n=["", "?"]), missing="drop")


def test_one_odd_text_among_numbers_does_not_make_categories_of_them() -> None:
    cells = ["1", "2", "3", "4x", "5"]
    with pytest.raises(InvalidFile, match=r"line 5, column 'n': Expected a number as in most lines, found '4x'"):
        dataset_from_table(table(n=cells))
    assert len(dataset_from_table(table(n=cells), categorical=["n"]).columns[0].categories) == 5


def test_blanks_around_a_cell_do_not_count() -> None:
    dataset = dataset_from_table(table(c=["a", " a", "b "], n=[" 1", "1 ", "2"]))
    assert dataset.columns == (CategoricalColumn("c", ("a", "b"), 0), NumericColumn("n", 1.0, 2.0, 2))
    assert dataset.inputs.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 1]]


def test_infinite_numbers_are_refused() -> None:
    with pytest.raises(InvalidFile, match="line 3, column 'n': Expected a finite number, found '1e999'"):
        dataset_from_table(table(n=["1", "1e999"]))


def test_names_are_not_categories() -> None:
    names = [f"person {i}" for i in range(MOST_CATEGORIES + 1)]
    with pytest.raises(
        InvalidFile, match=r"column 'who': Expected at most 1000 categories, found 1001.*ignore=\['who'\]"
    ):
        dataset_from_table(table(who=names, n=["1"] * len(names)))
    assert dataset_from_table(table(who=names, n=["1"] * len(names)), ignore=["who"]).shape == (1,)


@pytest.mark.parametrize(
    ("cells", "options", "classes", "labels"),
    [
        (["b", "a", "b"], {}, ("a", "b"), [1, 0, 1]),
        (["10", "9", "10.0"], {}, ("9", "10"), [1, 0, 1]),
        (["1", "-1", "1"], {}, ("-1", "1"), [1, 0, 1]),
        (["0.5", "1", "2"], {}, None, [0.5, 1.0, 2.0]),
        (["7", "1", "2"], {"regression": True}, None, [7.0, 1.0, 2.0]),
    ],
)
def test_labels_are_classes_or_quantities(cells, options, classes, labels) -> None:
    dataset = dataset_from_table(table(n=["1", "2", "3"], y=cells), label="y", **options)
    assert dataset.classes == classes
    assert dataset.labels.tolist() == labels
    assert dataset.labels.dtype == (torch.int64 if classes else torch.float32)


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        (["a", "?"], {}, "line 3, column 'y': Expected a label, found '\\?'"),
        (["1", "a"], {"regression": True}, "line 3, column 'y': Expected a number, found 'a'"),
        (["1", "inf"], {}, "line 3, column 'y': Expected a finite number, found 'inf'"),
        (["1.5", "inf"], {}, "line 3, column 'y': Expected a finite number, found 'inf'"),
    ],
)
def test_labels_that_are_none_are_refused(cells, options, message: str) -> None:
    with pytest.raises(InvalidFile, match=message):
        dataset_from_table(table(n=["1", "2"], y=cells), label="y", **options)


def test_more_classes_than_any_classifier_has_are_a_quantity() -> None:
    cells = [str(i) for i in range(MOST_CATEGORIES + 1)]
    with pytest.raises(InvalidFile, match=r"Expected at most 1000 classes, found 1001.*regression=True"):
        dataset_from_table(table(n=cells, y=cells), label="y")


@pytest.mark.parametrize("label", ["y", 1, -1])
def test_the_label_goes_by_name_or_index(label) -> None:
    assert dataset_from_table(table(n=["1", "2"], y=["a", "b"]), label=label).columns[0].name == "n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "yy"}, "label='yy' to be one of the columns n, y. Did you mean y"),
        ({"label": 2}, "label=2 to be the index of one of 2 columns"),
        ({"ignore": ["n"], "label": "y"}, "to leave at least one input column"),
        ({"ignore": ["y"], "label": "y"}, "to leave at least one input column, and the label"),
        ({"missing": "fill"}, "missing='fill' to be 'refuse' or 'drop'"),
        ({"categorical": ["z"]}, "categorical='z' to be one of the columns"),
    ],
)
def test_wrong_options_are_refused(options, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        dataset_from_table(table(n=["1", "2"], y=["a", "b"]), **options)
