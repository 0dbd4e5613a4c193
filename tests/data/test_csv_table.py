import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data.columns import CategoricalColumn, NumericColumn, decode
from reconrisk.data.csv_table import read_csv

MIXED = """age,city,wage,kind
30,Rome,1.5,good
40,"Paris, France",2.5,bad
35,Rome,2.0,good
"""


def written(folder: Path, text: str, name: str = "a.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def test_mixed_columns_are_typed_and_encoded(tmp_path: Path) -> None:
    dataset = read_csv(written(tmp_path, MIXED), label="kind")
    assert dataset.columns == (
        NumericColumn("age", 30.0, 40.0, 0),
        CategoricalColumn("city", ("Paris, France", "Rome"), 1),
        NumericColumn("wage", 1.5, 2.5, 3),
    )
    assert dataset.inputs.tolist() == [[0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0], [0.5, 0.0, 1.0, 0.5]]
    assert dataset.classes == ("bad", "good")
    assert dataset.labels.tolist() == [1, 0, 1]


TEXTS = st.text("abcdefghij é,;'\"\n", min_size=1, max_size=6).map(str.strip).filter(bool)
ROWS = st.lists(
    st.tuples(st.integers(-1000, 1000), TEXTS, st.floats(-1e6, 1e6), st.sampled_from(["no", "yes"])), min_size=1
)


@given(ROWS, st.sampled_from([",", ";", "\t"]), st.booleans(), st.booleans())
@settings(derandomize=True, deadline=None)
def test_what_is_written_is_read(tmp_path_factory, rows: list, delimiter: str, header: bool, compressed: bool) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerows([["whole", "text", "real", "label"], *rows] if header else rows)
    data = text.getvalue().encode()
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(gzip.compress(data) if compressed else data)
    dataset = read_csv(path, label=3, delimiter=delimiter, header=header)
    values = list(decode(dataset.columns, dataset.inputs).values())
    # one part in 2^23 of the range: the scaled numbers are float32
    for found, column in ((values[0], 0), (values[2], 2)):
        numbers = np.array([row[column] for row in rows])
        assert np.allclose(found, numbers, rtol=0, atol=2**-23 * np.ptp(numbers) + 1e-9)
    assert values[1].tolist() == [row[1] for row in rows]
    assert [dataset.classes[label] for label in dataset.labels] == [row[3] for row in rows]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b\n1,x\n", ["a", "b"]),
        ("1,x\n2,y\n", ["column 0", "column 1"]),
        (",b\n0,3\n1,4\n", ["column 0", "b"]),
        ("\ufeffa;b\n1;2\n", ["a", "b"]),
        ("a\tb\n1\t2\n", ["a", "b"]),
        ("\n\n a , b \n\n1,2\n\n", ["a", "b"]),
        ("a\n1\n", ["a"]),
    ],
)
def test_header_and_delimiter_are_inferred(tmp_path: Path, text: str, names: list[str]) -> None:
    assert [column.name for column in read_csv(written(tmp_path, text)).columns] == names


def test_a_header_of_text_above_text_must_be_stated(tmp_path: Path) -> None:
    path = written(tmp_path, "colour,shape\nred,round\nblue,flat\n")
    with pytest.raises(InvalidFile, match=r"line 1: .*header=True .* else header=False"):
        read_csv(path)
    assert len(read_csv(path, header=True)) == 2
    assert len(read_csv(path, header=False)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", "line 3: Expected 2 fields as in line 1, found 1"),
        ("a,b\n\n1,2,3\n", "line 3: Expected 2 fields as in line 1, found 3"),
        ('a,b\n1,"2\n', "line 2: Expected a line of csv: unexpected end of data"),
        ('a,b\n1,"2"3\n', "line 2: Expected a line of csv"),
        ("\n \n", "line 1: Expected records, found only empty lines"),
        ("a,b\n", "line 1: Expected"),
        (f"a,b\n1,{'x' * 140000}\n", "line 2: Expected a line of csv: field larger"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidFile, match=message) as caught:
        read_csv(path)
    assert str(path) in str(caught.value)


def test_a_header_alone_and_names_given_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="Expected records after the header, found none"):
        read_csv(written(tmp_path, "a,b\n"), header=True)
    with pytest.raises(InvalidFile, match="line 1: Expected 2 different column names"):
        read_csv(written(tmp_path, "a,a\n1,2\n"), header=True)


def test_other_encodings_are_named_by_their_byte(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="byte 7: Expected UTF-8 text, found the byte e9"):
        read_csv(written(tmp_path, "a,b\ncaf\xe9,1\n", encoding="latin-1"))


@pytest.mark.parametrize("delimiter", ["", ",,", '"', "\n", " "])
def test_impossible_delimiters_are_refused(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(InvalidInput, match="delimiter"):
        read_csv(written(tmp_path, MIXED), delimiter=delimiter)


def test_a_test_file_is_encoded_like_its_training_file(tmp_path: Path) -> None:
    train = read_csv(written(tmp_path, MIXED), label="kind")
    test_path = written(tmp_path, "age,city,wage,kind\n35,Rome,2,good\n", "test.csv")
    test = read_csv(test_path, label="kind", like=train)
    assert test.inputs.tolist() == [[0.5, 0.0, 1.0, 0.5]]
    assert (test.columns, test.classes, test.labels.tolist()) == (train.columns, train.classes, [1])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("50,Rome,2,good", "line 2, column 'age': Expected a number from 30 to 40, found '50'"),
        ("20,Rome,2,good", "line 2, column 'age': Expected a number from 30 to 40, found '20'"),
        ("35,Oslo,2,good", "line 2, column 'city': Expected one of the categories Paris, France, Rome, found 'Oslo'"),
        ("35,Rome,x,good", "line 2, column 'wage': Expected a number, found 'x'"),
        ("35,Rome,2,fair", "line 2, column 'kind': Expected one of the classes bad, good, found 'fair'"),
    ],
)
def test_what_the_training_file_did_not_have_is_refused(tmp_path: Path, line: str, message: str) -> None:
    train = read_csv(written(tmp_path, MIXED), label="kind")
    with pytest.raises(InvalidFile, match=message):
        read_csv(written(tmp_path, f"age,city,wage,kind\n{line}\n", "test.csv"), label="kind", like=train)


def test_like_takes_tables_with_the_same_columns(tmp_path: Path) -> None:
    train = read_csv(written(tmp_path, MIXED), label="kind")
    with pytest.raises(InvalidInput, match=r"columns of like=.*to be age, city, wage, kind, the columns of the file"):
        read_csv(written(tmp_path, MIXED), like=train)
    images = type(train)("images", torch.zeros(1, 1, 2, 2))
    with pytest.raises(InvalidInput, match=r"like=Dataset.*to be a table"):
        read_csv(written(tmp_path, MIXED), like=images)


def test_like_keeps_real_labels_real(tmp_path: Path) -> None:
    train = read_csv(written(tmp_path, "x,y\n1,0.5\n3,1.5\n"), label="y")
    test = read_csv(written(tmp_path, "x,y\n2,1\n", "test.csv"), label="y", like=train)
    assert test.labels.tolist() == [1.0]
    assert test.labels.dtype == torch.float32
