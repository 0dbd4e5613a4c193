"""The frontier between leakage and utility as a picture, or as a page with its table."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reconrisk.core.guarantee import Estimate
from reconrisk.core.storage.files import write_whole
from reconrisk.reports.drawing import save_figure

if TYPE_CHECKING:
    from reconrisk.studies.tradeoff.result import TradeoffResult, TradeoffRow

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#000000")
"""Okabe and Ito's colours, which people with any kind of colour vision tell apart; markers tell families apart too."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_SPAN_FOR_LOG = 50.0
_LARGEST_SPAN = 1e5
_EXACT_PSNR = 50.0
_BESIDE = ((7, 6, "left"), (-7, 6, "right"), (7, -13, "left"), (-7, -13, "right"))
"""Where the strength is written, family by family, so that those of neighbours do not cover each other."""

_PANELS = (
    ("unaware", "attacker who does not know the defense"),
    ("aware", "attacker who knows mask, clipping and noise"),
)
_NAMES = {
    "test_accuracy": "test accuracy",
    "training_loss": "training loss",
    "test_loss": "test loss",
    "utility_1": "U1: part of the gradient that is left",
    "utility_2": "U2: -variance along the gradient",
    "mse": "mean squared error of the best attack",
    "psnr": "PSNR of the best attack (dB)",
    "fisher_trace": "trace of the Fisher information",
    "mse_bound": "estimated lower bound on the mean squared error",
}
_LESS_IS_BETTER = ("training_loss", "test_loss", "psnr", "fisher_trace")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Leakage against utility</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }}
svg {{ max-width: 100%; height: auto }} pre {{ overflow-x: auto; font-size: .8rem }}</style></head>
<body><h1>Leakage against utility</h1>
{figure}
<ul>{statements}</ul>
<pre>{table}</pre>
<p><code>{signature}</code></p></body></html>
"""


def write_tradeoff(result: TradeoffResult, path: str | Path) -> Path:
    """Draw leakage against utility, unaware and aware attacker side by side, and write it.

    Families are lines from their weakest to their strongest setting, with intervals over seeds where they are finite.
    Rings mark the Pareto front of each attacker, the star the undefended run. Better is always up and to the right, so
    axes of what should be small run the other way.

    Args:
        result: The frontier.
        path: The file; its suffix says the format, .png, .svg or .pdf, or .html for a page with the table and who
            dominates whom.

    Returns:
        The path.

    Guarantee: the file appears whole or not at all. No name of a family becomes markup.
    Edge cases: exact copies (an error of zero or tiny, more than 50 dB) and infinite values stand at the end of the
    axis, with their value in brackets.
    """
    path = Path(path)
    figure = _figure(result)
    if path.suffix != ".html":
        return save_figure(figure, path, secret=result.is_private)
    from markupsafe import escape  # beside matplotlib, needed only to write

    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    svg = drawn.getvalue()
    families = result.families
    pairs = [(one, other) for one in families for other in families if one != other]
    said = [str(result.dominates(*pair, attacker=name)) for name, _ in _PANELS for pair in pairs]
    text = _PAGE.format(
        figure=svg[svg.index("<svg") :],
        statements="".join(f"<li>{escape(sentence)}</li>" for sentence in said),
        table=escape(result.table()),
        signature=escape(result.signature),
    )
    page = text.encode("utf-8", "replace")
    return write_whole(path, lambda temporary: temporary.write_bytes(page), secret=result.is_private)


def _figure(result: TradeoffResult) -> Any:
    from matplotlib.figure import Figure  # slow import, needed only to draw

    figure = Figure(figsize=(11.5, 5.2), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    measures = (result.utility, result.leakage)
    scales = [_Scale(name, [row.measured(name).value for row in result.rows]) for name in measures]
    for axis, (attacker, title) in zip(axes, _PANELS, strict=True):
        _panel(axis, result, attacker, scales)
        axis.set_title(title, fontsize=11)
    for scale, axis in zip(scales, ("x", "y"), strict=True):
        scale.apply(axes[0], axis)
    axes[0].set_ylabel(f"{_NAMES[result.leakage]}{_better(result.leakage, 'protects')}")
    for axis in axes:
        axis.set_xlabel(f"{_NAMES[result.utility]}{_better(result.utility, 'is more useful')}")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=9, frameon=False)
    return figure


def _panel(axis: Any, result: TradeoffResult, attacker: str, scales: Sequence[_Scale]) -> None:
    front, measures = result.front(attacker), (result.utility, result.leakage)
    for place, family in enumerate(result.families):
        rows = sorted(result.of(attacker, family), key=lambda row: row.strength or 0.0)
        look = {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)]}
        # drawn as it is: no formula, and not left out of the legend for a leading underscore
        label = (f" {family}" if family.startswith("_") else family).replace("$", r"\$")
        _line(axis, result, rows, scales, beside=_BESIDE[place % len(_BESIDE)], label=label, **look)
    reference = [row for row in result.of(attacker) if row.family not in result.families]
    _line(
        axis, result, reference, scales, beside=_BESIDE[0], label="no defense", color="black", marker="*", markersize=14
    )
    ends = [[scale.at(row.measured(name).value) for row in front] for scale, name in zip(scales, measures, strict=True)]
    axis.plot(
        *ends,
        linestyle="none",
        marker="o",
        markersize=17,
        markerfacecolor="none",
        markeredgecolor="#444444",
        markeredgewidth=1.3,
        label="Pareto front",
        zorder=1,
    )
    axis.grid(color="#e4e4e4", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _line(
    axis: Any,
    result: TradeoffResult,
    rows: Sequence[TradeoffRow],
    scales: Sequence[_Scale],
    *,
    beside: tuple[int, int, str],
    **look: Any,
) -> None:
    """A family with its intervals, the strength beside each point."""
    measures = (result.utility, result.leakage)
    points = [[row.measured(name) for row in rows] for name in measures]
    places = [[scale.at(each.value) for each in values] for scale, values in zip(scales, points, strict=True)]
    reach = [[scale.reach(each) for each in values] for scale, values in zip(scales, points, strict=True)]
    errors = [[[end[side] for end in ends] for side in (0, 1)] for ends in reach]
    axis.errorbar(
        *places,
        xerr=errors[0],
        yerr=errors[1],
        linewidth=1.4,
        elinewidth=0.7,
        capsize=2,
        **{"markersize": 7, **look},
    )
    for place, row in enumerate(rows):
        values = [each[place].value for each in points]
        off = [value for value, scale in zip(values, scales, strict=True) if scale.is_off(value)]
        words = ["" if row.strength is None else f"{row.strength:g}", *(f"({value:.3g})" for value in off)]
        axis.annotate(
            " ".join(words).strip(),
            (places[0][place], places[1][place]),
            xytext=beside[:2],
            textcoords="offset points",
            horizontalalignment=beside[2],
            fontsize=8,
            color=look["color"],
        )


class _Scale:
    """Where values stand on an axis, those that it cannot show at its end."""

    def __init__(self, name: str, values: Sequence[float]) -> None:
        self._name = name
        shown = [value for value in values if math.isfinite(value)] or [0.0]
        positive = [value for value in shown if value > 0]
        spread = bool(positive) and min(shown) >= 0 and max(positive) > _SPAN_FOR_LOG * min(positive)
        self._log = spread and name not in ("test_accuracy", "psnr", "utility_1")
        # an error far below the largest is an exact copy, and must not take the room of all others
        self._least = max(positive) / _LARGEST_SPAN if self._log and name == "mse" else 0.0
        self._most = _EXACT_PSNR if name == "psnr" else math.inf
        kept = [value for value in shown if not self.is_off(value)] or [1.0]
        low, high = min(kept), max(kept)
        span = high - low or abs(high) or 1.0
        self._below, self._above = (low / 3, high * 3) if self._log else (low - span / 8, high + span / 8)

    def is_off(self, value: float) -> bool:
        """Whether the axis cannot show a value."""
        return not math.isfinite(value) or value > self._most or (self._log and value <= self._least)

    def at(self, value: float) -> float:
        """The place of a value."""
        if not self.is_off(value):
            return value
        return self._above if value > self._least else self._below

    def reach(self, estimate: Estimate) -> tuple[float, float]:
        """How far the interval reaches down and up from the place of the value; not at all where it has no end."""
        if self.is_off(estimate.value) or not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
            return 0.0, 0.0
        low = max(estimate.low, self._below) if self._log else estimate.low
        return max(0.0, estimate.value - low), estimate.high - estimate.value

    def apply(self, axis: Any, which: str) -> None:
        """Logarithmic or not, and the better end up or right."""
        if self._log:
            getattr(axis, f"set_{which}scale")("log")
        if self._name in _LESS_IS_BETTER:
            getattr(axis, f"invert_{which}axis")()


def _better(name: str, verb: str) -> str:
    return f"  (lower {verb})" if name in _LESS_IS_BETTER else f"  (higher {verb})"
