import gzip
from pathlib import Path

import pytest

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data.adult import COLUMN_NAMES, is_adult, read_adult, read_adult_folder
from reconrisk.data.columns import CategoricalColumn, NumericColumn, decode

LINE = "{age}, {work}, 77516, Bachelors, 13, Never, Clerk, Own-child, White, Male, 2174, 0, 40, {country}, {income}"


def line(age: int = 39, work: str = "Private", country: str = "Peru", income: str = "<=50K") -> str:
    return LINE.format(age=age, work=work, country=country, income=income)


TRAIN = "\n".join([line(20), line(60, "?", income=">50K"), "", ""])
TEST = "\n".join(["|1x3 Cross validator", line(70, country="Cuba", income=">50K."), line(30, income="<=50K."), "", ""])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adult.data").write_text(TRAIN)
    (tmp_path / "adult.test.gz").write_bytes(gzip.compress(TEST.encode()))
    return tmp_path


def test_one_file_has_named_columns_and_income_as_label(folder: Path) -> None:
    dataset = read_adult(folder / "adult.data")
    assert [column.name for column in dataset.columns] == list(COLUMN_NAMES[:-1])
    assert dataset.columns[0] == NumericColumn("age", 20, 60, 0)
    assert dataset.columns[1] == CategoricalColumn("workclass", ("?", "Private"), 1)
    assert (dataset.classes, dataset.labels.tolist()) == (("<=50K", ">50K"), [0, 1])


def test_the_remark_and_the_dots_of_the_test_file_are_no_content(folder: Path) -> None:
    dataset = read_adult(folder / "adult.test.gz")
    assert (dataset.classes, dataset.labels.tolist()) == (("<=50K", ">50K"), [1, 0])


def test_both_files_are_encoded_alike(folder: Path) -> None:
    train, test, both = (read_adult_folder(folder, split=split) for split in ("train", "test", None))
    assert train.columns == test.columns == both.columns
    assert train.columns[0] == NumericColumn("age", 20, 70, 0)
    assert train.columns[-1].categories == ("Cuba", "Peru")
    assert decode(both.columns, both.inputs)["age"].round(4).tolist() == [20, 60, 70, 30]
    assert both.labels.tolist() == [*train.labels.tolist(), *test.labels.tolist()] == [0, 1, 1, 0]


def test_incomplete_records_are_left_out_on_demand(folder: Path) -> None:
    assert len(read_adult_folder(folder, missing="drop")) == 3


def test_absent_files_splits_and_short_lines_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="split='val'"):
        read_adult_folder(folder, split="val")
    (folder / "adult.data").write_text(TRAIN + "39, Private\n")
    with pytest.raises(InvalidFile, match=r"adult\.data, line 4: Expected 15 fields as in line 1, found 2"):
        read_adult_folder(folder)
    (folder / "adult.data").write_text(line(income="50K"))
    with pytest.raises(
        InvalidFile, match=r"line 1, column 'income': Expected one of the classes <=50K, >50K, found '50K'"
    ):
        read_adult_folder(folder)
    (folder / "adult.data").unlink()
    with pytest.raises(InvalidFile, match=r"adult\.data: Expected this file"):
        read_adult_folder(folder, split="test")


def test_it_is_recognised_by_content() -> None:
    assert is_adult(TRAIN)
    assert is_adult(TEST)
    assert not is_adult("a,b\n1,2\n")
    assert not is_adult(line(income="maybe"))
