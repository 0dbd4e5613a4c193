"""Shared drawing: comparisons of targets and estimates as pictures, and SVG as text.

In SVG every label is escaped, and colours are classes that the page defines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.files import write_whole
from reconrisk.core.validation import invalid_input

WIDTH_OF_A_LETTER = {"name": 8.2, "quiet": 7.2}
"""Pixels of a letter by the kind of text in a wide font, so that labels fit."""

_USUAL_WIDTH = 7.0


@dataclass(frozen=True)
class Axis:
    """Values between ``low`` and ``high`` on the pixels from ``start`` to ``end``; others are drawn at the ends.

    >>> Axis(0.0, 1.0, 10.0, 110.0).at(0.25), Axis(1e-4, 1.0, 0.0, 100.0, is_log=True).at(1e-2)
    (35.0, 50.0)
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        part = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + part * (self.end - self.start), 2)

    def ticks(self) -> tuple[float, ...]:
        """Round values to write at the axis: at most six.

        >>> Axis(0.0, 1.0, 0.0, 1.0).ticks(), Axis(1e-3, 10.0, 0.0, 1.0, is_log=True).ticks()
        ((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), (0.001, 0.01, 0.1, 1.0, 10.0))
        """
        if self.is_log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            skip = max(1, -(-(last - first) // 5))
            return tuple(10.0**power for power in range(first, last + 1, skip)) or (self.low, self.high)
        width = self.high - self.low
        if width <= 0:
            return (self.low,)
        power = 10.0 ** math.floor(math.log10(width / 5))
        step = next(power * factor for factor in (1, 2, 5, 10) if width / (power * factor) <= 5 + 1e-9)
        first = math.ceil(self.low / step - 1e-9)
        return tuple(round(place * step, 12) for place in range(first, math.floor(self.high / step + 1e-9) + 1))


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start", room: float = 0) -> Markup:
    """A label that is cut where there is no ``room`` in pixels; the whole of it is its tooltip."""
    letters = int(room / WIDTH_OF_A_LETTER.get(kind, _USUAL_WIDTH)) if room else len(words)
    shown = words if len(words) <= letters else words[: max(1, letters - 1)] + "…"
    whole = Markup("<title>{}</title>").format(words) if shown != words else ""
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}{}</text>').format(
        _pixel(x), _pixel(y), kind, anchor, shown, whole
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight stroke."""
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(
        _pixel(x1), _pixel(y1), _pixel(x2), _pixel(y2), kind
    )


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    """A filled box, at least a hair wide."""
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"/>').format(
        _pixel(x), _pixel(y), _pixel(max(width, 0.5)), _pixel(max(height, 0)), kind
    )


def disc(x: float, y: float, kind: str, radius: float = 5) -> Markup:
    """A round mark."""
    return Markup('<circle cx="{}" cy="{}" r="{}" class="{}"/>').format(_pixel(x), _pixel(y), radius, kind)


def diamond(x: float, y: float, kind: str, radius: float = 5) -> Markup:
    """A mark on its corner."""
    corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
    return polygon(corners, kind)


def polygon(points: Iterable[tuple[float, float]], kind: str) -> Markup:
    """A closed shape."""
    return Markup('<polygon points="{}" class="{}"/>').format(_path(points), kind)


def polyline(points: Iterable[tuple[float, float]], kind: str) -> Markup:
    """A stroke through points."""
    return Markup('<polyline points="{}" class="{}"/>').format(_path(points), kind)


def drawing(width: float, height: float, parts: Sequence[Markup], *, name: str, title: str, words: str) -> Markup:
    """The parts as one picture with a title and a description for those who do not see it."""
    return Markup(
        '<svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-labelledby="{n}-title {n}-words">'
        '<title id="{n}-title">{title}</title><desc id="{n}-words">{words}</desc>{parts}</svg>'
    ).format(w=_pixel(width), h=_pixel(height), n=name, title=title, words=words, parts=Markup("").join(parts))


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_pixel(x)},{_pixel(y)}" for x, y in points)


def _pixel(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


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
    panels = []
    for caption, picture in pictures:  # squares of one size, pixels enlarged and not smoothed
        if picture.ndim != 3 or picture.shape[0] not in (1, _COLOURS):
            raise InvalidInput(f"Expected a picture of 1 or 3 channels x height x width, its shape is {picture.shape}.")
        panels.append((caption, to_image(picture, data_range).resize((_SIDE, _SIDE), Image.Resampling.NEAREST)))
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
        raise invalid_input("path", str(path), f"to end in one of {', '.join(_FORMATS)}")
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
