"""Whatever happens to a file, reading it gives a data set or an error of ours, never another, and changes nothing."""

import gzip
import io
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data import Dataset, load_dataset

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (4, 3072), dtype=np.uint8)
CSV = "age,city,kind\n" + "".join(f"{20 + i},{'Rome' if i % 3 else 'Oslo'},{'ab'[i % 2]}\n" for i in range(30))
ADULT = "39, Private, 7, Bachelors, 13, Never, Adm, Not, White, Male, 0, 0, 40, Peru, <=50K\n" * 5


def npz_bytes() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, images=PIXELS.reshape(-1, 32, 32, 3), labels=np.arange(4))
    return stream.getvalue()


def image_bytes(form: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(PIXELS[0].reshape(32, 32, 3)).save(stream, form)
    return stream.getvalue()


IDX = bytes([0, 0, 8, 3]) + struct.pack(">3I", 4, 48, 64) + PIXELS.tobytes()
PYTHON = {"data": PIXELS, "labels": [0, 1, 2, 3], "filenames": ["a"] * 4}
SAMPLES: dict[str, bytes] = {
    "images-idx3-ubyte": IDX,
    "images-idx3-ubyte.gz": gzip.compress(IDX, mtime=0),
    "data_batch_1.bin": np.hstack([np.arange(4, dtype=np.uint8)[:, None], PIXELS]).tobytes(),
    "batch-2": pickle.dumps(PYTHON, protocol=2),
    "batch-4": pickle.dumps(PYTHON, protocol=4),
    "batch-5": pickle.dumps(PYTHON, protocol=5),
    "a.npz": npz_bytes(),
    "a.csv": CSV.encode(),
    "b.csv.gz": gzip.compress(CSV.encode(), mtime=0),
    "adult.data": ADULT.encode(),
    "png/a.png": image_bytes("PNG"),
    "jpeg/a.jpg": image_bytes("JPEG"),
    "tiff/a.tiff": image_bytes("TIFF"),
    "gif/a.gif": image_bytes("GIF"),
    "bmp/a.bmp": image_bytes("BMP"),
    "webp/a.webp": image_bytes("WEBP"),
    "ppm/a.ppm": image_bytes("PPM"),
}


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def overwritten(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 3, 30])):
        damaged[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(damaged)


def overwritten_at_an_end(data: bytes, rng: random.Random) -> bytes:
    """Headers and directories stand at the ends, where a change does most."""
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 2, 8])):
        damaged[rng.choice([1, -1]) * rng.randrange(1, min(200, len(data)))] = rng.choice([0, 1, 127, 128, 255])
    return bytes(damaged)


def shifted(data: bytes, rng: random.Random) -> bytes:
    at, count = rng.randrange(len(data)), rng.randrange(1, 20)
    return data[:at] + (rng.randbytes(count) + data[at:] if rng.random() < 0.5 else data[at + count :])


def outcome(path: Path) -> str:
    """The message of our error, or nothing where the file could be read."""
    try:
        assert isinstance(load_dataset(path), Dataset)
    except (InvalidFile, InvalidInput) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("damage", [truncated, overwritten, overwritten_at_an_end, shifted])
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_damaged_files_give_our_errors_only(tmp_path: Path, name: str, damage: Callable) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    rng = random.Random(f"{name} {damage.__name__}")
    for _ in range(40):
        data = damage(SAMPLES[name], rng)
        path.write_bytes(data)
        message = outcome(path.parent if "/" in name else path)
        assert not message or path.name in message
        assert path.read_bytes() == data


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_samples_are_sound(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(SAMPLES[name])
    assert isinstance(load_dataset(path.parent if "/" in name else path), Dataset)


@pytest.mark.parametrize(
    "name", ["images-idx3-ubyte", "images-idx3-ubyte.gz", "data_batch_1.bin", "batch-2", "batch-4", "batch-5", "a.npz"]
)
def test_no_truncation_of_an_array_file_goes_unnoticed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for missing in (1, 2, 3, 100, 3072):
        path.write_bytes(SAMPLES[name][:-missing])
        assert outcome(path), f"{missing} bytes less"
