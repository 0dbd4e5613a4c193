"""Conclusion from the evidence: verdict, reason in plain words, and bounds on epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from reconrisk.accounting.phases import has_phases
from reconrisk.core.mechanism import ApproximateDP, GaussianDP, Mechanism, PureDP
from reconrisk.statistics.noise_scale import scale_limits
from reconrisk.statistics.privacy_lower_bounds import gaussian_epsilon, shape_free_epsilon
from reconrisk.studies.verify_mechanism import evidence as tests
from reconrisk.studies.verify_mechanism.claims import epsilon_with_less_noise, gaussian_of_one_release
from reconrisk.studies.verify_mechanism.evidence import Evidence
from reconrisk.studies.verify_mechanism.result import MechanismTest, MechanismVerdict, Verdict
from reconrisk.studies.verify_mechanism.trainings import ONE_RUN, TrainingAudit

CONFIDENCE = 0.95
"""Confidence of every interval by itself."""

_THRESHOLDS = (0.0, 0.5, 1.0, 2.0, 4.0)  # of log likelihood ratios, preset for the shape-free bound


@dataclass(frozen=True)
class Rules:
    """Settings of a verification that do not depend on the subject.

    Attributes:
        releases: Largest number of releases, or the fixed number.
        level: Largest probability of contradicting a true claim.
        smallest_ratio: Noise ratio to exclude before a claim is consistent.
        stopping: "anytime" or "fixed".
        delta: Delta of epsilons.
        rng: Source of the coins.
    """

    releases: int
    level: float
    smallest_ratio: float
    stopping: str
    delta: float
    rng: torch.Generator

    @property
    def fixed(self) -> bool:
        """True if the number of releases was fixed beforehand."""
        return self.stopping == "fixed"

    @property
    def alpha(self) -> float:
        """Probability that an interval is wrong."""
        return 1 - CONFIDENCE

    @property
    def needed(self) -> float:
        """Logarithm of the evidence that contradicts the claim."""
        return -math.log(self.level)


def conclude(
    found: Evidence,
    name: str,
    claimed: Mechanism,
    assumptions: tuple[str, ...],
    rules: Rules,
    was_interrupted: bool,
) -> MechanismVerdict:
    """Conclude from the evidence of releases.

    Args:
        found: The evidence.
        name: Description of the mechanism under test.
        claimed: The claimed mechanism.
        assumptions: Conditions under which the evidence tests the claim.
        rules: Settings of the verification.
        was_interrupted: True after Ctrl-C.

    Returns:
        The verdict.
    """
    rows, combined = tuple(found.rows()), found.combined()
    is_valid = not (was_interrupted and rules.fixed)
    missing = missing_evidence(found, rules)
    verdict, reason = Verdict.NOT_ENOUGH, " ".join(missing)
    ratio, low, high = found.noise_limits()
    if not is_valid:
        reason = "The audit was interrupted before the fixed number of releases."
    elif combined >= rules.needed:
        verdict, reason = Verdict.CONTRADICTED, _contradiction(found, rows) + _forgotten_clip_norm(found, claimed)
    elif not missing:
        verdict, reason = Verdict.CONSISTENT, _consistency(found, rules) + _forgotten_clip_norm(found, claimed)
    return MechanismVerdict(
        verdict=verdict,
        reason=reason,
        subject=name,
        claimed=claimed,
        tests=rows,
        evidence=combined,
        level=rules.level,
        confidence=CONFIDENCE,
        stopping=rules.stopping,
        releases=found.releases,
        requested=rules.releases,
        noise_ratio=ratio,
        noise_ratio_low=None if ratio is None else low,
        noise_ratio_high=None if ratio is None else high,
        smallest_ratio=rules.smallest_ratio,
        releases_needed=_releases_needed(found, rules) if verdict is Verdict.NOT_ENOUGH else 0.0,
        delta=rules.delta,
        epsilon_claimed=_claimed_epsilon(claimed, rules.delta),
        epsilon_within_family=_family_epsilon(found, claimed, rules) if is_valid else None,
        epsilon_shape_free=_shape_free(found, rules) if is_valid else None,
        seed=rules.rng.initial_seed(),
        assumptions=assumptions,
        was_interrupted=was_interrupted,
    )


def conclude_trainings(audit: TrainingAudit, rules: Rules, was_interrupted: bool) -> MechanismVerdict:
    """Conclude from guesses about final models.

    Args:
        audit: The trainings so far.
        rules: Settings of the verification.
        was_interrupted: True after Ctrl-C.

    Returns:
        The verdict: contradicted, or not enough evidence.
    """
    row = audit.row()
    is_valid = not (was_interrupted and (rules.fixed or audit.count > 1))
    is_contradicted = is_valid and row.evidence >= rules.needed
    if audit.count == 1:
        shape_free = shape_free_epsilon(
            audit.scores,
            audit.truths,
            thresholds=_THRESHOLDS,
            delta=rules.delta,
            alpha=rules.alpha,
            anytime=not rules.fixed,
        )
        words = f"The canary is guessed right in {audit.right} of {audit.guesses} trainings"
        words += f"; the claim allows a share of {audit.cap:.3g}."
    else:
        shape_free = audit.epsilon_of_one_run(rules.delta)
        words = f"{audit.right} of {audit.guesses} guesses about {audit.count * audit.runs} canaries are right."
    if not is_contradicted:
        words += " A final model can only contradict a claim: a stronger attack might succeed more often."
    if not is_valid:
        words = "The audit was interrupted before the fixed number of trainings. " + words
    return MechanismVerdict(
        verdict=Verdict.CONTRADICTED if is_contradicted else Verdict.NOT_ENOUGH,
        reason=words,
        subject="final models" if audit.count == 1 else ONE_RUN,
        claimed=audit.claimed,
        tests=(row,),
        evidence=row.evidence,
        level=rules.level,
        confidence=CONFIDENCE,
        stopping=rules.stopping if audit.count == 1 else "fixed",
        releases=audit.runs,
        requested=rules.releases,
        noise_ratio=None,
        noise_ratio_low=None,
        noise_ratio_high=None,
        smallest_ratio=rules.smallest_ratio,
        releases_needed=None,
        delta=rules.delta,
        epsilon_claimed=_claimed_epsilon(audit.claimed, rules.delta),
        epsilon_within_family=audit.epsilon_within_family(rules.delta) if is_valid else None,
        epsilon_shape_free=shape_free if is_valid else None,
        seed=rules.rng.initial_seed(),
        assumptions=("the training does not see the coins", "each training uses new randomness"),
        was_interrupted=was_interrupted,
    )


def missing_evidence(found: Evidence, rules: Rules) -> list[str]:
    """Return the reasons why the claim is not shown to be consistent.

    Args:
        found: The evidence.
        rules: Settings of the verification.

    Returns:
        The reasons; none if the claim is consistent with everything that was measured.
    """
    reasons = []
    (ratio, _, high), low = found.noise_limits(), found.least_noise()
    if low < rules.smallest_ratio:
        reasons.append(f"The noise ratio may be as small as {low:.3g}; {rules.smallest_ratio:g} must be excluded.")
    most = 1 / rules.smallest_ratio
    if not found.plan.repeats and low > most:
        reasons.append(
            f"The residuals are {ratio:.3g} times the claimed noise: the description of the run does not fit, or there "
            "is more noise than claimed."
        )
    elif not found.plan.repeats and high > most:  # residuals that are too long could hide missing noise
        reasons.append(f"The residuals may be {high:.3g} times the claimed noise; {most:.3g} must be excluded.")
    name, least = found.weakest_block()
    if least < tests.BLOCK_RATIO:
        reasons.append(f"The noise ratio of {name} may be as small as {least:.3g}.")
    measures = tests.CONTRIBUTION in found.plan.tests()
    if found.plan.repeats and not measures:
        reasons.append(f"A release of {found.plan.size} values is too short to measure the contribution of a record.")
    along = found.least_along() if found.plan.repeats else None
    if along is not None and along < tests.BLOCK_RATIO:
        reasons.append(f"The noise ratio along the gradient may be as small as {along:.3g}.")
    reasons += found.misfits()
    # checked last, because it takes longest
    if measures and not reasons and not found.excludes_contribution(tests.LARGEST_CONTRIBUTION):
        reasons.append(f"The contribution of the canary may be {tests.LARGEST_CONTRIBUTION:g} times the claimed one.")
    return reasons


def _consistency(found: Evidence, rules: Rules) -> str:
    ratio, low, high = found.noise_limits()
    words = f"The noise is {ratio:.3g} times the claimed one [{low:.3g}, {high:.3g}], and no test speaks against it."
    if low > 1 / rules.smallest_ratio:
        words = f"The noise is {ratio:.3g} times the claimed one [{low:.3g}, {high:.3g}]: more than claimed."
    ends = found.contribution_limits() if tests.CONTRIBUTION in found.plan.tests() else None
    if ends is None:
        return f"{words} The steps fit the described records and clipping."
    return f"{words} The canary contributes at most {ends[1]:.3g} times the claimed sensitivity."


def _contradiction(found: Evidence, rows: tuple[MechanismTest, ...]) -> str:
    """Return the finding of the strongest test in plain words."""
    # Of the noise tests, one parameter without noise explains the whole better than the reverse.
    worst = max(rows, key=lambda row: row.evidence)
    by_name = {row.name: row for row in rows}
    block = by_name.get(tests.BLOCKS)
    ends = "" if worst.low is None or worst.high is None else f" [{worst.low:.3g}, {worst.high:.3g}]"
    estimate = math.nan if worst.estimate is None else worst.estimate
    if worst.name == tests.CONTRIBUTION:
        return (
            f"The canary contributes {estimate:.3g}{ends} times the claimed sensitivity, in units of the noise: "
            "clipping, the divisor of the mean, or the unit of the noise is not as claimed."
        )
    if worst.name == tests.REUSE:
        return (
            "The noise of a release is correlated with that of an earlier one: noise that is used twice can be "
            "subtracted."
        )
    if worst.name in (tests.CANARY, tests.IDENTIFICATION):
        what = "presence of the canary" if worst.name == tests.CANARY else "record among the candidates"
        return f"The {what} is guessed right in {estimate:.1%} of trials; the claim allows less: {worst.claim}."
    where = ""
    if block is not None and block.estimate is not None and block.estimate < 0.9 * (found.noise_limits()[0] or 1):
        where = f" Parameter {block.weakest} has {block.estimate:.3g} times the claimed noise."
    along = " along the gradient" if worst.name == tests.ALONG else ""
    if worst.name == tests.BLOCKS:
        return f"Parameter {worst.weakest} has {estimate:.3g}{ends} times the claimed noise."
    return f"The noise{along} is {estimate:.3g}{ends} times the claimed one.{where}"


def _forgotten_clip_norm(found: Evidence, claimed: Mechanism) -> str:
    """Return a hint if the noise ratio is that of noise which is not multiplied by the clip norm."""
    clip_norm = gaussian_of_one_release(claimed).clip_norm
    ratio, low, high = found.noise_limits()
    if ratio is None or low <= 1 <= high or not low <= 1 / clip_norm <= high:
        return ""
    return f" The noise ratio fits 1 / clip_norm ({1 / clip_norm:.3g}): is the noise multiplied by the clip norm?"


def _releases_needed(found: Evidence, rules: Rules) -> float | None:
    """Estimate the further releases until a sound mechanism would be consistent; None if no number is enough."""
    plan = found.plan
    if plan.repeats and tests.CONTRIBUTION not in plan.tests():
        return None
    if (not plan.repeats and found.least_noise() > 1 / rules.smallest_ratio) or any(found.misfits()):
        return None
    arms = 3 if plan.repeats else 0
    smallest = min(np.diff([*plan.blocks.values(), plan.size]))
    total = max(
        _values_needed(rules.smallest_ratio, rules.alpha) / plan.size + arms,
        _values_needed(tests.BLOCK_RATIO, rules.alpha) / int(smallest) + arms,
    )
    per_round = 3 + (tests.IDENTIFICATION in plan.tests())
    if found.least_along() is not None and plan.repeats:
        total = max(total, per_round * (_values_needed(tests.BLOCK_RATIO, rules.alpha) + 1))
    if tests.CONTRIBUTION in plan.tests():
        shift = plan.multiple * plan.shift / math.sqrt(2)
        growth = ((tests.LARGEST_CONTRIBUTION - 1) * shift) ** 2 / 2  # nats of each pair
        total = max(total, per_round * (math.log(4 / rules.alpha) + 3) / growth)
    return max(1.0, total - found.releases)


@cache
def _values_needed(ratio: float, alpha: float) -> float:
    """Return the number of values after which sound noise excludes a ratio."""
    low, high = 1, 2
    while scale_limits(float(high), high, alpha=alpha)[0] < ratio:
        low, high = high, 2 * high
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if scale_limits(float(middle), middle, alpha=alpha)[0] < ratio else (low, middle)
    return float(high)


def _claimed_epsilon(claimed: Mechanism, delta: float) -> float | None:
    if has_phases(claimed):
        return epsilon_with_less_noise(claimed, 1.0, delta)
    if isinstance(claimed, GaussianDP):
        return gaussian_epsilon(claimed.mu, delta) * (1 + 1e-9)
    if isinstance(claimed, PureDP):
        return claimed.epsilon
    if isinstance(claimed, ApproximateDP) and claimed.delta <= delta:
        return claimed.epsilon
    return None


def _family_epsilon(found: Evidence, claimed: Mechanism, rules: Rules) -> float | None:
    """Return the epsilon of the same mechanism with the largest noise, relative to a record, that is not excluded."""
    high = found.noise_limits()[2]
    ends = found.contribution_limits() if tests.CONTRIBUTION in found.plan.tests() else None
    factor = min(high, 1 / ends[0] if ends is not None and ends[0] > 0 else math.inf)
    return 0.0 if factor == math.inf else epsilon_with_less_noise(claimed, factor, rules.delta)


def _shape_free(found: Evidence, rules: Rules) -> float | None:
    if not found.scores:
        return None
    return shape_free_epsilon(
        found.scores,
        found.truths,
        thresholds=_THRESHOLDS,
        delta=rules.delta,
        alpha=rules.alpha,
        anytime=not rules.fixed,
    )
