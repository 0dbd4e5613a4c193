"""Files of ``rr.rebuild``: estimates, and pictures of originals, estimates and differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from safetensors.numpy import save_file

from reconrisk.core.storage.files import write_atomically
from reconrisk.core.validation import check_not_empty, invalid_input
from reconrisk.reports.drawing import Picture, to_image

if TYPE_CHECKING:
    from reconrisk.studies.rebuild.updates import Rebuilt

# sizes in pixels
_SIDE = 128
_GAP = 8
_LINE = 18
_TEXT = 12
_NARROWEST = 480
_TALLEST = 3  # largest ratio of rows to columns of records

Row = tuple[str, Sequence[Picture]]


def write_estimates(rebuilt: Rebuilt, path: Path) -> Path:
    """Write the estimates and the row numbers of their records as safetensors.

    Args:
        rebuilt: Result of ``rr.rebuild``.
        path: The file.

    Returns:
        The path.

    Guarantee: the file is written completely or not at all. Only its owner can read it, since estimates are private.
    """
    arrays = {"estimates": rebuilt.estimates.numpy(), "records": np.asarray(rebuilt.report.records)}
    return write_atomically(path, lambda temporary: save_file(arrays, temporary), secret=True)


def write_pictures(rebuilt: Rebuilt, path: Path) -> Path:
    """Draw originals, estimates and their differences as PNG.

    Args:
        rebuilt: Result of ``rr.rebuild``.
        path: The file.

    Returns:
        The path.

    Raises:
        InvalidInput: If the records are not images (channels x height x width).

    Guarantee: the file is written completely or not at all. Only its owner can read it, since estimates are private.
    """
    report = rebuilt.report
    if not report.is_image:
        remedy = "Save .safetensors instead."
        raise invalid_input("path", str(path), "to be a format for records that are not images", remedy)
    (low, high), (names, panels) = report.data_range, _arrange_columns(rebuilt)
    captions = [f"{record} ({label[:12]})" for record, label in zip(report.records, report.labels, strict=True)]
    for score in report.scores[:1]:
        captions = [f"{text}  {score.name} {value:.4g}" for text, value in zip(captions, score.values, strict=True)]
    rows = list(zip(captions, panels, strict=True))
    title = f"{report.attack} on {report.data}, {report.accounts[0].status.ending.value}"
    return write_grid(path, names, rows, title=title, data_range=(low, high))


def _arrange_columns(rebuilt: Rebuilt) -> tuple[tuple[str, ...], list[Sequence[Picture]]]:
    """Return column names and pictures: with originals if they are known, otherwise with the baseline."""
    estimates = rebuilt.estimates.numpy()
    if rebuilt.targets is not None:
        low, targets = rebuilt.report.data_range[0], rebuilt.targets.numpy()
        differences = low + abs(estimates - targets)  # a difference of 0 is drawn black
        return ("original", "rebuilt", "difference"), list(zip(targets, estimates, differences, strict=True))
    if rebuilt.guesses is not None:
        return ("rebuilt", rebuilt.report.guesser), list(zip(estimates, rebuilt.guesses.numpy(), strict=True))
    return ("rebuilt",), [(estimate,) for estimate in estimates]


def write_grid(
    path: Path, names: Sequence[str], rows: Sequence[Row], *, title: str, data_range: tuple[float, float]
) -> Path:
    """Draw a grid of pictures of one shape with a caption above each row, as PNG.

    Pixels are enlarged by the largest whole number that keeps a side at 128 pixels or less, and not smoothed. Many rows
    are arranged in several blocks next to each other.

    Args:
        path: The file; missing folders are created.
        names: Headings of the columns.
        rows: Caption and pictures (channels x height x width) of each row.
        title: Title of the file.
        data_range: Pair (low, high): low is drawn black, high white.

    Returns:
        The path.

    Raises:
        InvalidInput: If there is no row, or if pictures differ in size or number.

    Guarantee: the file is written completely or not at all, and only its owner can read it.
    """
    check_not_empty("rows", rows)
    panels = [(caption, [_enlarge(picture, data_range) for picture in pictures]) for caption, pictures in rows]
    sizes = {panel.size for _, pictures in panels for panel in pictures}
    if len(sizes) != 1 or any(len(pictures) != len(names) for _, pictures in panels):
        raise invalid_input("sizes of rows", sorted(sizes), f"to be {len(names)} pictures per row, all of one size")
    ((width, height),) = sizes
    across = max(1, round(math.sqrt(len(rows) / _TALLEST)))
    below = -(-len(rows) // across)
    block = len(names) * (width + _GAP) + 2 * _GAP
    canvas = Image.new("RGB", (max(_NARROWEST, across * block), 2 * _LINE + below * (height + _LINE + _GAP)), "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(_TEXT)
    draw.text((_GAP, 2), title, fill="black", font=ImageFont.load_default(_TEXT + 2))
    for place, (caption, pictures) in enumerate(panels):
        left, top = _GAP + place // below * block, 2 * _LINE + place % below * (height + _LINE + _GAP)
        draw.text((left, top + 2), caption, fill="black", font=font)
        for number, picture in enumerate(pictures):
            start = left + number * (width + _GAP)
            canvas.paste(picture, (start, top + _LINE))
            if place % below == 0:
                draw.text((start, _LINE + 2), names[number], fill="gray", font=font)
    return write_atomically(path, lambda temporary: canvas.save(temporary, format="PNG"), secret=True)


def _enlarge(picture: Picture, data_range: tuple[float, float]) -> Image.Image:
    if picture.ndim != 3:
        raise invalid_input("picture.shape", picture.shape, "to be (channels, height, width)")
    image = to_image(picture, data_range)
    factor = max(1, _SIDE // max(image.size))
    return image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST)
