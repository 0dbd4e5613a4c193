"""Comparison of two audits: settings that differ, and changes of the success that are beyond chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.stats import fisher_exact

from reconrisk.core.guarantee import Estimate
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.storage.text_table import align_columns
from reconrisk.studies.audit.result import AuditLine, AuditResult, measured_columns
from reconrisk.studies.audit.words import format_percent, line_cells

ABSENT = "absent"
"""Placeholder for a setting that one of two audits does not have."""


class Change(Enum):
    """Change of the success from the first audit to the second."""

    MORE = "more is rebuilt"
    LESS = "less is rebuilt"
    CHANCE = "no difference beyond chance"
    NOT_RUN = "not measured in both"


@serializable("setting-change")
@dataclass(frozen=True)
class SettingChange:
    """A setting that differs between two audits.

    Attributes:
        name: Name of the setting.
        before: Value in the first audit, as text.
        after: Value in the second audit, as text.
    """

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        """Describe the setting by its parts that differ."""
        if ABSENT in (self.before, self.after):
            return f"{self.name}: only {'after' if self.before == ABSENT else 'before'}"
        before, after = self.before.split(", "), self.after.split(", ")
        old, new = ([part for part in one if part not in other] for one, other in ((before, after), (after, before)))
        if not old or not new:  # one side only has additional parts
            return f"{self.name}: {self.before} -> {self.after}"
        return f"{self.name}: {', '.join(old)} -> {', '.join(new)}"


@serializable("line-change")
@dataclass(frozen=True)
class LineChange:
    """Change of one goal under one defense.

    Attributes:
        before: Line of the first audit.
        after: Line of the second audit.
        change: Direction of the change.
        p_value: Upper bound on the probability of a difference this large on any line if no attack's success differs;
            None if records share updates. Disjoint intervals then decide.
    """

    before: AuditLine
    after: AuditLine
    change: Change
    p_value: float | None = None

    def to_row(self) -> Row:
        """Return both successes and their difference as values by name."""
        return {
            "goal": str(self.before.goal),
            "defense_before": self.before.defense,
            "defense_after": self.after.defense,
            **measured_columns("before", self.before.success),
            **measured_columns("after", self.after.success),
            "change": self.change.value,
            "p_value": self.p_value,
        }


@serializable("audit-comparison")
@dataclass(frozen=True)
class AuditComparison(Result):
    """Comparison of two audits: settings, and the success of attacks line by line.

    Attributes:
        before: Run of the first audit.
        after: Run of the second audit.
        confidence: Smaller confidence of the two audits.
        settings: Settings that differ.
        lines: Changes of the lines that both audits have.
        only_before: Goals and defenses of the first audit only.
        only_after: Goals and defenses of the second audit only.
    """

    before: str
    after: str
    confidence: float
    settings: tuple[SettingChange, ...]
    lines: tuple[LineChange, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()

    def lines_with(self, change: Change) -> tuple[LineChange, ...]:
        """Return the lines with this change."""
        return tuple(line for line in self.lines if line.change is change)

    @property
    def sentence(self) -> str:
        """Changes in one sentence."""
        parts = []
        for change in Change:
            shown = []
            for line in self.lines_with(change):
                defenses = dict.fromkeys((line.before.defense, line.after.defense))
                shares = " -> ".join(
                    format_percent(each.success).partition(" [")[0] for each in (line.before, line.after)
                )
                shown.append(f"{line.before.goal} under {' -> '.join(defenses)} {shares}")
            if shown:
                parts.append(f"{change.value} ({', '.join(shown)})")
        return f"From {self.before} to {self.after}: {'; '.join(parts) or 'no goal and defense is in both audits'}."

    def table(self) -> str:
        """Return the settings that differ, and a table of the measured success."""
        parts = ["settings that differ" if self.settings else "no setting differs"]
        parts += [f"  {setting}" for setting in self.settings]
        parts += ["", *_table(self.lines)] if self.lines else []
        parts += [f"only before: {text}" for text in self.only_before]
        parts += [f"only after: {text}" for text in self.only_after]
        return "\n".join(parts)

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each goal and defense that both audits have."""
        return tuple(line.to_row() for line in self.lines)

    def _repr_html_(self) -> str:
        """Return the table with marks for notebooks."""
        from reconrisk.studies.audit.words import comparison_html

        return comparison_html(self)


def compare(before: AuditResult, after: AuditResult) -> AuditComparison:
    r"""Compare two audits.

    Lines are matched by goal and by the name of the defense in reports. If one defense is left on each side, these two
    are matched as well. The best attacks of a line are compared by Fisher's exact test. Its p-value is multiplied by
    the number of pairs of attacks and by the number of lines (Bonferroni correction).

    Args:
        before: Result of the first audit.
        after: Result of the second audit.

    Returns:
        Settings and lines that differ.

    Assumes: updates of one record each. Trials are then independent, or share records or are drawn without
    replacement, which makes differences by chance smaller. Otherwise disjoint intervals decide.
    Guarantee: if no attack's success differs, any line is reported as more or less with probability at most one minus
    the smaller confidence. If intervals decide, each line is reported so with at most twice that probability.
    Edge cases: lines of one audit only are listed and not compared.
    Reference: `Fisher (1922) <https://doi.org/10.2307/2340521>`_, exact test for two proportions.

    >>> import torch
    >>> from reconrisk.data.dataset import Dataset
    >>> from reconrisk.defenses.noise import gaussian_noise
    >>> from reconrisk.studies.audit.run import audit
    >>> data = Dataset("toy", torch.rand(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
    >>> model = torch.nn.Linear(4, 2)
    >>> before = audit(model, data, attacks=["analytic"], trials=8)
    >>> after = audit(model, data, attacks=["analytic"], trials=8, defenses=gaussian_noise(10.0))
    >>> compare(before, after).lines[0].change.value
    'less is rebuilt'
    """
    old, new = dict(_describe_settings(before)), dict(_describe_settings(after))
    pairs = _match_lines(before, after)
    confidence = min(before.confidence, after.confidence)
    single = before.subject.batch_size == after.subject.batch_size == 1
    only_before, only_after = (
        tuple(f"{line.goal} under {line.defense}" for line in found.lines if line not in [pair[side] for pair in pairs])
        for side, found in enumerate((before, after))
    )
    return AuditComparison(
        before=before.run,
        after=after.run,
        confidence=confidence,
        settings=tuple(
            SettingChange(name, old.get(name, ABSENT), new.get(name, ABSENT))
            for name in dict.fromkeys((*old, *new))
            if old.get(name, ABSENT) != new.get(name, ABSENT)
        ),
        lines=tuple(_line_change(*pair, len(pairs), confidence, single=single) for pair in pairs),
        only_before=only_before,
        only_after=only_after,
    )


def _match_lines(before: AuditResult, after: AuditResult) -> list[tuple[AuditLine, AuditLine]]:
    """Return the pairs of lines with the same goal and defense."""
    old, new = ([defense.label for defense in found.defenses] for found in (before, after))
    others = {label: label for label in old if label in new}
    left = [[label for label in labels if label not in others] for labels in (old, new)]
    if len(left[0]) == len(left[1]) == 1:  # the same defense with other settings, most likely
        others[left[0][0]] = left[1][0]
    there = {(line.goal, line.defense): line for line in after.lines}
    wanted = ((line, (line.goal, others.get(line.defense, ABSENT))) for line in before.lines)
    return [(line, there[key]) for line, key in wanted if line.defense in others and key in there]


def _line_change(before: AuditLine, after: AuditLine, lines: int, confidence: float, *, single: bool) -> LineChange:
    old, new = before.success, after.success
    if not old.samples or not new.samples:
        return LineChange(before, after, Change.NOT_RUN)
    direction = Change.MORE if new.value > old.value else Change.LESS
    if not single:  # records of one update are not independent, so the exact test does not apply
        apart = old.high < new.low or new.high < old.low
        return LineChange(before, after, direction if apart else Change.CHANCE)
    comparisons = lines  # of which any might have differed by chance
    for line in (before, after):
        comparisons *= max(1, sum(not outcome.is_baseline for outcome in line.outcomes))
    p_value = min(1.0, comparisons * _fisher(old, new))
    return LineChange(before, after, direction if p_value <= 1 - confidence else Change.CHANCE, p_value)


def _fisher(before: Estimate, after: Estimate) -> float:
    """Return the p-value of the difference of two success counts under equal probabilities.

    >>> low, high = (Estimate(k / 8, 0.0, 1.0, 0.95, 8, "Clopper-Pearson") for k in (0, 8))
    >>> round(_fisher(low, high), 8), _fisher(low, low)  # 2 / binomial(16, 8)
    (0.0001554, 1.0)
    """
    # Estimates hold shares; the rounded product is the number of successes.
    counts = [(round(each.value * each.samples), each.samples) for each in (before, after)]
    return float(fisher_exact(np.array([[hits, samples - hits] for hits, samples in counts])).pvalue)


def _describe_settings(result: AuditResult) -> Iterator[tuple[str, str]]:
    """Yield the settings of an audit as names and texts."""
    subject, machine = result.subject, result.environment
    yield "model", subject.model
    yield "weights", subject.model_hash
    yield "data", subject.data
    yield "records", f"{subject.data_hash}, {subject.population} of shape {subject.shape} in {subject.data_range}"
    yield "release", subject.release
    yield "batch_size", str(subject.batch_size)
    yield "threat", str(result.threat)
    yield "goals", ", ".join(map(str, result.goals))
    yield (
        "limits",
        ", ".join(dict.fromkeys(str(check.limit) for line in result.lines for check in line.limits)) or "none",
    )
    yield "confidence", f"{result.confidence:g}"
    yield "seed", str(result.seed)
    yield "trials", f"{result.done} of {result.planned}"
    for defense in result.defenses:
        yield f"defense {defense.label}", defense.settings
    for attack in result.attacks:
        yield f"attack {attack.label}", attack.settings
    if result.training is not None:
        yield "training", repr(result.training.mechanism)
    yield from machine.versions
    yield "threads", str(machine.threads)
    yield "system", machine.system


def _table(lines: tuple[LineChange, ...]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("goal", "defense", "", "success", "best attack", "guess", "bound", "worst record", "verdict")
    ]
    for line in lines:
        for when, each in (("before", line.before), ("after", line.after)):
            goal, defense, *cells = line_cells(each)
            rows.append((goal, defense, when, *cells))
    texts = align_columns(rows)
    found = texts[:1]
    for number, line in enumerate(lines):
        found += texts[1 + 2 * number : 3 + 2 * number]
        chance = "" if line.p_value is None else f" (p = {line.p_value:.2g})"
        found.append(f"  {line.change.value}{chance}")
    return found
