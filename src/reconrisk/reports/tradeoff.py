"""Leakage against utility of defenses, as a picture or as a page with its table."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reconrisk.core.guarantee import Estimate
from reconrisk.core.storage.files import write_atomically
from reconrisk.reports.drawing import save_figure

if TYPE_CHECKING:
    from reconrisk.studies.tradeoff.result import TradeoffResult, TradeoffRow

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#000000")
"""Colours of Okabe and Ito, distinct for people with any kind of colour vision; markers differ too."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_SPAN_FOR_LOG = 50.0  # an axis is logarithmic if its values span more than this factor
_LARGEST_SPAN = 1e5  # smaller errors than the largest divided by this count as exact copies
_EXACT_PSNR = 50.0  # dB above which a reconstruction counts as an exact copy
_OFFSETS = ((7, 6, "left"), (-7, 6, "right"), (7, -13, "left"), (-7, -13, "right"))
"""Offset and alignment of the strength labels of each family, so that labels of neighbours do not overlap."""

_PANELS = (
    ("unaware", "attacker who does not know the defense"),
    ("aware", "attacker who knows mask, clipping and noise"),
)
_NAMES = {
    "test_accuracy": "test accuracy",
    "training_loss": "training loss",
    "test_loss": "test loss",
    "utility_1": "U1: share of the gradient that remains",
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
    """Draw leakage against utility, with one panel for the unaware and one for the aware attacker.

    A family is a line from its weakest to its strongest setting, with finite intervals over seeds. Rings mark the
    Pareto front of each attacker; the star is the undefended run. Better is always up and to the right, so axes of
    quantities that should be small are inverted.

    Args:
        result: Result of ``rr.tradeoff``.
        path: The file. The suffix .png, .svg or .pdf sets the format; .html is a page with table and dominance.

    Returns:
        The path.

    Guarantee: the file is written completely or not at all. Names of families are escaped.
    Edge cases: exact copies (error near zero, more than 50 dB) and infinite values are drawn at the end of the axis,
    with the value in brackets.
    """
    path = Path(path)
    figure = _figure(result)
    if path.suffix != ".html":
        return save_figure(figure, path, secret=result.is_private)
    from markupsafe import escape  # imported late, as matplotlib: needed only to write

    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    svg = drawn.getvalue()
    families = result.families
    pairs = [(one, other) for one in families for other in families if one != other]
    statements = [str(result.dominates(*pair, attacker=name)) for name, _ in _PANELS for pair in pairs]
    text = _PAGE.format(
        figure=svg[svg.index("<svg") :],
        statements="".join(f"<li>{escape(sentence)}</li>" for sentence in statements),
        table=escape(result.table()),
        signature=escape(result.signature),
    )
    page = text.encode("utf-8", "replace")
    return write_atomically(path, lambda temporary: temporary.write_bytes(page), secret=result.is_private)


def _figure(result: TradeoffResult) -> Any:
    from matplotlib.figure import Figure  # slow import, needed only to draw

    figure = Figure(figsize=(11.5, 5.2), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    measures = (result.utility, result.leakage)
    scales = [_Scale(name, [row.estimate_for(name).value for row in result.rows]) for name in measures]
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
    front, measures = result.pareto_rows(attacker), (result.utility, result.leakage)
    for place, family in enumerate(result.families):
        rows = sorted(result.rows_for(attacker, family), key=lambda row: row.strength or 0.0)
        look = {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)]}
        # matplotlib reads $...$ as a formula and hides labels with a leading underscore
        label = (f" {family}" if family.startswith("_") else family).replace("$", r"\$")
        _line(axis, result, rows, scales, offset=_OFFSETS[place % len(_OFFSETS)], label=label, **look)
    reference = [row for row in result.rows_for(attacker) if row.family not in result.families]
    _line(
        axis,
        result,
        reference,
        scales,
        offset=_OFFSETS[0],
        label="no defense",
        color="black",
        marker="*",
        markersize=14,
    )
    ends = [
        [scale.at(row.estimate_for(name).value) for row in front] for scale, name in zip(scales, measures, strict=True)
    ]
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
    offset: tuple[int, int, str],
    **look: Any,
) -> None:
    """Draw a family with its intervals, and the strength next to each point."""
    measures = (result.utility, result.leakage)
    points = [[row.estimate_for(name) for row in rows] for name in measures]
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
            xytext=offset[:2],
            textcoords="offset points",
            horizontalalignment=offset[2],
            fontsize=8,
            color=look["color"],
        )


class _Scale:
    """Positions of values on an axis; values that it cannot show are drawn at its end."""

    def __init__(self, name: str, values: Sequence[float]) -> None:
        self._name = name
        shown = [value for value in values if math.isfinite(value)] or [0.0]
        positive = [value for value in shown if value > 0]
        spread = bool(positive) and min(shown) >= 0 and max(positive) > _SPAN_FOR_LOG * min(positive)
        self._log = spread and name not in ("test_accuracy", "psnr", "utility_1")
        # an error far below the largest is an exact copy; showing it to scale would squeeze all other points
        self._least = max(positive) / _LARGEST_SPAN if self._log and name == "mse" else 0.0
        self._most = _EXACT_PSNR if name == "psnr" else math.inf
        kept = [value for value in shown if not self.is_off(value)] or [1.0]
        low, high = min(kept), max(kept)
        span = high - low or abs(high) or 1.0
        self._below, self._above = (low / 3, high * 3) if self._log else (low - span / 8, high + span / 8)

    def is_off(self, value: float) -> bool:
        """Return True if the axis cannot show the value."""
        return not math.isfinite(value) or value > self._most or (self._log and value <= self._least)

    def at(self, value: float) -> float:
        """Return the position of a value."""
        if not self.is_off(value):
            return value
        return self._above if value > self._least else self._below

    def reach(self, estimate: Estimate) -> tuple[float, float]:
        """Return the lengths of the interval below and above the value; 0 if an end is infinite."""
        if self.is_off(estimate.value) or not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
            return 0.0, 0.0
        low = max(estimate.low, self._below) if self._log else estimate.low
        return max(0.0, estimate.value - low), estimate.high - estimate.value

    def apply(self, axis: Any, which: str) -> None:
        """Set a logarithmic scale where needed, and invert the axis so that better is up or right."""
        if self._log:
            getattr(axis, f"set_{which}scale")("log")
        if self._name in _LESS_IS_BETTER:
            getattr(axis, f"invert_{which}axis")()


def _better(name: str, verb: str) -> str:
    return f"  (lower {verb})" if name in _LESS_IS_BETTER else f"  (higher {verb})"
