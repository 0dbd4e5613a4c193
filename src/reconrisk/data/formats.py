"""Which reader a file or folder needs, told by its content before its name."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reconrisk.core.errors import InvalidFile
from reconrisk.data.adult import has_adult_files, is_adult, read_adult, read_adult_folder
from reconrisk.data.cifar import (
    CIFAR10_RECORD,
    has_cifar_files,
    read_cifar_binary,
    read_cifar_folder,
    read_cifar_python,
)
from reconrisk.data.csv_file import read_csv
from reconrisk.data.dataset import Dataset
from reconrisk.data.idx import has_idx_files, is_idx, read_idx, read_idx_folder
from reconrisk.data.image_folder import read_image_folder
from reconrisk.data.npz import NPY_MAGIC, ZIP_MAGIC, read_npz
from reconrisk.data.stored import GZIP_MAGIC, stored_bytes


@dataclass(frozen=True)
class Format:
    """A kind of file or folder and its reader, whose keyword arguments are the options it understands."""

    name: str
    read: Callable[..., Dataset]


IDX = Format("IDX file", read_idx)
IDX_FOLDER = Format("folder of IDX files", read_idx_folder)
CIFAR_BINARY = Format("CIFAR-10 binary batch", read_cifar_binary)
CIFAR_PYTHON = Format("CIFAR-10 python batch", read_cifar_python)
CIFAR_FOLDER = Format("folder of CIFAR-10 batches", read_cifar_folder)
NPZ = Format("npz file", read_npz)
CSV = Format("csv file", read_csv)
ADULT = Format("UCI Adult file", read_adult)
ADULT_FOLDER = Format("folder of UCI Adult", read_adult_folder)
IMAGE_FOLDER = Format("folder of images", read_image_folder)

_HEAD = 1 << 16
_TEXT_SUFFIXES = (".csv", ".tsv", ".data", ".txt")
_IMAGE_MAGICS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*")


def format_of(path: Path) -> Format:
    """The format of what lies at ``path``."""
    if path.is_dir():
        return _folder_format(path)
    head = _head(path)
    name = path.name.lower().removesuffix(".gz")
    found = _by_magic(head, name, path) or _by_name(name) or _by_text(head, name)
    if found is None and head[0] < 10 and path.stat().st_size % CIFAR10_RECORD == 0:
        found = CIFAR_BINARY
    if found is None:
        raise InvalidFile(
            path,
            "byte 0",
            f"Expected IDX, npz, csv or a CIFAR-10 batch, found the bytes {head[:8].hex(' ')}.",
            "Convert it to npz with arrays images and labels.",
        )
    return found


def _folder_format(folder: Path) -> Format:
    tests = ((has_cifar_files, CIFAR_FOLDER), (has_idx_files, IDX_FOLDER), (has_adult_files, ADULT_FOLDER))
    return next((found for test, found in tests if test(folder)), IMAGE_FOLDER)


def _by_magic(head: bytes, name: str, path: Path) -> Format | None:
    if head.startswith(ZIP_MAGIC):
        return NPZ
    if len(head) > 1 and head[0] == 0x80 and head[1] <= 5:
        return CIFAR_PYTHON
    if is_idx(head) and not name.endswith(".bin"):
        return IDX
    if head.startswith(NPY_MAGIC):
        problem, remedy = "a single npy array", "Save inputs and labels with numpy.savez(path, images=..., labels=...)."
    elif head.startswith(_IMAGE_MAGICS):
        problem, remedy = "a single image", "Pass the folder that holds it."
    else:
        return None
    raise InvalidFile(path, "byte 0", f"Expected a data set, found {problem}.", remedy)


def _by_name(name: str) -> Format | None:
    """The format a name promises: its reader then says what the content lacks."""
    if name.endswith(".bin"):
        return CIFAR_BINARY
    if name.endswith(".npz"):
        return NPZ
    if "idx" in name and "ubyte" in name:
        return IDX
    return None


def _by_text(head: bytes, name: str) -> Format | None:
    text = head.decode("utf-8", errors="ignore")
    # the head may end within a character, of which at most three bytes are then lost
    if ("\0" in text or len(text.encode()) < len(head) - 3) and not name.endswith(_TEXT_SUFFIXES):
        return None
    return ADULT if is_adult(text) else CSV


def _head(path: Path) -> bytes:
    if not path.is_file():
        raise InvalidFile(path, "path", "Expected a file or a folder.", "Check the path.")
    try:
        with path.open("rb") as stream:
            raw = stream.read(_HEAD)
        head = zlib.decompressobj(wbits=31).decompress(raw, _HEAD) if raw.startswith(GZIP_MAGIC) else raw
    except (OSError, zlib.error):
        head = b""
    # where nothing can be read, reading all of it says why
    return head or stored_bytes(path)
