"""Target and estimate side by side, with their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from reconrisk.core.errors import InvalidInput
from reconrisk.core.files import write_whole
from reconrisk.core.validation import refuse

Picture = NDArray[np.float32]

_SIDE = 280
_GAP = 20
_LINE = 26
_TEXT = 15
_NARROWEST = 2
_COLOURS = 3
_FORMATS = (".png", ".svg", ".pdf")


def write_comparison(
    path: Path,
    pictures: Sequence[tuple[str, Picture]],
    *,
    title: str,
    scores: Mapping[str, float],
    data_range: tuple[float, float],
) -> Path:
    """Write ``pictures`` (caption, channels x height x width) in one row with a line of scores beneath, as PNG.

    Guarantee: the file appears whole or not at all; missing folders are made; nothing is written elsewhere.
    """
    panels = [(caption, _panel(picture, data_range)) for caption, picture in pictures]
    width = max(len(panels), _NARROWEST) * (_SIDE + _GAP) + _GAP
    canvas = Image.new("RGB", (width, _SIDE + 4 * _LINE), "white")
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(_TEXT)
    draw.text((_GAP, _LINE // 4), title, fill="black", font=ImageFont.load_default(_TEXT + 3))
    for index, (caption, panel) in enumerate(panels):
        left = _GAP + index * (_SIDE + _GAP)
        draw.text((left, _LINE + _LINE // 4), caption, fill="black", font=font)
        canvas.paste(panel, (left, 2 * _LINE))
    line = "   ".join(f"{name} {value:.4g}" for name, value in scores.items())
    draw.text((_GAP, _SIDE + 2 * _LINE + _LINE // 2), line, fill="black", font=font)
    return write_whole(path, lambda temporary: canvas.save(temporary, format="PNG"))


def save_figure(figure: Any, path: Path, *, secret: bool = False) -> Path:
    """Write a matplotlib figure to ``path`` at once, ``secret`` for its owner alone: no file is left half-written."""
    if Path(path).suffix not in _FORMATS:
        raise refuse("path", str(path), f"to end in one of {', '.join(_FORMATS)}")
    return write_whole(path, lambda temporary: figure.savefig(temporary, dpi=150), secret=secret)


def to_image(picture: Picture, data_range: tuple[float, float]) -> Image.Image:
    """Channels x height x width as an image of that size: three channels in colour, others in grey.

    Edge cases: of other numbers than 1 and 3, the channels stand beside each other, as nearly square as can be.

    >>> to_image(np.zeros((4, 5, 7), np.float32), (0.0, 1.0)).size
    (14, 10)
    """
    low, high = data_range
    scaled = np.rint(255 * np.clip((picture - low) / (high - low), 0, 1)).astype(np.uint8)
    if len(scaled) == _COLOURS:
        return Image.fromarray(np.moveaxis(scaled, 0, -1))
    across = math.ceil(math.sqrt(len(scaled)))
    height, width = scaled.shape[1:]
    tiles = Image.new("L", (across * width, -(-len(scaled) // across) * height), "white")
    for place, channel in enumerate(scaled):
        tiles.paste(Image.fromarray(channel), (place % across * width, place // across * height))
    return tiles.convert("RGB")


def _panel(picture: Picture, data_range: tuple[float, float]) -> Image.Image:
    """A square of fixed size, pixels enlarged and not smoothed."""
    if picture.ndim != 3 or picture.shape[0] not in (1, _COLOURS):
        raise InvalidInput(f"Expected a picture of 1 or 3 channels x height x width, its shape is {picture.shape}.")
    return to_image(picture, data_range).resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
