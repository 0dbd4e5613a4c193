"""The result of an audit in words: one sentence, and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconrisk.core.guarantee import Estimate, Guarantee
from reconrisk.core.rounding import rounded_down, rounded_up
from reconrisk.core.threat import Knows, Sees

if TYPE_CHECKING:
    from reconrisk.audit.audit_result import AuditLine, AuditResult, Comparison


def sentence_of(result: AuditResult) -> str:
    """The verdict in one sentence: a contradiction first, then limits, then the first goal under every defense."""
    if result.contradictions:
        line, each = result.contradictions[0]
        return (
            f"{each.highest_attack} beats a bound that covers it under {line.defense}: {line.goal} with probability "
            f"{each.highest}, where {each.guarantee}; the mechanism or the code is wrong."
        )
    goal = result.goals[0]
    parts = [_clause(line) for line in result.lines if line.goal == goal]
    text = f"From {_seen(result)}, "
    text += f"{_goal_in_words(str(goal))}: " + "; ".join(parts) + "."
    for limit in dict.fromkeys(check.limit for _, check in result.exceeded):
        where = [_under(line.defense) for line, check in result.exceeded if check.limit == limit]
        text += f" The limit {limit} is exceeded {' and '.join(where)}."
    return text


def _seen(result: AuditResult) -> str:
    """What the adversary has to rebuild records from."""
    if result.threat.sees is Sees.FINAL_MODEL:
        known = Knows.OTHER_RECORDS in result.threat.knows
        return "the trained model and all records but one" if known else "the trained model"
    count = result.subject.batch_size
    return f"one update of {count} record{'s' if count > 1 else ''}"


def table_of(result: AuditResult) -> str:
    """One line for each goal and defense, then one for each guarantee, compared or why not, then what was left out.

    Warnings come last, beside the verdict.
    """
    rows = [
        ("goal", "defense", "success", "best attack", "guess", "bound", "worst record", "verdict"),
        *(_row(line) for line in result.lines),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += _guarantees(result)
    missing = result.planned - result.done
    if missing:
        lines.append(f"{missing} of {result.planned} trials were not run. Repeat with a store to go on.")
    used = [attack for attack in result.attacks if attack.prior is not None and not attack.is_baseline]
    lines += [f"{attack.label}: {attack.prior}" for attack in used]
    lines += [f"left out: {words}" for words in result.left_out]
    lines += [f"{attack.label}: {attack.remark}" for attack in result.attacks if attack.remark]
    lines += [f"WARNING: {words}." for words in result.warnings]
    return "\n".join([*lines, "", result.sentence()])


def _guarantees(result: AuditResult) -> list[str]:
    """Each distinct guarantee once: for what it holds, and how it stands to the attacks."""
    found: dict[Guarantee, list[tuple[AuditLine, Comparison]]] = {}
    for line in result.lines:
        for each in line.comparisons:
            found.setdefault(each.guarantee, []).append((line, each))
    return [f"{_where(where)}: {guarantee}; {_use(where)}" for guarantee, where in found.items()]


def _where(where: list[tuple[AuditLine, Comparison]]) -> str:
    goals, defenses = (
        dict.fromkeys(map(str, each)) for each in zip(*((a.goal, a.defense) for a, _ in where), strict=True)
    )
    return f"{', '.join(goals)} {' and '.join(map(_under, defenses))}"


def _use(where: list[tuple[AuditLine, Comparison]]) -> str:
    compared = [each for _, each in where if each.is_compared]
    if not compared:
        return f"not compared: {where[0][1].why}"
    known = [each.tightness for each in compared if each.tightness is not None]
    return f"compared, tightness {max(known):.2g}" if known else "compared"


def percent(estimate: Estimate) -> str:
    """A measured share with its interval, whose ends are rounded outward.

    >>> percent(Estimate(0.5, 0.2546, 0.7454, 0.95, 12, "Clopper-Pearson"))
    '50% [25.4, 74.6]'
    """
    if estimate.samples == 0:
        return "not run"
    low, high = rounded_down(100 * estimate.low, 3), rounded_up(100 * estimate.high, 3)
    return f"{100 * estimate.value:.3g}% [{low}, {high}]"


def _row(line: AuditLine) -> tuple[str, ...]:
    bound = line.bound
    standing = "".join(f"; {check.standing.value}" for check in line.limits)
    return (
        str(line.goal),
        line.defense,
        percent(line.success),
        line.best_attack or "none",
        f"{100 * line.baseline.value:.3g}%",
        "none" if bound is None else f"<= {rounded_up(100 * bound.value)}%",
        "none" if line.worst_record < 0 else f"{line.worst_record} ({line.worst_score:.3g})",
        f"{line.verdict.value}{standing}",
    )


def _clause(line: AuditLine) -> str:
    bound = line.bound
    proved = "" if bound is None else f", at most {rounded_up(100 * bound.value)}% by any adversary covered"
    return f"{_under(line.defense)} {percent(line.success)} of records by {line.best_attack or 'no attack'}{proved}"


def _under(defense: str) -> str:
    return "without a defense" if defense == "none" else f"under {defense}"


def _goal_in_words(goal: str) -> str:
    return f"rebuilt to {goal}"
