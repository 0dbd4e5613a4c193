"""The parts of an audit in words and numbers for reading."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconrisk.bounds.corridor import readable_probability
from reconrisk.core.guarantee import Estimate, Guarantee, Quantity, rounded_down, rounded_up
from reconrisk.core.threat import Controls, Knows, Sees, ThreatModel
from reconrisk.metrics.registry import METRICS

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditResult, Exposure

PRIVATE = (
    "Record numbers, scores, leakage and norms depend on private records; they are for those who may see the records, "
    "not for publication."
)
"""What stands in a report of records that are not public, with or without pictures."""

_SMALLEST_PERCENT = 1e-4
_THOUSAND = 1000
_SEES = {
    Sees.FINAL_MODEL: "the trained model, and no update on the way to it",
    Sees.ONE_UPDATE: "one update",
    Sees.EVERY_UPDATE: "every update of the training",
}
_KNOWS = {
    Knows.LABELS: "the labels of the records",
    Knows.RECORD_NORM: "the norm of the record",
    Knows.OTHER_RECORDS: "all other records",
    Knows.INITIALISATION: "the weights that training began with",
    Knows.PRIOR: "what records are like",
    Knows.BATCH_STATISTICS: "the statistics of the batch",
    Knows.DEFENSE: "how the update was defended",
}
_KNOWS_OF_A_MODEL = {
    Knows.OTHER_RECORDS: "every record of the training but one",
    Knows.INITIALISATION: "how training went: the weights it began with, the order of records, the optimizer",
    Knows.DEFENSE: "how the model was defended",
}
_CONTROLS = {Controls.MODEL_PARAMETERS: "the parameters that the update is computed on"}


@dataclass(frozen=True)
class Headline:
    """The verdict as a badge and a short line; ``tone`` is good, plain, doubtful or bad."""

    tone: str
    badge: str
    text: str


def headline(result: AuditResult) -> Headline:
    """What matters most: a contradiction, then limits, then whether attacks do better than guesses."""
    if result.contradictions:
        text = "An attack beats a bound that covers it: the mechanism or the code is wrong."
        return Headline("bad", "Bound contradicted", text)
    standings = {check.standing.name for line in result.lines for check in line.limits}
    if "ABOVE" in standings:
        places = dict.fromkeys(defense_name(line.defense) for line, _ in result.exceeded)
        return Headline("bad", "Above the limit", f"The risk is above the limit with {' and '.join(places)}.")
    if "NOT_SHOWN" in standings:
        text = "The risk is not above the limit, but there are too few trials to show that it is below."
        return Headline("doubtful", "Not shown", text)
    if "MEASURED" in standings:
        return Headline("good", "Within the limit", "The risk is within the limit, by the attacks that were tried.")
    if standings:
        return Headline("good", "Within the limit", "The risk is within the limit, proved.")
    leaking = dict.fromkeys(defense_name(line.defense) for line in result.lines if line.verdict.name == "LEAKS")
    if leaking:
        text = f"Attacks rebuild more than guesses do with {' and '.join(leaking)}."
        return Headline("bad", "Records leak", text)
    if all(line.verdict.name == "NOTHING_RUN" for line in result.lines):
        return Headline("doubtful", "Nothing was run", "No attack was run to its end.")
    return Headline("plain", "No gain found", "No attack that was tried does better than guessing.")


def defense_name(label: str) -> str:
    """A defense by its label, the bare update in words.

    >>> defense_name("none")
    'no defense'
    """
    return "no defense" if label == "none" else label


def share(value: float) -> str:
    """A probability as a percentage of three digits.

    >>> share(0.12345), share(1.0), share(1e-9)
    ('12.3%', '100%', '1e-07%')
    """
    return f"{100 * value:.3g}%"


def interval(estimate: Estimate) -> str:
    """The interval of a measured share, rounded outwards.

    >>> interval(Estimate(0.5, 0.2511, 0.7489, 0.95, 12, "Clopper-Pearson"))
    '25.1% to 74.9%'
    >>> interval(Estimate(0.3, 0.2, 0.45000000000000007, 0.95, 12, "Clopper-Pearson"))
    '20% to 45%'
    """
    if estimate.samples == 0:
        return "not run"
    low, high = (float(f"{100 * end:.12g}") for end in (estimate.low, estimate.high))  # 45.00000000000001 is 45
    return f"{rounded_down(low, 3)}% to {rounded_up(high, 3)}%"


def measured(estimate: Estimate) -> str:
    """A measured share, or that nothing was measured."""
    return share(estimate.value) if estimate.samples else "not run"


def bounded(guarantee: Guarantee) -> str:
    """What a guarantee says, rounded to the safe side; tiny probabilities are no percentages."""
    if guarantee.quantity is Quantity.MEAN_SQUARED_ERROR:
        return f"mean squared error ≥ {rounded_down(guarantee.value)}"
    if guarantee.value >= _SMALLEST_PERCENT:
        return f"≤ {rounded_up(100 * guarantee.value)}%"
    return f"≤ {readable_probability(-math.inf if guarantee.log_value is None else guarantee.log_value)}"


def number(value: float) -> str:
    """A score or a cost with three digits, thousands written out.

    >>> number(float("inf")), number(0.012345), number(3301.7)
    ('∞', '0.0123', '3,302')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.0f}" if _THOUSAND <= abs(value) < _THOUSAND**2 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time for reading.

    >>> duration(0.0012), duration(0.15), duration(75.0), duration(7260.0)
    ('1.2 ms', '150 ms', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{number(1000 * seconds)} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def adversary(threat: ThreatModel) -> tuple[tuple[str, str], ...]:
    """A threat model in words: what is seen, known and controlled.

    >>> adversary(ThreatModel(Sees.ONE_UPDATE, knows=frozenset({Knows.DEFENSE})))[1]
    ('Knows', 'how the update was defended')
    """
    words_of = {**_KNOWS, **(_KNOWS_OF_A_MODEL if threat.sees is Sees.FINAL_MODEL else {})}
    known = [words for power, words in words_of.items() if power in threat.knows]
    held = [words for power, words in _CONTROLS.items() if power in threat.controls]
    return (
        ("Sees", _SEES[threat.sees]),
        ("Knows", "; ".join(known) or "nothing about the records or the training"),
        ("Controls", "; ".join(held) or "nothing: it follows the protocol and reads"),
    )


def released_thing(threat: ThreatModel) -> str:
    """What an adversary reads, in a word.

    >>> released_thing(ThreatModel(Sees.FINAL_MODEL)), released_thing(ThreatModel(Sees.ONE_UPDATE))
    ('model', 'update')
    """
    return "model" if threat.sees is Sees.FINAL_MODEL else "update"


def metric_name(metric: str) -> str:
    """Return the words for a metric; its name, if it has none or its plugin is not installed here."""
    row = METRICS.get(metric)
    return row.label if row is not None and row.label else metric


def exposures_by_defense(result: AuditResult) -> dict[str, tuple[Exposure, ...]]:
    """The best estimate of each record, most exposed first, for every defense that has any."""
    found = {
        summary.label: tuple(each for each in result.exposures if each.defense == summary.label)
        for summary in result.defenses
    }
    return {label: mine for label, mine in found.items() if mine}
