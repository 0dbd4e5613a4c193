"""Shared drawing functions: pictures of targets and estimates, and elements of SVG.

Every SVG label is escaped. Colours are CSS classes that the page defines.
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

from reconrisk.core.storage.files import write_atomically
from reconrisk.core.validation import invalid_input

WIDTH_OF_A_LETTER = {"name": 8.2, "quiet": 7.2}
"""Upper estimate of a letter's width in pixels by kind of text, to decide where labels are cut."""

_USUAL_WIDTH = 7.0  # width of a letter for all other kinds


@dataclass(frozen=True)
class Axis:
    """Map from values to pixels.

    Attributes:
        low: Smallest value; values below are drawn at the start.
        high: Largest value; values above are drawn at the end.
        start: Pixel of the smallest value.
        end: Pixel of the largest value.
        is_log: True for a logarithmic scale.

    >>> Axis(0.0, 1.0, 10.0, 110.0).at(0.25), Axis(1e-4, 1.0, 0.0, 100.0, is_log=True).at(1e-2)
    (35.0, 50.0)
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        part = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + part * (self.end - self.start), 2)

    def ticks(self) -> tuple[float, ...]:
        """Return at most six round values to label.

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
    """Draw a label; if it does not fit, it is cut and the full text becomes its tooltip.

    Args:
        x: Horizontal position in pixels.
        y: Baseline in pixels.
        words: Text of the label.
        kind: CSS class.
        anchor: ``start``, ``middle`` or ``end`` of the text is at ``x``.
        room: Available width in pixels; 0 for no limit.

    Returns:
        The element.
    """
    letters = int(room / WIDTH_OF_A_LETTER.get(kind, _USUAL_WIDTH)) if room else len(words)
    shown = words if len(words) <= letters else words[: max(1, letters - 1)] + "…"
    whole = Markup("<title>{}</title>").format(words) if shown != words else ""
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}{}</text>').format(
        _pixel(x), _pixel(y), kind, anchor, shown, whole
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Draw a straight line.

    Args:
        x1: Horizontal position of the first end.
        y1: Vertical position of the first end.
        x2: Horizontal position of the second end.
        y2: Vertical position of the second end.
        kind: CSS class.

    Returns:
        The element.
    """
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(
        _pixel(x1), _pixel(y1), _pixel(x2), _pixel(y2), kind
    )


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    """Draw a filled rectangle, at least half a pixel wide.

    Args:
        x: Left edge.
        y: Upper edge.
        width: Width in pixels.
        height: Height in pixels.
        kind: CSS class.

    Returns:
        The element.
    """
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"/>').format(
        _pixel(x), _pixel(y), _pixel(max(width, 0.5)), _pixel(max(height, 0)), kind
    )


def disc(x: float, y: float, kind: str, radius: float = 5) -> Markup:
    """Draw a circle.

    Args:
        x: Horizontal position of the centre.
        y: Vertical position of the centre.
        kind: CSS class.
        radius: Radius in pixels.

    Returns:
        The element.
    """
    return Markup('<circle cx="{}" cy="{}" r="{}" class="{}"/>').format(_pixel(x), _pixel(y), radius, kind)


def diamond(x: float, y: float, kind: str, radius: float = 5) -> Markup:
    """Draw a square that stands on its corner.

    Args:
        x: Horizontal position of the centre.
        y: Vertical position of the centre.
        kind: CSS class.
        radius: Distance from the centre to a corner, in pixels.

    Returns:
        The element.
    """
    corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
    return polygon(corners, kind)


def polygon(points: Iterable[tuple[float, float]], kind: str) -> Markup:
    """Draw a filled polygon.

    Args:
        points: Corners in pixels.
        kind: CSS class.

    Returns:
        The element.
    """
    return Markup('<polygon points="{}" class="{}"/>').format(_path(points), kind)


def polyline(points: Iterable[tuple[float, float]], kind: str) -> Markup:
    """Draw a line through points.

    Args:
        points: Points in pixels.
        kind: CSS class.

    Returns:
        The element.
    """
    return Markup('<polyline points="{}" class="{}"/>').format(_path(points), kind)


def drawing(width: float, height: float, parts: Sequence[Markup], *, name: str, title: str, words: str) -> Markup:
    """Assemble parts to one SVG with a title and a description for screen readers.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        parts: Elements, drawn in this order.
        name: Identifier of the figure, unique on the page.
        title: Title for screen readers.
        words: Description for screen readers.

    Returns:
        The ``svg`` element.
    """
    return Markup(
        '<svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-labelledby="{n}-title {n}-words">'
        '<title id="{n}-title">{title}</title><desc id="{n}-words">{words}</desc>{parts}</svg>'
    ).format(w=_pixel(width), h=_pixel(height), n=name, title=title, words=words, parts=Markup("").join(parts))


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_pixel(x)},{_pixel(y)}" for x, y in points)


def _pixel(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


Picture = NDArray[np.float32]

# sizes in pixels
_SIDE = 280
_GAP = 20
_LINE = 26
_TEXT = 15
_NARROWEST = 2  # the canvas is at least this many panels wide, so that title and scores fit
_COLOURS = 3  # channels of a colour picture
_FORMATS = (".png", ".svg", ".pdf")


def write_comparison(
    path: Path,
    pictures: Sequence[tuple[str, Picture]],
    *,
    title: str,
    scores: Mapping[str, float],
    data_range: tuple[float, float],
) -> Path:
    """Write pictures in one row with a line of scores below, as PNG.

    Args:
        path: The file; missing folders are created.
        pictures: Caption and picture (channels x height x width) of each panel.
        title: Title of the file.
        scores: Scores by name.
        data_range: Pair (low, high): low is drawn black, high white.

    Returns:
        The path.

    Raises:
        InvalidInput: If a picture has not 1 or 3 channels.

    Guarantee: the file is written completely or not at all; nothing is written elsewhere.
    """
    panels = []
    for caption, picture in pictures:  # squares of one size; pixels are enlarged, not smoothed
        if picture.ndim != 3 or picture.shape[0] not in (1, _COLOURS):
            raise invalid_input("picture.shape", picture.shape, "to be (channels, height, width) with 1 or 3 channels")
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
    return write_atomically(path, lambda temporary: canvas.save(temporary, format="PNG"))


def save_figure(figure: Any, path: Path, *, secret: bool = False) -> Path:
    """Write a matplotlib figure.

    Args:
        figure: The matplotlib figure.
        path: The file; its suffix (.png, .svg or .pdf) sets the format.
        secret: True for a file that only its owner can read.

    Returns:
        The path.

    Raises:
        InvalidInput: If the suffix is not one of these.

    Guarantee: the file is written completely or not at all.
    """
    if Path(path).suffix not in _FORMATS:
        raise invalid_input("path", str(path), f"to end in one of {', '.join(_FORMATS)}")
    return write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=150), secret=secret)


def to_image(picture: Picture, data_range: tuple[float, float]) -> Image.Image:
    """Convert an array to an image.

    Args:
        picture: Array of channels x height x width; three channels are colours, others are grey.
        data_range: Pair (low, high): low becomes black, high white.

    Returns:
        The image, one pixel per value.

    Edge cases: other numbers of channels than 1 and 3 become tiles of a nearly square grid.

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
