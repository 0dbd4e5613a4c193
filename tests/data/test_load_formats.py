import gzip
from pathlib import Path

import numpy as np
import pytest

from reconrisk.core.errors import InvalidFile
from reconrisk.data import load as formats
from reconrisk.data.load import detect_format

IDX = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 7])


@pytest.mark.parametrize("name", ["a", "a.csv", "a.npz.old"])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (IDX, formats.IDX),
        (gzip.compress(IDX, mtime=0), formats.IDX),
        (b"PK\x03\x04", formats.NPZ),
        (b"\x80\x02}.", formats.CIFAR_PYTHON),
        (b"a,b\n1,2\n", formats.CSV),
        (gzip.compress("é,b\n1,2\n".encode(), mtime=0), formats.CSV),
        (b"39, a, 1, a, 1, a, a, a, a, a, 1, 1, 1, a, <=50K\n", formats.ADULT),
    ],
)
def test_content_tells_the_format_whatever_the_name(tmp_path: Path, name: str, data: bytes, expected) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert detect_format(path) is expected


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("data_batch_1.bin", IDX, formats.CIFAR_BINARY),
        ("data_batch_1.bin", b"text", formats.CIFAR_BINARY),
        ("batch", b"\x03" + bytes(range(256)) * 12, formats.CIFAR_BINARY),
        ("train-images-idx3-ubyte", b"<html>", formats.IDX),
        ("a.npz", b"<html>", formats.NPZ),
        ("a.csv", b"caf\xe9\xe9\xe9\xe9,1", formats.CSV),
    ],
)
def test_where_content_is_silent_the_name_counts(tmp_path: Path, name: str, data: bytes, expected) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert detect_format(path) is expected


def test_text_may_be_cut_within_a_character(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"a" + "é".encode() * 70_000)
    assert detect_format(path) is formats.CSV


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xfe\xed\xfa\xce" * 10, "byte 0: Expected IDX, npz, csv or a CIFAR-10 batch, found the bytes fe ed fa ce"),
        (b"\x93NUMPY\x01\x00", "found a single npy array. Save inputs and labels with numpy.savez"),
        (b"\x89PNG\r\n", "found a single image. Pass the folder that holds it"),
        (b"", "found an empty one"),
        (gzip.compress(b"", mtime=0), "after decompression: Expected data, found none"),
        (b"\x1f\x8b\xff\xff", "It is truncated or damaged"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(InvalidFile, match=message):
        detect_format(path)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["data_batch_1.bin"], formats.CIFAR_FOLDER),
        (["test_batch"], formats.CIFAR_FOLDER),
        (["cifar-10-batches-py/data_batch_3"], formats.CIFAR_FOLDER),
        (["t10k-images-idx3-ubyte.gz"], formats.IDX_FOLDER),
        (["train-images.idx3-ubyte"], formats.IDX_FOLDER),
        (["adult.data", "adult.test.gz"], formats.ADULT_FOLDER),
        (["cat/1.png"], formats.IMAGE_FOLDER),
        ([], formats.IMAGE_FOLDER),
    ],
)
def test_folders_are_told_by_their_files(tmp_path: Path, names: list[str], expected) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert detect_format(tmp_path) is expected


def test_what_numpy_writes_is_recognised(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    assert detect_format(tmp_path / "a.npz") is formats.NPZ
