"""An audit as a Markdown section for a model card."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from reconrisk.core.storage.files import write_atomically
from reconrisk.reports.audit.words import (
    defense_name,
    describe_adversary,
    format_bound,
    format_estimate,
    interval,
    released_thing,
)
from reconrisk.reports.plain import escape_markdown

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditLine, AuditResult

_COLUMNS = ("goal", "defense", "rebuilt", "interval", "best attack", "best guess", "proved", "verdict")


def model_card(result: AuditResult) -> str:
    """Return an audit as a Markdown section: verdict, table, threat model and the command that repeats it.

    Args:
        result: The audit.

    Returns:
        The Markdown text.

    Guarantee: no record is named or shown. Names are escaped or in code spans, so that none becomes markup, a link or
    a table cell.

    >>> import torch, reconrisk as rr
    >>> data = rr.data.Dataset("toy", torch.rand(20, 4), torch.arange(20) % 2)
    >>> card = model_card(rr.audit(torch.nn.Linear(4, 2), data, trials=2))
    >>> card.splitlines()[0]
    '## Reconstruction risk'
    """
    subject = result.subject
    version = dict(result.environment.versions).get("reconrisk", "")
    records = "one record" if subject.batch_size == 1 else f"{subject.batch_size} records"
    of = ":" if released_thing(result.threat) == "model" else f" ({records} each) of"
    head = (
        f"Reconstruction of records from {escape_markdown(subject.release)}{of} "
        f"{_code(subject.model)} ({_code(subject.model_hash)}), measured on {subject.population} records of "
        f"{_code(subject.data)} with reconrisk {escape_markdown(version)} on {escape_markdown(result.created[:10])}."
    )
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *(_row(line) for line in result.lines)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    powers = "\n".join(f"- {name}: {words}." for name, words in describe_adversary(result.threat))
    trials = f"{result.done} of {result.planned} trials, seed {result.seed}, run {_code(result.run)}"
    return "\n\n".join(
        [
            "## Reconstruction risk",
            head,
            escape_markdown(result.sentence),
            *(f"Warning: {escape_markdown(words)}." for words in result.warnings),
            table,
            f"Intervals hold jointly for all attacks with {100 * result.confidence:.4g}% confidence. "
            "Attacks that were not tried may do better; only proved bounds cover them.",
            f"The adversary:\n\n{powers}",
            f"Based on {trials}.\n",
        ]
    )


def write_model_card(result: AuditResult, path: Path) -> Path:
    """Write :func:`model_card` to a file that may be published.

    Args:
        result: The audit.
        path: The file.

    Returns:
        The path.
    """
    text = model_card(result).encode("utf-8", "replace")
    return write_atomically(path, lambda temporary: temporary.write_bytes(text))


def _row(line: AuditLine) -> tuple[str, ...]:
    bound = line.bound
    standing = "".join(f"; {check.standing.value}" for check in line.limits)
    return (
        _code(str(line.goal)),
        escape_markdown(defense_name(line.defense)) if line.defense == "none" else _code(line.defense),
        format_estimate(line.success),
        interval(line.success),
        _code(line.best_attack) if line.best_attack else "none",
        format_estimate(line.baseline),
        "none" if bound is None else format_bound(bound),
        f"{line.verdict.value}{standing}",
    )


def _code(words: str) -> str:
    """Return a code span that its content cannot close, also inside a table."""
    words = " ".join(words.split()) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", words)), default=0))
    pad = " " if words.startswith("`") or words.endswith("`") else ""
    return f"{fence}{pad}{words}{pad}{fence}".replace("|", "\\|")
