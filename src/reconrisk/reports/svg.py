"""Drawings as SVG text: every label is escaped, colours are classes that the page gives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

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
