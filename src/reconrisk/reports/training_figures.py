"""The figures of a training run as inline SVG: its risk corridor, and how leakage is spread over records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from reconrisk.bounds.corridor import CorridorCurve, RiskCorridor, corridor_curve
from reconrisk.reports.audit_figures import bars, for_screens
from reconrisk.reports.audit_words import number
from reconrisk.reports.svg import Axis, drawing, line, polygon, polyline, text

if TYPE_CHECKING:
    from reconrisk.audit.audit_result import LeakageHistogram

_SMALLEST = 1e-12
_POINTS = 33
_TOP, _BOTTOM = 14, 230


def training_corridor(corridor: RiskCorridor) -> Markup:
    """Success against the error that counts as success: both ends of the corridor and the priors between them."""
    curve = corridor_curve(corridor, points=_POINTS)
    return for_screens(lambda width, name: _corridor(corridor, curve, width, name), "training")


def _corridor(corridor: RiskCorridor, curve: CorridorCurve, width: int, name: str) -> Markup:
    across = Axis(curve.mse[0], curve.mse[-1], 46, width - 14, is_log=True)
    upward = Axis(_SMALLEST, 1.0, _BOTTOM, _TOP, is_log=True)

    def through(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(across.at(x), upward.at(y)) for x, y in zip(curve.mse, values, strict=True)]

    named, scratch = upward.at(corridor.identification.value), through(curve.from_scratch)
    parts = [polygon([*scratch, (across.end, named), (across.start, named)], "between")]
    for tick in upward.ticks():
        parts.append(line(across.start, upward.at(tick), across.end, upward.at(tick), "grid"))
        parts.append(text(40, upward.at(tick) + 4, number(tick), kind="tiny", anchor="end"))
    parts += [text(across.at(tick), 246, number(tick), kind="tiny", anchor="middle") for tick in across.ticks()]
    parts.append(text(width / 2, 263, "mean squared error that counts as success", kind="tiny", anchor="middle"))
    parts += [polyline(through(inside), "prior") for inside in curve.interior]
    parts += [polyline(scratch, "bound"), polyline(through(curve.attack), "law")]
    parts.append(line(across.start, named, across.end, named, "bound"))
    parts.append(line(across.at(corridor.mse), _TOP, across.at(corridor.mse), _BOTTOM, "limit"))
    title = "Risk corridor of the training run"
    return drawing(width, 272, parts, name=name, title=title, words=corridor.sentence())


def leakage_histogram(leakage: LeakageHistogram) -> Markup:
    """How many records of a training run leak how much; nothing to draw where none leaks."""
    if not leakage.edges:
        return Markup("")
    return for_screens(lambda width, name: _leakage(leakage, width, name), "leakage")


def _leakage(leakage: LeakageHistogram, width: int, name: str) -> Markup:
    axis = Axis(leakage.edges[0], leakage.edges[-1], 20, width - 20, is_log=True)
    parts = bars(leakage.counts, axis, 8, 110)
    parts += [text(axis.at(tick), 134, number(tick), kind="tiny", anchor="middle") for tick in axis.ticks()]
    parts.append(text(width / 2, 152, "Fisher information leakage tr(I)/d", kind="tiny", anchor="middle"))
    words = f"{leakage.records} records, median {number(leakage.median)}, largest {number(leakage.maximum)}."
    return drawing(width, 160, parts, name=name, title="Records by their leakage in training", words=words)
