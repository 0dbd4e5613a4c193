"""Text for the parts of an audit: verdict, probabilities, intervals, times and the adversary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconrisk.bounds.corridor import format_probability
from reconrisk.core.guarantee import Estimate, Guarantee, Quantity, format_rounded_down, format_rounded_up
from reconrisk.core.threat import Controls, Knows, Sees, ThreatModel
from reconrisk.metrics.registry import METRICS

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditResult, Exposure

PRIVATE = (
    "Record numbers, scores, leakage and norms depend on private records. Share them only with people who may see the "
    "records, and do not publish them."
)
"""Notice in every report about records that are not public, with or without pictures."""

_SMALLEST_PERCENT = 1e-4  # below 0.01% a percentage has too many zeros to read
_THOUSAND = 1000
_SEES = {
    Sees.FINAL_MODEL: "the trained model, but no update during training",
    Sees.ONE_UPDATE: "one update",
    Sees.EVERY_UPDATE: "every update of the training",
}
_KNOWS = {
    Knows.LABELS: "the labels of the records",
    Knows.RECORD_NORM: "the norm of the record",
    Knows.OTHER_RECORDS: "all other records",
    Knows.INITIALISATION: "the initial weights of training",
    Knows.PRIOR: "the distribution of records (a prior)",
    Knows.BATCH_STATISTICS: "the statistics of the batch",
    Knows.DEFENSE: "how the update was defended",
}
_KNOWS_OF_A_MODEL = {
    Knows.OTHER_RECORDS: "all training records but one",
    Knows.INITIALISATION: "the training procedure: initial weights, order of records, optimizer",
    Knows.DEFENSE: "how the model was defended",
}
_CONTROLS = {Controls.MODEL_PARAMETERS: "the parameters that the update is computed on"}


@dataclass(frozen=True)
class Headline:
    """Verdict of an audit for the top of the page.

    Attributes:
        tone: ``good``, ``plain``, ``doubtful`` or ``bad``; it sets the colour.
        badge: Two or three words.
        text: One sentence.
    """

    tone: str
    badge: str
    text: str


def headline(result: AuditResult) -> Headline:
    """Return the most important finding: a contradicted bound or noise, then limits, then attacks against guesses.

    Args:
        result: The audit.

    Returns:
        The headline.
    """
    if result.contradictions:
        text = "An attack beats a bound that covers it: the mechanism or its implementation is wrong."
        return Headline("bad", "Bound contradicted", text)
    if result.noise_checks.contradicted:
        text = "The noise is not what the guarantees assume: the mechanism or its implementation is wrong."
        return Headline("bad", "Noise contradicted", text)
    standings = {check.standing.name for line in result.lines for check in line.limits}
    if "ABOVE" in standings:
        places = dict.fromkeys(_where(line.defense) for line, _ in result.exceeded_limits)
        return Headline("bad", "Above the limit", f"The risk is above the limit {' and '.join(places)}.")
    if "NOT_SHOWN" in standings:
        text = "The measured risk is not above the limit, but the trials are too few to show that it is below."
        return Headline("doubtful", "Not shown", text)
    if "MEASURED" in standings:
        return Headline("good", "Within the limit", "The risk is within the limit against the attacks that were tried.")
    if standings:
        return Headline("good", "Within the limit", "The risk is within the limit, by a proved bound.")
    leaking = dict.fromkeys(_where(line.defense) for line in result.lines if line.verdict.name == "LEAKS")
    if leaking:
        text = f"Attacks rebuild more records than guesses {' and '.join(leaking)}."
        return Headline("bad", "Records leak", text)
    if all(line.verdict.name == "NOTHING_RUN" for line in result.lines):
        return Headline("doubtful", "Nothing was run", "No attack ran to completion.")
    return Headline("plain", "No gain found", "No attack that was tried does better than guessing.")


def _where(label: str) -> str:
    return "without a defense" if label == "none" else f"under {label}"


def defense_name(label: str) -> str:
    """Return the name of a defense as shown in reports.

    Args:
        label: Key of the defense in the audit; ``"none"`` is the undefended update.

    Returns:
        ``label``, or ``"no defense"`` for the undefended update.

    >>> defense_name("none")
    'no defense'
    """
    return "no defense" if label == "none" else label


def share(value: float) -> str:
    """Format a probability as a percentage with three digits.

    Args:
        value: The probability.

    Returns:
        Text such as ``"12.3%"``.

    >>> share(0.12345), share(1.0), share(1e-9)
    ('12.3%', '100%', '1e-07%')
    """
    return f"{100 * value:.3g}%"


def interval(estimate: Estimate) -> str:
    """Format the interval of a measured probability, rounded outwards.

    Args:
        estimate: The probability with its interval.

    Returns:
        Text such as ``"25.1% to 74.9%"``, or ``"not run"`` without samples.

    >>> interval(Estimate(0.5, 0.2511, 0.7489, 0.95, 12, "Clopper-Pearson"))
    '25.1% to 74.9%'
    >>> interval(Estimate(0.3, 0.2, 0.45000000000000007, 0.95, 12, "Clopper-Pearson"))
    '20% to 45%'
    """
    if estimate.samples == 0:
        return "not run"
    # remove rounding errors of the percentage first: 45.00000000000001 must not be rounded up to 45.1
    low, high = (float(f"{100 * end:.12g}") for end in (estimate.low, estimate.high))
    return f"{format_rounded_down(low, 3)}% to {format_rounded_up(high, 3)}%"


def format_estimate(estimate: Estimate) -> str:
    """Format a measured probability.

    Args:
        estimate: The probability with its number of samples.

    Returns:
        A percentage, or ``"not run"`` without samples.
    """
    return share(estimate.value) if estimate.samples else "not run"


def format_bound(guarantee: Guarantee) -> str:
    """Format the value of a guarantee, rounded to the safe side.

    Args:
        guarantee: A bound on a success probability or on a mean squared error.

    Returns:
        Text such as ``"≤ 2.3%"``; tiny probabilities are written as powers, not as percentages.
    """
    if guarantee.quantity is Quantity.MEAN_SQUARED_ERROR:
        return f"mean squared error ≥ {format_rounded_down(guarantee.value)}"
    if guarantee.value >= _SMALLEST_PERCENT:
        return f"≤ {format_rounded_up(100 * guarantee.value)}%"
    return f"≤ {format_probability(-math.inf if guarantee.log_value is None else guarantee.log_value)}"


def number(value: float) -> str:
    """Format a score or a cost with three digits, and thousands in full.

    Args:
        value: The number.

    Returns:
        The text.

    >>> number(float("inf")), number(0.012345), number(3301.7)
    ('∞', '0.0123', '3,302')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.0f}" if _THOUSAND <= abs(value) < _THOUSAND**2 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format a duration.

    Args:
        seconds: The duration in seconds.

    Returns:
        Text such as ``"1 min 15 s"``.

    >>> duration(0.0012), duration(0.15), duration(75.0), duration(7260.0)
    ('1.2 ms', '150 ms', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{number(1000 * seconds)} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def describe_adversary(threat: ThreatModel) -> tuple[tuple[str, str], ...]:
    """Describe what the adversary of a threat model sees, knows and controls.

    Args:
        threat: The threat model.

    Returns:
        Three pairs of a heading and a description.

    >>> describe_adversary(ThreatModel(Sees.ONE_UPDATE, knows=frozenset({Knows.DEFENSE})))[1]
    ('Knows', 'how the update was defended')
    """
    words_of = {**_KNOWS, **(_KNOWS_OF_A_MODEL if threat.sees is Sees.FINAL_MODEL else {})}
    known = [words for power, words in words_of.items() if power in threat.knows]
    held = [words for power, words in _CONTROLS.items() if power in threat.controls]
    return (
        ("Sees", _SEES[threat.sees]),
        ("Knows", "; ".join(known) or "nothing about the records or the training"),
        ("Controls", "; ".join(held) or "nothing: it follows the protocol"),
    )


def released_thing(threat: ThreatModel) -> str:
    """Return the word for the released object that the adversary sees.

    Args:
        threat: The threat model.

    Returns:
        ``"model"`` or ``"update"``.

    >>> released_thing(ThreatModel(Sees.FINAL_MODEL)), released_thing(ThreatModel(Sees.ONE_UPDATE))
    ('model', 'update')
    """
    return "model" if threat.sees is Sees.FINAL_MODEL else "update"


def metric_name(metric: str) -> str:
    """Return the name of a metric as shown on the axes of figures.

    Args:
        metric: Name of the metric.

    Returns:
        The axis label of the metric; ``metric`` if it has none or its plugin is not installed.
    """
    row = METRICS.get(metric)
    return row.label if row is not None and row.label else metric


def exposures_by_defense(result: AuditResult) -> dict[str, tuple[Exposure, ...]]:
    """Group the best reconstruction of each record by defense.

    Args:
        result: The audit.

    Returns:
        Reconstructions by the key of the defense in the audit, most exposed first; defenses without any are left out.
    """
    found = {
        summary.label: tuple(each for each in result.exposures if each.defense == summary.label)
        for summary in result.defenses
    }
    return {label: mine for label, mine in found.items() if mine}
