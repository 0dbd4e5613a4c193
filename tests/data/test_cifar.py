import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data.cifar import CIFAR10_CLASSES, read_cifar_binary, read_cifar_folder, read_cifar_python


def batch(seed: int, records: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (records, 3072), dtype=np.uint8), rng.integers(0, 10, records, dtype=np.uint8)


def binary(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return np.hstack([labels[:, None], pixels]).tobytes()


def pickled(pixels: np.ndarray, labels: np.ndarray, protocol: int = 2, key=str.encode) -> bytes:
    content = {
        key("batch_label"): "b",
        key("labels"): labels.tolist(),
        key("data"): pixels,
        key("filenames"): ["a.png"],
    }
    return pickle.dumps(content, protocol=protocol)


def assert_holds(dataset, pixels: np.ndarray, labels: np.ndarray) -> None:
    assert torch.equal(dataset.inputs, torch.from_numpy(pixels.reshape(-1, 3, 32, 32)) / 255)
    assert dataset.labels.tolist() == labels.tolist()
    assert dataset.classes == CIFAR10_CLASSES


@given(st.integers(0, 2**32), st.integers(1, 6))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_binary_batches_come_back(tmp_path_factory, seed: int, records: int) -> None:
    path = tmp_path_factory.mktemp("cifar") / "data_batch_1.bin"
    path.write_bytes(binary(*batch(seed, records)))
    assert_holds(read_cifar_binary(path), *batch(seed, records))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("key", [str.encode, str])
@pytest.mark.parametrize("order", ["C", "F"])
def test_python_batches_of_every_protocol_come_back(tmp_path: Path, protocol: int, key, order: str) -> None:
    pixels, labels = batch(protocol)
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickled(np.asarray(pixels, order=order), labels, protocol, key))
    assert_holds(read_cifar_python(path), pixels, labels)


def python2_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """The opcodes of the official files, which Python 2 wrote: text and array content as byte strings."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    shape = b"M" + len(pixels).to_bytes(2, "little") + b"M" + (3072).to_bytes(2, "little") + b"\x86"
    raw = pixels.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\0\x85" + short(b"b") + b"\x87R"
    dtype = (
        b"cnumpy\ndtype\nq\x04"
        + short(b"u1")
        + b"K\0K\1\x87R(K\3"
        + short(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    state = b"(K\1" + shape + dtype + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}q\x01(" + short(b"data") + array + state + short(b"labels") + numbers + b"u."


def test_python_2_batches_come_back(tmp_path: Path) -> None:
    pixels, labels = batch(7)
    path = tmp_path / "data_batch_1"
    path.write_bytes(python2_pickle(pixels, labels))
    oracle = pickle.loads(path.read_bytes(), encoding="bytes")  # noqa: S301  written three lines above
    assert np.array_equal(oracle[b"data"], pixels), "the bytes are what Python itself reads"
    assert_holds(read_cifar_python(path), pixels, labels)


GOOD = binary(*batch(0))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (GOOD[:-1], "byte 6146: Expected records of 3073 bytes, the last one has 3072"),
        (GOOD + b"xy", "byte 9219: Expected records of 3073 bytes, the last one has 2"),
        (GOOD[:3073] + b"\x0a" + GOOD[3074:], "byte 3073: Expected a class from 0 to 9, found 10"),
    ],
)
def test_damaged_binary_batches_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(data)
    with pytest.raises(InvalidFile, match=message):
        read_cifar_binary(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"labels": [0]}, "key 'data': Expected this key, found labels"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "key 'labels'"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [0]}, r"key 'data': .* found shape \(1, 3071\)"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, r"found shape \(0, 3072\)"),
        ({"data": [1, 2], "labels": [0]}, "key 'data': Expected bytes of shape N x 3072, found list"),
        ({"data": np.zeros((1, 3072), np.float32), "labels": [0]}, "found an array of .*f4"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [0, 1]}, "key 'labels': Expected a list of 1 whole numbers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}, "key 'labels': Expected a list of 1"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "key 'labels', entry 0: .* found 10"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-(2**70)]}, "key 'labels': Expected a list of 1"),
    ],
)
def test_foreign_python_batches_are_refused(tmp_path: Path, content, message: str) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(content, protocol=4))
    with pytest.raises(InvalidFile, match=message):
        read_cifar_python(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    for seed, name in enumerate(("data_batch_1", "data_batch_2", "test_batch")):
        (inner / f"{name}.bin").write_bytes(binary(*batch(seed)))
    (inner / "batches.meta.txt").write_text("airplane\n")
    return inner


@pytest.mark.parametrize(("split", "seeds"), [("train", (0, 1)), ("test", (2,)), (None, (0, 1, 2))])
def test_a_folder_joins_the_batches_of_the_split(folder: Path, split: str | None, seeds: tuple[int, ...]) -> None:
    batches = [batch(seed) for seed in seeds]
    for place in (folder, folder.parent):
        dataset = read_cifar_folder(place, split=split)
        assert_holds(
            dataset, np.vstack([pixels for pixels, _ in batches]), np.hstack([labels for _, labels in batches])
        )


def test_the_source_names_the_batches(folder: Path) -> None:
    assert read_cifar_folder(folder, split="train").source.endswith("data_batch_1.bin, data_batch_2.bin")


def test_a_folder_of_python_batches_is_read(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickled(*batch(3)))
    assert_holds(read_cifar_folder(tmp_path), *batch(3))


def test_absent_batches_and_unknown_splits_are_refused(folder: Path) -> None:
    (folder / "test_batch.bin").unlink()
    with pytest.raises(InvalidFile, match="test_batch: Expected a batch of this name"):
        read_cifar_folder(folder, split="test")
    with pytest.raises(InvalidInput, match="split='val' to be one of train, test"):
        read_cifar_folder(folder, split="val")
    with pytest.raises(InvalidFile, match="data_batch_1 or test_batch"):
        read_cifar_folder(folder.parent.parent / "absent")
