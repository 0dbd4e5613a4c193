"""The result of an audit as a small table with marks, and what changed between two, for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from reconrisk.audit.verdict import percent
from reconrisk.core.rounding import rounded_up

if TYPE_CHECKING:
    from reconrisk.audit.audit_result import AuditLine, AuditResult
    from reconrisk.audit.comparison import AuditComparison, LineChange

_WIDTH = 160
_COLUMNS = ("goal", "defense", "rebuilt", "", "best attack", "guess", "bound", "verdict")
_CHANGES = ("goal", "defense", "", "rebuilt", "", "best attack", "bound", "change")
_KEY = "Dot and line: best attack with interval; diamond: guess without the release; bar: bound on any attack covered."


def notebook_html(result: AuditResult) -> str:
    """The sentence and one row for each goal and defense, with a mark of attack, guess and bound from 0 to 100%.

    Guarantee: no record is shown, and no name becomes markup.
    """
    missing = result.planned - result.done
    note = f" {missing} of {result.planned} trials were not run." if missing else ""
    note += "".join(f" Warning: {words}." for words in result.warnings)
    rows = [_row(line) for line in result.lines]
    return f"<div>{_table(result.sentence(), _COLUMNS, rows)}<p><small>{escape(_KEY + note)}</small></p></div>"


def comparison_html(comparison: AuditComparison) -> str:
    """The sentence, two rows for each goal and defense that both audits have, and the settings that differ.

    Guarantee: no record is shown, and no name becomes markup.
    """
    rows = [row for line in comparison.lines for row in _change_rows(line)]
    notes = [str(setting) for setting in comparison.settings] or ["no setting differs"]
    notes += [f"only before: {text}" for text in comparison.only_before]
    notes += [f"only after: {text}" for text in comparison.only_after]
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<div>{_table(comparison.sentence(), _CHANGES, rows)}<ul>{listed}</ul></div>"


def _table(sentence: str, columns: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f'<th scope="col" style="text-align:left">{escape(name)}</th>' for name in columns)
    return f"<p>{escape(sentence)}</p><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cells(*cells: str) -> str:
    """A row of what is markup already."""
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"


def _change_rows(line: LineChange) -> Iterator[str]:
    chance = "" if line.p_value is None else f" (p = {line.p_value:.2g})"
    for when, each, said in (("before", line.before, ""), ("after", line.after, f"{line.change.value}{chance}")):
        words = (str(each.goal), each.defense, when, percent(each.success))
        rest = (each.best_attack or "none", _bound(each), said)
        yield _cells(*map(escape, words), _mark(each), *map(escape, rest))


def _bound(line: AuditLine) -> str:
    return "none" if line.bound is None else f"≤ {rounded_up(100 * line.bound.value)}%"


def _row(line: AuditLine) -> str:
    standing = "".join(f"; {check.standing.value}" for check in line.limits)
    words = (str(line.goal), line.defense, percent(line.success))
    rest = (line.best_attack or "none", percent(line.baseline), _bound(line), f"{line.verdict.value}{standing}")
    return _cells(*map(escape, words), _mark(line), *map(escape, rest))


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
