"""The result of an audit as a small table with marks, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from reconrisk.audit.verdict import percent
from reconrisk.core.rounding import rounded_up

if TYPE_CHECKING:
    from reconrisk.audit.audit_result import AuditLine, AuditResult

_WIDTH = 160
_COLUMNS = ("goal", "defense", "rebuilt", "", "best attack", "guess", "bound", "verdict")
_KEY = "Dot and line: best attack with interval; diamond: guess without the update; bar: bound on any attack covered."


def notebook_html(result: AuditResult) -> str:
    """The sentence and one row for each goal and defense, with a mark of attack, guess and bound from 0 to 100%.

    Guarantee: no record is shown, and no name becomes markup.
    """
    head = "".join(f'<th scope="col" style="text-align:left">{escape(name)}</th>' for name in _COLUMNS)
    body = "".join(_row(line) for line in result.lines)
    missing = result.planned - result.done
    note = f" {missing} of {result.planned} trials were not run." if missing else ""
    return (
        f"<div><p>{escape(result.sentence())}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p><small>{escape(_KEY + note)}</small></p></div>"
    )


def _row(line: AuditLine) -> str:
    bound = line.bound
    standing = "".join(f"; {check.standing.value}" for check in line.limits)
    cells = [
        str(line.goal),
        line.defense,
        percent(line.success),
        None,
        line.best_attack or "none",
        percent(line.baseline),
        "none" if bound is None else f"≤ {rounded_up(100 * bound.value)}%",
        f"{line.verdict.value}{standing}",
    ]
    written = (_mark(line) if cell is None else escape(cell) for cell in cells)
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in written) + "</tr>"


def _mark(line: AuditLine) -> str:
    """Numbers alone: nothing of a name is drawn."""
    bound, success, guess = line.bound, line.success, line.baseline
    parts = [f'<line x1="{_x(0)}" y1="10" x2="{_x(1)}" y2="10" stroke="#999"/>']
    if bound is not None:
        x = _x(bound.value)
        parts.append(f'<line x1="{x}" y1="2" x2="{x}" y2="18" stroke="#2f6fb7" stroke-width="3"/>')
    if guess.samples:
        x = _x(guess.value)
        corners = f"{x},5 {x + 5},10 {x},15 {x - 5},10"
        parts.append(f'<polygon points="{corners}" fill="none" stroke="#777" stroke-width="2"/>')
    if success.samples:
        ends = f'x1="{_x(success.low)}" y1="10" x2="{_x(success.high)}" y2="10"'
        parts.append(f'<line {ends} stroke="#c9502d" stroke-width="2"/>')
        parts.append(f'<circle cx="{_x(success.value)}" cy="10" r="4" fill="#c9502d"/>')
    return f'<svg width="{_WIDTH}" height="20" role="img" aria-label="the numbers of this row">{"".join(parts)}</svg>'


def _x(share: float) -> float:
    return round(8 + (_WIDTH - 16) * share, 1)
