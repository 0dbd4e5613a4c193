import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data.idx import read_idx, read_idx_array, read_idx_folder

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx_bytes(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def images(records: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (records, 4, 3), dtype=np.uint8)


@pytest.fixture
def mnist_like(tmp_path: Path) -> Path:
    for part, records in (("train", 5), ("t10k", 3)):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images(records))))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(records, dtype=np.uint8)))
    return tmp_path


@given(
    st.sampled_from(sorted(CODES)).flatmap(
        lambda code: arrays.arrays(code, arrays.array_shapes(min_dims=1, max_dims=4, max_side=5))
    ),
    st.booleans(),
)
@settings(derandomize=True, deadline=None)
def test_what_is_written_is_read(tmp_path_factory, array: np.ndarray, compressed: bool) -> None:
    path = tmp_path_factory.mktemp("idx") / "array"
    path.write_bytes(gzip.compress(idx_bytes(array)) if compressed else idx_bytes(array))
    assert np.array_equal(read_idx_array(path), array, equal_nan=array.dtype.kind == "f")


def test_bytes_become_one_channel_between_zero_and_one(tmp_path: Path) -> None:
    path = tmp_path / "pictures"
    path.write_bytes(idx_bytes(images()))
    dataset = read_idx(path)
    assert dataset.shape == (1, 4, 3)
    assert dataset.data_range == (0.0, 1.0)
    assert torch.equal(dataset.inputs[:, 0], torch.from_numpy(images()) / 255)
    assert dataset.labels is None


def test_labels_are_found_beside_the_images(mnist_like: Path) -> None:
    dataset = read_idx(mnist_like / "train-images-idx3-ubyte.gz")
    assert dataset.labels.tolist() == [0, 1, 2, 3, 4]
    assert dataset.labels.dtype == torch.int64


def test_labels_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(idx_bytes(images()))
    (tmp_path / "y").write_bytes(idx_bytes(np.array([4, 3, 2, 1, 0], dtype=np.uint8)))
    assert read_idx(tmp_path / "x", labels=tmp_path / "y").labels.tolist() == [4, 3, 2, 1, 0]


def test_real_images_keep_their_values_in_the_stated_range(tmp_path: Path) -> None:
    path = tmp_path / "real"
    values = np.array([[[-0.5, 0.25]]], dtype="f8")
    path.write_bytes(idx_bytes(values))
    dataset = read_idx(path, data_range=(-0.5, 0.5))
    assert dataset.inputs.flatten().tolist() == [-0.5, 0.25]
    assert dataset.data_range == (-0.5, 0.5)


@pytest.mark.parametrize(("split", "records"), [("train", 5), ("test", 3), (None, 8)])
def test_a_folder_has_splits(mnist_like: Path, split: str | None, records: int) -> None:
    dataset = read_idx_folder(mnist_like, split=split)
    assert len(dataset) == len(dataset.labels) == records


def test_a_folder_without_the_split_says_which_file_is_missing(mnist_like: Path) -> None:
    (mnist_like / "t10k-images-idx3-ubyte.gz").unlink()
    assert len(read_idx_folder(mnist_like)) == 5
    with pytest.raises(InvalidFile, match="t10k-images-idx3-ubyte: Expected this file for split='test'"):
        read_idx_folder(mnist_like, split="test")
    with pytest.raises(InvalidInput, match="split='val' to be one of train, test"):
        read_idx_folder(mnist_like, split="val")


GOOD = idx_bytes(images())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0\0\x08", "byte 0: Expected the IDX magic"),
        (b"\0\0\x07\x03" + GOOD[4:], r"byte 0: Expected the IDX magic .* found 00 00 07 03"),
        (b"\1\0\x08\x03" + GOOD[4:], r"found 01 00 08 03"),
        (GOOD[:9], "byte 9: Expected 3 sizes of four bytes in the header, found its end"),
        (
            GOOD[:-1],
            rf"byte {len(GOOD) - 1}: Expected 60 bytes of values for shape \(5, 4, 3\), found 59. It is truncated",
        ),
        (GOOD + b"x", rf"byte {len(GOOD)}: Expected 60 bytes of values .* found 61. It is followed by foreign bytes"),
        (GOOD[:4] + struct.pack(">3I", 0, 4, 3), r"byte 4: Expected records, found shape \(0, 4, 3\)"),
        (idx_bytes(np.arange(5, dtype=np.uint8)), "byte 3: Expected images, found one axis: labels"),
        (idx_bytes(np.zeros((1, 1, 1, 1, 1), dtype=np.uint8)), "Expected records x columns, or images"),
        (idx_bytes(np.zeros((2, 2, 2), dtype="f4")), r"Expected bytes or a data_range, found >f4 .*data_range"),
    ],
)
def test_foreign_and_damaged_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(data)
    with pytest.raises(InvalidFile, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == data


def test_labels_of_another_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(idx_bytes(images(5)))
    (tmp_path / "y").write_bytes(idx_bytes(np.arange(4, dtype=np.uint8)))
    with pytest.raises(InvalidFile, match=r"y, byte 4: Expected one label for each of 5 records, found shape \(4,\)"):
        read_idx(tmp_path / "x", labels=tmp_path / "y")


def test_values_outside_the_stated_range_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(idx_bytes(np.array([[[0.5, 2.0]]], dtype="f4")))
    with pytest.raises(InvalidFile, match=r"index \(0, 0, 0, 1\): Expected a finite number in \[0, 1\], found 2"):
        read_idx(tmp_path / "x", data_range=(0, 1))
    with pytest.raises(InvalidInput, match="low < high"):
        read_idx(tmp_path / "x", data_range=(1, 0))


def test_a_range_for_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(GOOD)
    with pytest.raises(InvalidInput, match="to be None for uint8 images"):
        read_idx(tmp_path / "x", data_range=(0, 1))


@pytest.mark.parametrize("sizes", [(2**32 - 1, 2**32 - 1, 2**32 - 1), (2**31, 512, 1)])
@pytest.mark.parametrize("compressed", [True, False])
def test_a_hostile_header_allocates_nothing(tmp_path: Path, sizes: tuple[int, ...], compressed: bool) -> None:
    data = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sizes) + bytes(100)
    path = tmp_path / "hostile"
    path.write_bytes(gzip.compress(data) if compressed else data)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidFile, match=r"found 100\. It is truncated"):
            read_idx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20, "reading works in pieces of a megabyte"
