"""Result of a check of a mechanism: verdict, tests, and lower bounds on epsilon next to the claimed one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from reconrisk.core.guarantee import format_rounded_down, format_rounded_up
from reconrisk.core.mechanism import Gaussian, Mechanism
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.storage.text_table import table_from_rows


class Verdict(Enum):
    """Conclusion about the claim of a mechanism."""

    CONSISTENT = "consistent"
    CONTRADICTED = "contradicted"
    NOT_ENOUGH = "not enough evidence"


EXIT_CODES = {Verdict.CONSISTENT: 0, Verdict.CONTRADICTED: 1, Verdict.NOT_ENOUGH: 4}
"""Exit code of the command for each verdict."""


@serializable("mechanism-test")
@dataclass(frozen=True)
class MechanismTest:
    """One test of the claim.

    Attributes:
        name: Name of the test.
        claim: Statement that the test tries to refute.
        observations: Number of values, pairs of releases, or guesses that the test used.
        evidence: Natural logarithm of the e-value against the claim, or of 1 / p-value if the number of releases was
            fixed beforehand.
        estimate: Measured value of the quantity in ``claim``; None without observations.
        low: Lower confidence limit of that quantity; None if the test has none.
        high: Upper confidence limit of that quantity; None if the test has none.
        weakest: Parameter with the least noise, for tests of single parameters; otherwise empty.
    """

    name: str
    claim: str
    observations: int
    evidence: float
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    weakest: str = ""


@serializable("mechanism-verdict")
@dataclass(frozen=True)
class MechanismVerdict(Result):
    """Verdict on the noise that a training claims to add, with the evidence for it.

    Attributes:
        verdict: Consistent, contradicted, or not enough evidence.
        reason: Cause of the verdict, in plain words.
        subject: Description of the mechanism under test.
        claimed: The claimed mechanism.
        tests: Each test with its evidence.
        evidence: Natural logarithm of the combined evidence against the claim.
        level: Largest probability that a true claim is contradicted.
        confidence: Confidence of each interval by itself.
        stopping: "anytime" if the intervals hold for any number of releases, "fixed" if it was fixed beforehand.
        releases: Number of releases that were examined.
        requested: Largest number of releases, or the fixed number.
        noise_ratio: Estimated noise divided by the claimed noise; None if not measured.
        noise_ratio_low: Lower end of its interval.
        noise_ratio_high: Upper end of its interval.
        smallest_ratio: Noise ratio that the interval must exclude before the verdict is "consistent".
        releases_needed: Expected number of further releases until a sound mechanism is found consistent; None if no
            number of releases can show it.
        delta: Delta of the epsilons.
        epsilon_claimed: Upper bound on epsilon that the claim implies; None if unknown.
        epsilon_within_family: Lower bound on epsilon within the family of the claimed mechanism; None if unknown.
        epsilon_shape_free: Lower bound on epsilon of any mechanism; None if no canary was guessed.
        seed: Seed of the coins of the audit.
        assumptions: Conditions under which the verdict holds.
        was_interrupted: True if the user stopped the audit.
    """

    verdict: Verdict
    reason: str
    subject: str
    claimed: Mechanism
    tests: tuple[MechanismTest, ...]
    evidence: float
    level: float
    confidence: float
    stopping: str
    releases: int
    requested: int
    noise_ratio: float | None
    noise_ratio_low: float | None
    noise_ratio_high: float | None
    smallest_ratio: float
    releases_needed: float | None
    delta: float
    epsilon_claimed: float | None
    epsilon_within_family: float | None
    epsilon_shape_free: float | None
    seed: int
    assumptions: tuple[str, ...] = ()
    was_interrupted: bool = False

    @property
    def is_contradicted(self) -> bool:
        """True if the evidence contradicts the claim."""
        return self.verdict is Verdict.CONTRADICTED

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0 consistent, 1 contradicted, 4 not enough evidence."""
        return EXIT_CODES[self.verdict]

    @property
    def sentence(self) -> str:
        """Verdict, its reason, and the evidence still missing."""
        words = f"{self.subject}: {self.verdict.value}, after {_count_releases(self.releases)}. {self.reason}"
        if self.verdict is Verdict.NOT_ENOUGH and self.releases_needed is not None:
            words += f" Missing: about {_count_releases(math.ceil(self.releases_needed), 'more ')}."
        claimed, found = self.epsilon_claimed, self.epsilon_within_family
        if self.is_contradicted and claimed is not None and found is not None and found > claimed:
            words += (
                f" If the mechanism is otherwise as claimed, epsilon is at least {format_rounded_down(found)}, "
                f"not at most {format_rounded_up(claimed)} ({self.confidence:.0%} confidence, delta {self.delta:g})."
            )
        return words

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each test."""
        return tuple(
            {
                "test": test.name,
                "claim": test.claim,
                "observations": test.observations,
                "estimate": test.estimate,
                "low": test.low,
                "high": test.high,
                "log10 evidence": test.evidence / math.log(10),
                "weakest parameter": test.weakest,
            }
            for test in self.tests
        )

    def table(self) -> str:
        """Return the tests, the noise ratio and the bounds on epsilon."""
        rows: list[Row] = [dict(row) for row in self.to_rows()]
        if not any(test.weakest for test in self.tests):
            for row in rows:
                del row["weakest parameter"]
        lines = [f"claimed   {self.claimed}", "", table_from_rows(rows), ""]
        bar = f"{-math.log10(self.level):.3g} contradicts the claim"
        lines.append(f"combined log10 evidence {self.evidence / math.log(10):.3g}; {bar}")
        if self.noise_ratio is not None and self.noise_ratio_low is not None and self.noise_ratio_high is not None:
            kind = "at any stopping time" if self.stopping == "anytime" else "for the fixed number of releases"
            ends = f"[{self.noise_ratio_low:.4g}, {self.noise_ratio_high:.4g}]"
            lines.append(f"noise / claimed noise   {self.noise_ratio:.4g} {ends}, {self.confidence:.0%} {kind}")
        bounds = (
            ("claimed upper bound", self.epsilon_claimed, format_rounded_up),
            ("lower bound within the family of the claimed mechanism", self.epsilon_within_family, format_rounded_down),
            ("shape-free lower bound", self.epsilon_shape_free, format_rounded_down),
        )
        of_one = ", for one release; claim rr.mechanisms.dp_sgd(..., steps=...) for a run"
        lines.append(f"epsilon at delta {self.delta:g}{of_one if isinstance(self.claimed, Gaussian) else ''}")
        lines += [f"  {name:<55} {'unknown' if value is None else form(value)}" for name, value, form in bounds]
        return "\n".join([*lines, "Assumes:", *(f"  - {each}" for each in self.assumptions)])


def _count_releases(number: int, kind: str = "") -> str:
    return f"{number} {kind}release{'' if number == 1 else 's'}"
