"""One call for every data set: shipped, in a data folder, or a file of the user."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from reconrisk.core.validation import did_you_mean, refuse
from reconrisk.data.dataset import Dataset
from reconrisk.data.folders import FULL_SETS, full_set_path
from reconrisk.data.formats import format_of
from reconrisk.data.shipped import SHIPPED


def load_dataset(name_or_path: str | Path, *, split: str | None = None, **options: Any) -> Dataset:
    """A data set by name, or the one in a file or folder, whose format is told by its content.

    Names that need no file: ``mnist`` (5,000 of its digits), ``crops`` (natural colour images), ``digits``,
    ``breast_cancer``, ``diabetes``. Names looked up in the folders of ``RECONRISK_DATA``: ``mnist-full``,
    ``fashion-mnist``, ``cifar-10``, ``adult``, ``pneumoniamnist``. Paths: IDX, CIFAR-10 batches, npz, csv, UCI Adult,
    folders of images. ``split`` is ``"train"``, ``"test"`` or None for all; ``options`` go to the reader of the format:
    :func:`read_idx`, :func:`read_cifar_folder`, :func:`read_npz`, :func:`read_csv`, :func:`read_image_folder`.

    Guarantee: every value of the inputs lies in ``data_range``; no file is modified, nothing in one is executed.
    Edge cases: a name wins over a file of that name; pass a ``Path``, or ``./mnist``, to mean the file.

    >>> load_dataset("mnist", split="test")
    Dataset(mnist, 1000 x (1, 28, 28) in [0, 1], 10 classes, licence: CC BY-SA 3.0)
    >>> load_dataset("diabetes").columns[0]
    NumericColumn(name='age', low=19.0, high=79.0, start=0)
    """
    if not isinstance(name_or_path, (str, Path)):
        raise refuse("name_or_path", name_or_path, "to be a name or a path")
    if isinstance(name_or_path, str) and name_or_path in SHIPPED:
        return _called(SHIPPED[name_or_path], (), name_or_path, split, options)
    if isinstance(name_or_path, str) and name_or_path in FULL_SETS:
        return _full_set(name_or_path, split, options)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise _unknown(name_or_path)
    found = format_of(path)
    return _called(found.read, (path,), found.name, split, options)


def _full_set(name: str, split: str | None, options: dict[str, Any]) -> Dataset:
    full = FULL_SETS[name]
    dataset = _called(full.read, (full_set_path(name),), name, split, options)
    source = f"{full.source} ({dataset.source})"
    return replace(dataset, name=name, source=source, licence=full.licence, classes=full.classes or dataset.classes)


def _called(
    read: Callable[..., Dataset], subject: tuple[Path, ...], kind: str, split: str | None, options: dict[str, Any]
) -> Dataset:
    """The reader's result, after a check that it understands every option."""
    given = options if split is None else {"split": split, **options}
    known = [p.name for p in inspect.signature(read).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option, value in given.items():
        if option not in known:
            remedy = (
                f"It understands {', '.join(known)}.{did_you_mean(option, known)}" if known else "It has no options."
            )
            raise refuse(option, value, f"to be left out for {kind}", remedy)
    return read(*subject, **given)


def _unknown(name: str | Path) -> Exception:
    names = [*SHIPPED, *FULL_SETS]
    remedy = f"Check the path or the name.{did_you_mean(str(name), names)}"
    return refuse("name_or_path", str(name), f"to be a file, a folder or one of {', '.join(names)}", remedy)
