"""Texts of an audit: its sentence, its table, and small HTML tables for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from reconrisk.core.guarantee import IDEAL_NOISE, Estimate, Guarantee, format_rounded_down, format_rounded_up
from reconrisk.core.storage.text_table import align_columns
from reconrisk.core.threat import Knows, Sees

if TYPE_CHECKING:
    from reconrisk.studies.audit.comparison import AuditComparison
    from reconrisk.studies.audit.result import AuditLine, AuditResult, Comparison


def write_sentence(result: AuditResult) -> str:
    """Return the verdict in one sentence: a contradiction, or the first goal under every defense and broken limits.

    Args:
        result: Result of an audit.

    Returns:
        The sentence, followed by one for each limit that is exceeded.
    """
    if result.contradictions:
        line, each = result.contradictions[0]
        return (
            f"{each.highest_attack} beats a bound that covers it under {line.defense}: {line.goal} with probability "
            f"{each.highest}, although {each.guarantee}; the mechanism or the code is wrong."
        )
    if result.contradiction_sentences:
        return result.contradiction_sentences[0].partition(": ")[2]
    goal = result.goals[0]
    parts = []
    for line in result.lines:
        if line.goal == goal:
            bound = line.bound
            attack = line.best_attack.partition("(")[0]  # settings are in the table
            found = f"{attack} rebuilds {format_percent(line.success)} of records"
            found = found if line.success.samples else "no attack was run to its end"
            most = ""
            if bound is not None:
                most = f", and no covered adversary rebuilds more than {format_rounded_up(100 * bound.value)}%"
                if IDEAL_NOISE in bound.assumptions:
                    most += " (low bits of the noise not counted: code other than rr.defenses added it)"
            parts.append(f"{_under(line.defense)}, {found}{most}")
    count = result.subject.batch_size
    seen = f"one update of {count} record{'s' if count > 1 else ''}"
    if result.threat.sees is Sees.EVERY_UPDATE:
        seen = "every update of the training"
    if result.threat.sees is Sees.FINAL_MODEL:
        known = Knows.OTHER_RECORDS in result.threat.knows
        seen = "the trained model and all records but one" if known else "the trained model"
    text = f"From {seen}, with the goal {goal}: {'; '.join(parts)}."
    for limit in dict.fromkeys(check.limit for _, check in result.exceeded_limits):
        where = [_under(line.defense) for line, check in result.exceeded_limits if check.limit == limit]
        text += f" The limit {limit} is exceeded {' and '.join(where)}."
    return text


def write_table(result: AuditResult) -> str:
    """Return the result as a text table.

    Args:
        result: Result of an audit.

    Returns:
        A row for each goal and defense, then the guarantees, checks of the noise, missing trials, priors, omitted
        attacks, remarks and warnings. Warnings come last, next to the sentence that follows.
    """
    rows = [
        ("goal", "defense", "success", "best attack", "guess", "bound", "worst record", "verdict"),
        *(line_cells(line) for line in result.lines),
    ]
    lines = [*align_columns(rows), *_guarantees(result)]
    lines += [f"check: {each}" for each in result.noise_checks.every]
    missing = result.planned - result.done
    if missing:
        lines.append(f"{missing} of {result.planned} trials were not run. Run the audit with a store to resume it.")
    used = [attack for attack in result.attacks if attack.prior is not None and not attack.is_baseline]
    lines += [f"{attack.label}: {attack.prior}" for attack in used]
    lines += [f"left out: {words}" for words in result.left_out]
    lines += [f"{attack.label}: {attack.remark}" for attack in result.attacks if attack.remark]
    lines += [f"WARNING: {words}." for words in result.warnings]
    return "\n".join(lines)


def _guarantees(result: AuditResult) -> list[str]:
    """Return one line for each distinct guarantee: its goals and defenses, and its comparison with the attacks."""
    found: dict[Guarantee, list[tuple[AuditLine, Comparison]]] = {}
    for line in result.lines:
        for each in line.comparisons:
            found.setdefault(each.guarantee, []).append((line, each))
    lines = []
    for guarantee, where in found.items():
        goals = ", ".join(dict.fromkeys(str(line.goal) for line, _ in where))
        under = " and ".join(dict.fromkeys(_under(line.defense) for line, _ in where))
        compared = [each for _, each in where if each.is_compared]
        use = "compared" if compared else f"not compared: {where[0][1].why}"
        known = [each.tightness for each in compared if each.tightness is not None]
        use += f", tightness {max(known):.2g}" if known else ""
        lines.append(f"{goals} {under}: {guarantee}; {use}")
    return lines


def format_percent(estimate: Estimate) -> str:
    """Return a measured share in percent with its interval, whose ends are rounded outward.

    Args:
        estimate: The measured share.

    Returns:
        The text; ``"not run"`` without samples.

    >>> format_percent(Estimate(0.5, 0.2546, 0.7454, 0.95, 12, "Clopper-Pearson"))
    '50% [25.4, 74.6]'
    """
    if estimate.samples == 0:
        return "not run"
    low, high = (
        format_rounded_down(100 * estimate.low, 3),
        format_rounded_up(100 * estimate.high, 3),
    )  # never too narrow
    return f"{100 * estimate.value:.3g}% [{low}, {high}]"


def line_cells(line: AuditLine) -> tuple[str, ...]:
    """Return the cells of a line in a table.

    Args:
        line: Result for one goal and defense.

    Returns:
        Goal, defense, success, best attack, guess, bound, most exposed record and verdict.
    """
    bound = line.bound
    standing = "".join(f"; {check.standing.value}" for check in line.limits)
    return (
        str(line.goal),
        line.defense,
        format_percent(line.success),
        line.best_attack or "none",
        f"{100 * line.baseline.value:.3g}%",
        "none" if bound is None else f"<= {format_rounded_up(100 * bound.value)}%",
        "none" if line.worst_record < 0 else f"{line.worst_record} ({line.worst_score:.3g})",
        f"{line.verdict.value}{standing}",
    )


def _under(defense: str) -> str:
    return "without a defense" if defense == "none" else f"under {defense}"


_WIDTH = 160  # pixels of the mark, which shows shares from 0 to 1
_COLUMNS = ("goal", "defense", "rebuilt", "", "best attack", "guess", "bound", "verdict")
_CHANGES = ("goal", "defense", "", "rebuilt", "", "best attack", "bound", "change")
_KEY = "Dot and line: best attack with interval; diamond: guess without the release; bar: bound for covered attacks."


def notebook_html(result: AuditResult) -> str:
    """Return the result as an HTML table for notebooks.

    Args:
        result: Result of an audit.

    Returns:
        The sentence, and a row for each goal and defense with a mark of attack, guess and bound from 0 to 100 %.

    Guarantee: no record is shown, and names are escaped.
    """
    missing = result.planned - result.done
    note = f" {missing} of {result.planned} trials were not run." if missing else ""
    note += "".join(f" Warning: {words}." for words in result.warnings)
    rows = []
    for line in result.lines:
        standing = "".join(f"; {check.standing.value}" for check in line.limits)
        words = (str(line.goal), line.defense, format_percent(line.success))
        verdict = f"{line.verdict.value}{standing}"
        rest = (line.best_attack or "none", format_percent(line.baseline), _format_bound(line), verdict)
        rows.append(_cells(*map(escape, words), _draw_mark(line), *map(escape, rest)))
    return f"<div>{_table(result.sentence, _COLUMNS, rows)}<p><small>{escape(_KEY + note)}</small></p></div>"


def comparison_html(comparison: AuditComparison) -> str:
    """Return the comparison of two audits as an HTML table for notebooks.

    Args:
        comparison: Comparison of two audits.

    Returns:
        The sentence, two rows for each goal and defense that both audits have, and the settings that differ.

    Guarantee: no record is shown, and names are escaped.
    """
    rows = []
    for line in comparison.lines:
        chance = "" if line.p_value is None else f" (p = {line.p_value:.2g})"
        for when, each, change in (("before", line.before, ""), ("after", line.after, f"{line.change.value}{chance}")):
            words = (str(each.goal), each.defense, when, format_percent(each.success))
            rest = (each.best_attack or "none", _format_bound(each), change)
            rows.append(_cells(*map(escape, words), _draw_mark(each), *map(escape, rest)))
    notes = [str(setting) for setting in comparison.settings] or ["no setting differs"]
    notes += [f"only before: {text}" for text in comparison.only_before]
    notes += [f"only after: {text}" for text in comparison.only_after]
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<div>{_table(comparison.sentence, _CHANGES, rows)}<ul>{listed}</ul></div>"


def _table(sentence: str, columns: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f'<th scope="col" style="text-align:left">{escape(name)}</th>' for name in columns)
    return f"<p>{escape(sentence)}</p><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cells(*cells: str) -> str:
    """Return a table row of cells that are already markup."""
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"


def _format_bound(line: AuditLine) -> str:
    return "none" if line.bound is None else f"≤ {format_rounded_up(100 * line.bound.value)}%"


def _draw_mark(line: AuditLine) -> str:
    """Return the mark of a row as SVG; it shows numbers only, so that nothing needs to be escaped."""
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
    return round(8 + (_WIDTH - 16) * share, 1)  # a margin of 8 pixels, so that a dot at 0 or 1 is not cut off
