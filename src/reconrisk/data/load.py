"""One call for every data set: bundled, in a data folder, or in a file of the user.

:func:`detect_format` finds the reader of a file or folder by its content, then by its name.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import did_you_mean, invalid_input
from reconrisk.data.adult import has_adult_files, is_adult, read_adult, read_adult_folder
from reconrisk.data.bundled_sets import SHIPPED
from reconrisk.data.cifar import (
    CIFAR10_RECORD,
    has_cifar_files,
    read_cifar_binary,
    read_cifar_folder,
    read_cifar_python,
)
from reconrisk.data.csv_table import read_csv
from reconrisk.data.data_folders import FULL_SETS, find_full_set
from reconrisk.data.dataset import Dataset
from reconrisk.data.file_bytes import GZIP_MAGIC, read_file_bytes
from reconrisk.data.idx import has_idx_files, is_idx, read_idx, read_idx_folder
from reconrisk.data.image_folder import read_image_folder
from reconrisk.data.npz import NPY_MAGIC, ZIP_MAGIC, read_npz


@dataclass(frozen=True)
class Format:
    """Kind of file or folder.

    Attributes:
        name: Name for messages.
        read: Reader; its keyword arguments are the options that the format understands.
    """

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

_HEAD = 1 << 16  # bytes that are examined to detect a format
_TEXT_SUFFIXES = (".csv", ".tsv", ".data", ".txt")
_IMAGE_MAGICS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*")


def detect_format(path: Path) -> Format:
    """Detect the format of a file or folder.

    Args:
        path: Path of the file or folder.

    Returns:
        The format with its reader.

    Raises:
        InvalidFile: If there is no such file, it cannot be read, or its format is unknown.
    """
    if path.is_dir():
        tests = ((has_cifar_files, CIFAR_FOLDER), (has_idx_files, IDX_FOLDER), (has_adult_files, ADULT_FOLDER))
        return next((found for test, found in tests if test(path)), IMAGE_FOLDER)
    head = _read_head(path)
    name = path.name.lower().removesuffix(".gz")
    found = _format_by_magic(head, name, path) or _format_by_name(name) or _format_by_text(head, name)
    # a renamed binary batch: the first byte is a class, the size a multiple of a record
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


def _format_by_magic(head: bytes, name: str, path: Path) -> Format | None:
    """Return the format by the first bytes; raise InvalidFile for a single array or image."""
    if head.startswith(ZIP_MAGIC):
        return NPZ
    if len(head) > 1 and head[0] == 0x80 and head[1] <= 5:  # opcode PROTO and its version: a pickle
        return CIFAR_PYTHON
    if is_idx(head) and not name.endswith(".bin"):  # a CIFAR-10 batch may begin with two zero bytes
        return IDX
    if head.startswith(NPY_MAGIC):
        problem, remedy = "a single npy array", "Save inputs and labels with numpy.savez(path, images=..., labels=...)."
    elif head.startswith(_IMAGE_MAGICS):
        problem, remedy = "a single image", "Pass the folder that holds it."
    else:
        return None
    raise InvalidFile(path, "byte 0", f"Expected a data set, found {problem}.", remedy)


def _format_by_name(name: str) -> Format | None:
    """Return the format that a name suggests; its reader reports defects of the content."""
    if name.endswith(".bin"):
        return CIFAR_BINARY
    if name.endswith(".npz"):
        return NPZ
    if "idx" in name and "ubyte" in name:
        return IDX
    return None


def _format_by_text(head: bytes, name: str) -> Format | None:
    """Return the format of a text file; None for binary content."""
    text = head.decode("utf-8", errors="ignore")
    # the head may end inside a character, which loses at most three bytes
    if ("\0" in text or len(text.encode()) < len(head) - 3) and not name.endswith(_TEXT_SUFFIXES):
        return None
    return ADULT if is_adult(text) else CSV


def _read_head(path: Path) -> bytes:
    """Return the beginning of a file, decompressed; at least one byte."""
    if not path.is_file():
        raise InvalidFile(path, "path", "Expected a file or a folder.", "Check the path.")
    try:
        with path.open("rb") as stream:
            raw = stream.read(_HEAD)
        # wbits=31 expects a gzip container; the output limit makes a decompression bomb harmless
        head = zlib.decompressobj(wbits=31).decompress(raw, _HEAD) if raw.startswith(GZIP_MAGIC) else raw
    except (OSError, zlib.error):
        head = b""
    # if nothing can be read, reading the whole file raises the error that names the cause
    return head or read_file_bytes(path)


def load_dataset(name_or_path: str | Path, *, split: str | None = None, **options: Any) -> Dataset:
    """Load a data set by name, or from a file or folder whose format is detected by content.

    Names that need no file: ``mnist`` (5,000 of its digits), ``crops`` (natural colour images), ``digits``,
    ``breast_cancer``, ``diabetes``. Names looked up in the folders of ``RECONRISK_DATA``: ``mnist-full``,
    ``fashion-mnist``, ``cifar-10``, ``adult``, ``pneumoniamnist``. Paths: IDX, CIFAR-10 batches, npz, csv, UCI Adult,
    folders of images.

    Args:
        name_or_path: One of these names, or a path.
        split: ``"train"``, ``"test"`` or None for all.
        **options: Options of the reader of the format: :func:`read_idx`, :func:`read_cifar_folder`, :func:`read_npz`,
            :func:`read_csv`, :func:`read_image_folder`.

    Returns:
        The records with labels, range, source and licence.

    Raises:
        InvalidInput: If the name is unknown, or the format does not have an option.
        InvalidFile: If the file cannot be read; the message names the byte, line or key.

    Guarantee: every value of the inputs lies in ``data_range``; no file is modified, no content is executed.
    Edge cases: a name takes precedence over a file of that name; pass a ``Path``, or ``./mnist``, to mean the file.

    >>> load_dataset("mnist", split="test")
    Dataset(mnist, 1000 x (1, 28, 28) in [0, 1], 10 classes, licence: CC BY-SA 3.0)
    >>> load_dataset("diabetes").columns[0]
    NumericColumn(name='age', low=19.0, high=79.0, start=0)
    """
    if not isinstance(name_or_path, (str, Path)):
        raise invalid_input(
            "type(name_or_path)",
            type(name_or_path).__name__,
            "to be str or Path",
            'Pass a name such as "mnist", or the path of a file.',
        )
    if isinstance(name_or_path, str) and name_or_path in SHIPPED:
        return _read_with_options(SHIPPED[name_or_path], (), name_or_path, split, options)
    if isinstance(name_or_path, str) and name_or_path in FULL_SETS:
        name, full = name_or_path, FULL_SETS[name_or_path]
        dataset = _read_with_options(full.read, (find_full_set(name),), name, split, options)
        source = f"{full.source} ({dataset.source})"
        return replace(dataset, name=name, source=source, licence=full.licence, classes=full.classes or dataset.classes)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        names = [*SHIPPED, *FULL_SETS]
        remedy = f"Check the path or the name.{did_you_mean(str(name_or_path), names)}"
        known = f"to be a file, a folder or one of {', '.join(names)}"
        raise invalid_input("name_or_path", str(name_or_path), known, remedy)
    found = detect_format(path)
    return _read_with_options(found.read, (path,), found.name, split, options)


def _read_with_options(
    read: Callable[..., Dataset], subject: tuple[Path, ...], kind: str, split: str | None, options: dict[str, Any]
) -> Dataset:
    """Call a reader after a check that it has every option."""
    given = options if split is None else {"split": split, **options}
    known = [p.name for p in inspect.signature(read).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option, value in given.items():
        if option not in known:
            remedy = (
                f"Pass only {', '.join(known)}.{did_you_mean(option, known)}"
                if known
                else "Remove it: there are no options."
            )
            raise invalid_input(option, value, f"to be left out for {kind}", remedy)
    return read(*subject, **given)
