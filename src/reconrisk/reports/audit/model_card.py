"""An audit as a paragraph and a table of Markdown, for the card of a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from reconrisk.core.storage.files import write_whole
from reconrisk.reports.audit.words import adversary, bounded, defense_name, interval, measured, released_thing
from reconrisk.reports.plain import escape_markdown

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditLine, AuditResult

_COLUMNS = ("goal", "defense", "rebuilt", "interval", "best attack", "best guess", "proved", "verdict")


def model_card(result: AuditResult) -> str:
    """The result as Markdown for a model card: verdict, table, threat model, how to repeat it.

    Guarantee: no record is named or shown. Names stand in code spans or are escaped, so that none of them becomes
    markup, a link or a cell of its own.
    """
    subject = result.subject
    version = dict(result.environment.versions).get("reconrisk", "")
    records = "one record" if subject.batch_size == 1 else f"{subject.batch_size} records"
    of = ":" if released_thing(result.threat) == "model" else f" ({records} each) of"
    head = (
        f"What can be rebuilt of a record from {escape_markdown(subject.release)}{of} "
        f"{_code(subject.model)} ({_code(subject.model_hash)}), measured on {subject.population} records of "
        f"{_code(subject.data)} with reconrisk {escape_markdown(version)} on {escape_markdown(result.created[:10])}."
    )
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *(_row(line) for line in result.lines)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    powers = "\n".join(f"- {name}: {words}." for name, words in adversary(result.threat))
    trials = f"{result.done} of {result.planned} trials, seed {result.seed}, run {_code(result.run)}"
    return "\n\n".join(
        [
            "## Reconstruction risk",
            head,
            escape_markdown(result.sentence),
            *(f"Warning: {escape_markdown(words)}." for words in result.warnings),
            table,
            f"Intervals hold for all attacks together with a confidence of {100 * result.confidence:.4g}%. "
            "Attacks that were not tried may do better; only what is proved speaks of those.",
            f"The adversary:\n\n{powers}",
            f"Based on {trials}.\n",
        ]
    )


def write_model_card(result: AuditResult, path: Path) -> Path:
    """Write :func:`model_card` to a file; it may be published.

    Args:
        result: The audit.
        path: The file.

    Returns:
        The path.
    """
    text = model_card(result).encode("utf-8", "replace")
    return write_whole(path, lambda temporary: temporary.write_bytes(text))


def _row(line: AuditLine) -> tuple[str, ...]:
    bound = line.bound
    standing = "".join(f"; {check.standing.value}" for check in line.limits)
    return (
        _code(str(line.goal)),
        escape_markdown(defense_name(line.defense)) if line.defense == "none" else _code(line.defense),
        measured(line.success),
        interval(line.success),
        _code(line.best_attack) if line.best_attack else "none",
        measured(line.baseline),
        "none" if bound is None else bounded(bound),
        f"{line.verdict.value}{standing}",
    )


def _code(words: str) -> str:
    """A code span that its content cannot leave, also inside a table."""
    words = " ".join(words.split()) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", words)), default=0))
    pad = " " if words.startswith("`") or words.endswith("`") else ""
    return f"{fence}{pad}{words}{pad}{fence}".replace("|", "\\|")
