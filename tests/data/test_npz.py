import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data.columns import NumericColumn, decode
from reconrisk.data.npz import read_npz


def images(records: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (records, 5, 6), dtype=np.uint8)


def saved(path: Path, **content: np.ndarray) -> Path:
    np.savez_compressed(path, **content)
    return path


@given(
    arrays.arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))),
    st.booleans(),
    st.booleans(),
)
@settings(derandomize=True, deadline=None)
def test_images_come_back(tmp_path_factory, array: np.ndarray, compressed: bool, fortran: bool) -> None:
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    save = np.savez_compressed if compressed else np.savez
    save(path, images=np.asarray(array, order="F" if fortran else "C"), labels=np.arange(len(array)))
    dataset = read_npz(path)
    assert torch.equal(dataset.inputs[:, 0], torch.from_numpy(array) / 255)
    assert torch.equal(dataset.labels, torch.arange(len(array)))


@pytest.mark.parametrize(
    ("stored", "expected"),
    [((2, 5, 6), (1, 5, 6)), ((2, 5, 6, 3), (3, 5, 6)), ((2, 3, 5, 6), (3, 5, 6)), ((2, 1, 5, 6), (1, 5, 6))],
)
def test_channels_come_first(tmp_path: Path, stored: tuple[int, ...], expected: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 256, stored, dtype=np.uint8)
    dataset = read_npz(saved(tmp_path / "a.npz", x=array))
    assert dataset.shape == expected
    if stored[-1] == 3:
        assert torch.equal(dataset.inputs, torch.from_numpy(array).permute(0, 3, 1, 2) / 255)


MEDMNIST = {
    "train_images": images(4, 1),
    "train_labels": np.array([[0], [1], [1], [0]], dtype=np.uint8),
    "val_images": images(2, 2),
    "val_labels": np.array([[1], [0]], dtype=np.uint8),
    "test_images": images(3, 3),
    "test_labels": np.array([[1], [1], [1]], dtype=np.uint8),
}


@pytest.mark.parametrize(
    ("split", "names"), [("train", ["train"]), ("val", ["val"]), ("test", ["test"]), (None, ["train", "val", "test"])]
)
def test_splits_of_medmnist(tmp_path: Path, split: str | None, names: list[str]) -> None:
    dataset = read_npz(saved(tmp_path / "a.npz", **MEDMNIST), split=split)
    pixels = np.concatenate([MEDMNIST[f"{name}_images"] for name in names])
    assert torch.equal(dataset.inputs[:, 0], torch.from_numpy(pixels) / 255)
    assert dataset.labels.tolist() == [int(y) for name in names for y in MEDMNIST[f"{name}_labels"][:, 0]]


def test_splits_of_keras(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x_train=images(4), y_train=np.arange(4), x_test=images(2), y_test=np.arange(2))
    assert read_npz(path, split="test").labels.tolist() == [0, 1]


def test_splits_of_a_table_share_their_columns(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x_train=np.array([[0.0, 10.0], [4.0, 20.0]]), x_test=np.array([[8.0, 15.0]]))
    test = read_npz(path, split="test")
    assert test.columns == (NumericColumn("column 0", 0, 8, 0), NumericColumn("column 1", 10, 20, 1))
    assert test.inputs.tolist() == [[1.0, 0.5]]
    assert decode(test.columns, test.inputs)["column 0"].tolist() == [8.0]
    assert read_npz(path, split="train").inputs.tolist() == [[0.0, 0.0], [0.5, 1.0]]


def test_splits_with_text_labels_share_their_classes(tmp_path: Path) -> None:
    labels = {"y_train": np.array(["b", "c"]), "y_test": np.array(["a"])}
    path = saved(tmp_path / "a.npz", x_train=images(2), x_test=images(1), **labels)
    test = read_npz(path, split="test")
    assert (test.classes, test.labels.tolist()) == (("a", "b", "c"), [0])
    assert read_npz(path, split="train").labels.tolist() == [1, 2]


def test_keys_may_be_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", faces=images(3), people=np.array([5, 6, 7]))
    assert read_npz(path, inputs="faces").labels is None
    assert read_npz(path, inputs="faces", labels="people").labels.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        (np.array([0, 1], dtype=np.int16), torch.int64, (2,)),
        (np.array([True, False]), torch.int64, (2,)),
        (np.array([0.5, 1.5]), torch.float32, (2,)),
        (np.array([[0, 1, 1], [1, 0, 0]]), torch.int64, (2, 3)),
    ],
)
def test_labels_by_type(tmp_path: Path, labels: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = read_npz(saved(tmp_path / "a.npz", images=images(2), labels=labels)).labels
    assert (found.dtype, tuple(found.shape)) == (dtype, shape)
    assert np.array_equal(found.numpy(), labels)


def test_real_images_need_their_range(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", images=np.array([[[-1.0, 0.5]]], dtype=np.float16))
    with pytest.raises(InvalidFile, match=r"key 'images': .* found float16 from -1 to 0.5. Pass data_range"):
        read_npz(path)
    assert read_npz(path, data_range=(-1, 1)).inputs.flatten().tolist() == [-1.0, 0.5]
    assert read_npz(saved(tmp_path / "b.npz", images=np.array([[[True]]]))).inputs.flatten().tolist() == [1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"faces": images(2)},
            r"keys: Expected inputs under one of images, .* found faces. Pass the key of the inputs as inputs=",
        ),
        ({"images": np.array([{}, {}])}, "key 'images': Expected numbers or text, found Python objects"),
        ({"images": images(2), "labels": np.array([None, 1])}, "key 'labels': .* found Python objects"),
        (
            {"images": images(2), "labels": np.arange(3)},
            r"key 'labels': Expected one label for each record of 'images'",
        ),
        ({"images": images(2), "labels": np.array([0, -1])}, "Expected class indices from 0 on, found -1 to 0"),
        ({"images": images(2), "labels": np.array([0.0, np.nan])}, r"index \(1,\): Expected a finite number"),
        ({"images": images(2), "labels": np.array([0.0, 1e300])}, r"index \(1,\): Expected a finite number"),
        ({"images": images(2), "labels": np.array([0j, 1j])}, "Expected numbers or text, found complex128"),
        ({"images": np.array(["a"])}, "Expected records x columns"),
        ({"images": np.array([["a"]])}, "Expected numbers, found <U1"),
        ({"images": np.zeros((0, 2, 2), np.uint8)}, "key 'images': Expected values, found uint8"),
        ({"images": np.uint8(3)}, "Expected arrays of records"),
        ({"images": np.array([[1.0], [np.inf]])}, r"index \(1, 0\): Expected a finite number"),
        ({"images": images(2), "train_images": images(2)}, "keys: Expected inputs under one of"),
        ({"train_images": images(2), "test_images": images(2)[:, :4]}, "Expected arrays of records of one shape"),
        ({"x_train": images(2), "y_train": np.arange(2), "x_test": images(2)}, "labels for all splits or for none"),
    ],
)
def test_unusable_content_is_refused(tmp_path: Path, content, message: str) -> None:
    path = saved(tmp_path / "a.npz", **content)
    with pytest.raises(InvalidFile, match=message):
        read_npz(path)


def test_wrong_splits_and_keys_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x_train=images(2), x_test=images(2), other=images(2))
    with pytest.raises(InvalidFile, match="Expected split='val', found splits: train, test"):
        read_npz(path, split="val")
    with pytest.raises(InvalidInput, match="split='dev' to be one of train, val, test"):
        read_npz(path, split="dev")
    with pytest.raises(InvalidFile, match="key 'othr': Expected one of the keys other, x_test, x_train"):
        read_npz(path, inputs="othr")
    with pytest.raises(InvalidFile, match="found splits: none"):
        read_npz(path, inputs="other", split="train")
    with pytest.raises(InvalidInput, match="to be None for a table"):
        read_npz(saved(tmp_path / "b.npz", x=np.ones((2, 2))), data_range=(0, 1))


def npz_with_header(header: str, payload: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    text = header.encode("latin-1").ljust(117) + b"\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + payload)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(1099511627776, 28, 28)", f"Expected {2**40 * 784} bytes .* found 10"),
        ("(2, -5, -1)", "Expected 10 bytes for uint8 .*, found 10"),
        ("(3, 3)", "Expected 9 bytes"),
    ],
)
def test_a_hostile_shape_allocates_nothing(tmp_path: Path, shape: str, message: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(npz_with_header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}", bytes(10)))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidFile, match=f"key 'images', byte 128: {message}"):
            read_npz(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_size_that_deflate_cannot_reach_is_refused_before_reading(tmp_path: Path) -> None:
    data = bytearray(npz_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (10, 1, 1), }", bytes(10)))
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = struct.pack("<I", 2**31)
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with pytest.raises(InvalidFile, match=f"Expected {2**31} bytes stored or deflated"):
        read_npz(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04 nothing", "byte 0: Expected an npz file, that is a zip archive"),
        (npz_with_header("{'descr': '|u1'", b""), "key 'images': Expected an npy array"),
        (npz_with_header("{}", b"", zipfile.ZIP_LZMA), "key 'images': .*method 14"),
    ],
)
def test_damaged_archives_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with pytest.raises(InvalidFile, match=message):
        read_npz(path)
