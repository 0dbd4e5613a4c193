"""Picture of the records that leak most and least."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reconrisk.core.validation import check_not_empty, invalid_input
from reconrisk.reports.drawing import save_figure

Record = NDArray[np.float32]
Row = tuple[str, Sequence[tuple[str, Record]]]

_CHANNELS = (1, 3)


def write_leakage(path: Path, rows: Sequence[Row], *, data_range: tuple[float, float], note: str) -> Path:
    """Draw rows of records: images as pictures, other records as bars of their values.

    Args:
        path: The file; its suffix (.png, .svg or .pdf) sets the format.
        rows: Name and records of each row; each record has a caption. Images are channels x height x width.
        data_range: Smallest and largest value of the scale.
        note: Text below the rows.

    Returns:
        The path.

    Raises:
        InvalidInput: If there is no record.

    Guarantee: the file is written completely or not at all. Only its owner can read it, since it shows records.
    Edge cases: rows may differ in length.
    Reference: Figure 6, guo2022.
    """
    from matplotlib.figure import Figure  # slow import, needed only to draw

    check_not_empty("rows", rows)
    columns = max(len(records) for _, records in rows)
    if columns == 0:
        raise invalid_input(
            "rows", [name for name, _ in rows], "to contain at least one record", "Pass the records to draw."
        )
    figure = Figure(figsize=(max(1.35 * columns, 4.0), 1.9 * len(rows) + 0.3), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, records) in zip(axes, rows, strict=True):
        for axis in line[len(records) :]:
            axis.set_visible(False)
        for axis, (caption, record) in zip(line, records, strict=False):
            _draw(axis, record, data_range)
            axis.set_title(caption, fontsize=8)
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(name, fontsize=9)
    figure.supxlabel(note, fontsize=7, color="tab:red")
    return save_figure(figure, path, secret=True)


def _is_image(shape: Sequence[int]) -> bool:
    """Return True for the shape of an image: 1 or 3 channels x height x width.

    >>> _is_image((1, 28, 28)), _is_image((30,))
    (True, False)
    """
    return len(shape) == 3 and shape[0] in _CHANNELS


def _draw(axis: Any, record: Record, data_range: tuple[float, float]) -> None:
    low, high = data_range
    if _is_image(record.shape):
        scaled = np.clip((np.moveaxis(record, 0, -1) - low) / (high - low), 0, 1)
        axis.imshow(scaled[..., 0] if scaled.shape[-1] == 1 else scaled, cmap="gray", vmin=0, vmax=1)
        return
    values = record.ravel()
    axis.bar(np.arange(len(values)), values - low, bottom=low, width=1.0, color="tab:blue")
    axis.set_ylim(low, high)
    axis.set_box_aspect(1)
