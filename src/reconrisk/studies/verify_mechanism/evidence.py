"""Tests of a Gaussian mechanism, fed with one release after the other.

Releases are vectors in units of the claimed noise. Every test is an e-process; their weighted mean is one too. If the
number of releases was fixed beforehand, the tests with an exact p-value use it, combined by a weighted Bonferroni rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2

from reconrisk.statistics.betting import CANARY_PRIOR, count_limits, log_evidence_above
from reconrisk.statistics.contribution import SMALLEST_SIZE, ShiftLikelihood
from reconrisk.statistics.noise_scale import (
    log_evidence_of_less_noise,
    mean_log_evidence,
    scale_limits,
)
from reconrisk.statistics.privacy_lower_bounds import gaussian_cap, identification_cap
from reconrisk.studies.verify_mechanism.noise_fit import NoiseFit
from reconrisk.studies.verify_mechanism.result import MechanismTest

Array = NDArray[np.float64]

SCALE = "noise scale"
REPEATED_SCALE = "noise scale, repeated releases"
BLOCKS = "noise of each parameter"
ALONG = "noise along the gradient"
REUSE = "re-used noise"
CONTRIBUTION = "contribution of the canary"
CANARY = "canary accuracy"
IDENTIFICATION = "identification"

BLOCK_RATIO = 0.5
"""Noise ratio that the interval of each parameter must exclude: small parameters have too few values for more."""

LARGEST_CONTRIBUTION = 1.5
"""Contribution, as a multiple of the claimed one, that its interval must exclude."""

# The noise scale is the strongest test by far, so it bets half. The others share the rest.
_WEIGHTS = {
    SCALE: 0.5,
    REPEATED_SCALE: 0.1,
    BLOCKS: 0.1,
    ALONG: 0.05,
    REUSE: 0.05,
    CONTRIBUTION: 0.1,
    CANARY: 0.05,
    IDENTIFICATION: 0.05,
}


@dataclass(frozen=True)
class Plan:
    """Releases that a source can make, and the rules of the tests.

    Attributes:
        blocks: First place of each parameter in a release, by name, in order.
        size: Number of values of a release.
        shift: Claimed sensitivity in units of the claimed noise (mu).
        multiple: Number of contributions in a difference that measures the contribution of the canary.
        candidates: Number of candidates of the identification test; below 2 for no test.
        has_mean: True if the release without noise is known.
        repeats: True if releases of the same records can be repeated.
        fixed: True if the number of releases was fixed beforehand.
        alpha: Probability that an interval is wrong.
    """

    blocks: Mapping[str, int]
    size: int
    shift: float
    multiple: int
    candidates: int
    has_mean: bool
    repeats: bool
    fixed: bool
    alpha: float

    def tests(self) -> tuple[str, ...]:
        """Return the names of the tests that apply; fixed before the first release, as the weights require."""
        names = {
            SCALE: self.has_mean,
            REPEATED_SCALE: self.repeats,
            BLOCKS: len(self.blocks) > 1,
            ALONG: self.has_mean,
            REUSE: True,
            CONTRIBUTION: self.repeats and self.size >= SMALLEST_SIZE,
            CANARY: self.repeats,
            IDENTIFICATION: self.repeats and self.has_mean and self.candidates >= 2,
        }
        return tuple(name for name, applies in names.items() if applies)


@dataclass
class _Squares:
    """Squares of residuals in units of the claimed noise."""

    total: float = 0.0
    count: int = 0

    def add(self, total: float, count: int) -> None:
        self.total += total
        self.count += count

    @property
    def ratio(self) -> float | None:
        return math.sqrt(self.total / self.count) if self.count else None

    def evidence(self, *, fixed: bool) -> float:
        if fixed:
            return -float(chi2.logcdf(self.total, self.count)) if self.count else 0.0
        return log_evidence_of_less_noise(self.total, self.count)

    def limits(self, plan: Plan) -> tuple[float, float]:
        if not plan.fixed or self.count == 0:
            return scale_limits(self.total, self.count, alpha=plan.alpha)
        most, least = (float(chi2.isf(tail, self.count)) for tail in (plan.alpha / 2, 1 - plan.alpha / 2))
        return math.sqrt(self.total / most), math.sqrt(self.total / least)


@dataclass
class _Guesses:
    """Right guesses of a secret, against the largest success rate that the claim allows."""

    cap: float
    right: int = 0
    trials: int = 0

    def add(self, is_right: bool) -> None:
        self.right += is_right
        self.trials += 1

    def evidence(self, *, fixed: bool) -> float:
        if fixed:
            return -float(binom.logsf(self.right - 1, self.trials, self.cap))
        return log_evidence_above(self.right, self.trials, self.cap, CANARY_PRIOR)


@dataclass
class _Arm:
    """Releases of the same records, with the mean of those so far."""

    count: int = 0
    mean: Array | float = 0.0

    def residual(self, values: Array) -> Array | None:
        """Return the difference from the mean of the earlier releases, scaled to the noise of one, and add the release.

        The residuals of independent noise are independent, whatever the mean is.
        """
        found = (values - self.mean) * math.sqrt(self.count / (self.count + 1)) if self.count else None
        self.count += 1
        self.mean = self.mean + (values - self.mean) / self.count
        return found


def _cosine(first: Array, second: Array) -> float:
    """Return the cosine of two vectors; 0 if one has no direction, which the noise scale notices."""
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(np.clip(first @ second / norms, -1, 1)) if norms > 0 else 0.0


class Evidence:
    """Evidence of all tests after the releases so far.

    Args:
        plan: Tests and their rules.
        direction: Expected difference between releases with and without the canary; None if unknown.
        contrast: Expected difference that measures the contribution of the canary; None if unknown.
    """

    def __init__(self, plan: Plan, direction: Array | None = None, contrast: Array | None = None) -> None:
        self.plan, self.releases = plan, 0
        self.scores: list[float] = []
        self.truths: list[bool] = []
        self._known, self._repeated, self._along = _Squares(), _Squares(), _Squares()
        # without the canary, with it, and far from both; fixed beforehand, as a mean of e-values requires
        self._along_arms = {arm: _Squares() for arm in ((0, 1, 2) if plan.repeats else (None,))}
        self._blocks = {name: _Squares() for name in plan.blocks}
        self._known_blocks = {name: _Squares() for name in plan.blocks}
        self._starts = list(plan.blocks.values())
        self._sizes = np.diff([*self._starts, plan.size])
        self._arms: dict[int, _Arm] = {}
        self._fit = NoiseFit(self._starts, plan.size)
        self._direction, self._contrast = direction, contrast
        self._expected, self._learned = (ShiftLikelihood(max(plan.size, SMALLEST_SIZE)) for _ in range(2))
        self._difference: Array | None = None
        self._canary = _Guesses(gaussian_cap(plan.shift))
        several = max(plan.candidates, 2)
        self._identified = _Guesses(identification_cap(plan.shift, several))
        self._in_round = False

    def add_release(self, values: Array, *, arm: int | None, mean: Array | None) -> None:
        """Add a release to the tests of the noise.

        Args:
            values: The release.
            arm: Number of the set of records in it: 0 without the canary, 1 with it, and others; None if no other
                release has the same records.
            mean: The release without noise, computed without it; None if unknown.
        """
        self.releases += 1
        self._in_round = True
        known = None if mean is None else values - mean
        if known is not None:
            self._known.add(float(known @ known), known.size)
            self._add_blocks(self._known_blocks, known)
        if self.plan.repeats:
            residual = None if arm is None else self._arms.setdefault(arm, _Arm()).residual(values)
        else:
            residual = known
        if residual is None:
            return
        if self.plan.repeats:
            self._repeated.add(float(residual @ residual), residual.size)
        self._add_blocks(self._blocks, residual)
        if self._direction is not None and (norm := float(np.linalg.norm(self._direction))) > 0:
            along = float(residual @ self._direction / norm) ** 2
            for squares in (self._along, self._along_arms[arm]):
                squares.add(along, 1)
        self._fit.add(residual, arm=arm)

    def set_direction(self, direction: Array) -> None:
        """Set the direction of the next release's mean, for runs whose gradient changes.

        Args:
            direction: Any vector that was computed before the noise of the next release.
        """
        self._direction = direction

    def guess_canary(self, values: Array, *, center: Array | None, is_present: bool, coin: bool) -> None:
        """Guess from a release if it contains the canary, with a rule fixed by earlier releases.

        Args:
            values: The release.
            center: Middle between the means with and without the canary; None to use earlier releases.
            is_present: True if the canary is in it.
            coin: Guess where nothing is known yet.
        """
        direction = self._direction
        if direction is None or center is None:
            arms = [self._arms.get(number) for number in (0, 1)]
            without, present = (None if arm is None or not arm.count else np.asarray(arm.mean) for arm in arms)
            if without is None or present is None:
                direction = None
            else:
                direction, center = present - without, (present + without) / 2
        score = 0.0 if direction is None or center is None else float((values - center) @ direction)
        self.scores.append(score)
        self.truths.append(is_present)
        self._canary.add((coin if score == 0 else score > 0) == is_present)

    def add_difference(self, difference: Array) -> None:
        """Add a difference of two releases that measures the contribution of the canary.

        Args:
            difference: The difference.
        """
        if CONTRIBUTION not in self.plan.tests():
            return
        scaled = difference / math.sqrt(2)
        if self._contrast is not None:
            self._expected.add(_cosine(scaled, self._contrast))
        if self._difference is not None:
            self._learned.add(_cosine(scaled, self._difference))
        self._difference = scaled if self._difference is None else self._difference + scaled

    def add_identification(self, is_right: bool) -> None:
        """Add a guess of the candidate that a release contains.

        Args:
            is_right: True if the guess was right.
        """
        self._identified.add(is_right)

    def end_round(self) -> None:
        """Mark the end of a round: only then the evidence of the contribution counts."""
        self._in_round = False

    @property
    def is_round_complete(self) -> bool:
        """True between two rounds."""
        return not self._in_round

    def combined(self) -> float:
        """Return the logarithm of the combined evidence against the claim."""
        names = self.plan.tests()
        # Stopping in the middle of a round could depend on one half of a difference. Then its e-value counts as zero.
        excluded = CONTRIBUTION if self._in_round else None
        logs = [-math.inf if name == excluded else self._evidence_of(name) for name in names]
        weights = np.array([_WEIGHTS[name] for name in names])
        if self.plan.fixed:
            return float(max(np.array(logs) + np.log(weights / weights.sum())))
        return mean_log_evidence(logs, list(weights))

    def noise_limits(self) -> tuple[float | None, float, float]:
        """Return the ratio of noise to claimed noise, with its interval.

        Residuals of repeated releases are used where there are some: a wrong mean cannot make them larger.
        """
        squares = self._repeated if self._repeated.count else self._known
        return squares.ratio, *squares.limits(self.plan)

    def least_noise(self) -> float:
        """Return the lower limit of the noise ratio that a wrong mean cannot raise; 0 without repeated releases.

        For a run that cannot be repeated, the mean has to be trusted.
        """
        return (self._repeated if self.plan.repeats else self._known).limits(self.plan)[0]

    def excludes_contribution(self, factor: float) -> bool:
        """Return True if the canary contributes less than ``factor`` times the claimed contribution."""
        measured = [each for each in (self._expected, self._learned) if each.cosines]
        shift = factor * self._claimed_shift
        return bool(measured) and all(each.excludes(shift, alpha=self.plan.alpha / 4) for each in measured)

    def weakest_block(self) -> tuple[str, float]:
        """Return the parameter with the smallest lower limit of its noise ratio, and that limit."""
        limits = {name: squares.limits(self.plan)[0] for name, squares in self._blocks.items()}
        name = min(limits, key=lambda each: limits[each])
        return name, limits[name]

    def least_along(self) -> float | None:
        """Return the smallest lower limit, over sets of records, of the noise along the gradient; None if unknown."""
        if self._direction is None or not self._direction.any():
            return None
        return min(squares.limits(self.plan)[0] for squares in self._along_arms.values())

    def misfits(self) -> Iterator[str]:
        """Yield a sentence for each way in which the releases are not as described."""
        yield from self._fit.misfits({name: (each.ratio, each.count) for name, each in self._blocks.items()})

    def contribution_limits(self) -> tuple[float, float] | None:
        """Return limits of the canary's contribution in units of the claimed one; None if it was not measured."""
        measured = [each for each in (self._expected, self._learned) if each.cosines]
        if not measured:
            return None
        # the learned direction is imprecise at first, so that its limits alone would be too small
        ends = zip(*(each.limits(alpha=self.plan.alpha / 4) for each in measured), strict=True)
        low, high = (max(each) / self._claimed_shift for each in ends)
        return low, high

    def rows(self) -> Iterator[MechanismTest]:
        """Yield every test that has observations, with its evidence."""
        for name in self.plan.tests():
            row = self._row(name)
            if row.observations:
                yield row

    def _add_blocks(self, blocks: dict[str, _Squares], residual: Array) -> None:
        totals = np.add.reduceat(residual**2, self._starts)
        for squares, total, size in zip(blocks.values(), totals, self._sizes, strict=True):
            squares.add(float(total), int(size))

    @property
    def _claimed_shift(self) -> float:
        return self.plan.multiple * self.plan.shift / math.sqrt(2)

    def _evidence_of(self, name: str) -> float:
        fixed = self.plan.fixed
        if name == BLOCKS:
            sides = [self._blocks] + ([self._known_blocks] if self.plan.has_mean and self.plan.repeats else [])
            logs = [squares.evidence(fixed=fixed) for side in sides for squares in side.values()]
            return max(logs) - math.log(len(logs)) if fixed else mean_log_evidence(logs)
        if name == REUSE:
            return self._fit.evidence_of_reuse()
        if name == ALONG:
            # noise may be missing with some records only
            logs = [squares.evidence(fixed=fixed) for squares in (self._along, *self._along_arms.values())]
            return max(logs) - math.log(len(logs)) if fixed else mean_log_evidence(logs)
        if name == CONTRIBUTION:
            measured = [self._learned] + ([] if self._contrast is None else [self._expected])
            return mean_log_evidence([each.evidence_above(self._claimed_shift) for each in measured])
        parts: dict[str, _Squares | _Guesses] = {
            SCALE: self._known,
            REPEATED_SCALE: self._repeated,
            ALONG: self._along,
            CANARY: self._canary,
            IDENTIFICATION: self._identified,
        }
        return parts[name].evidence(fixed=fixed)

    def _row(self, name: str) -> MechanismTest:
        evidence = self._evidence_of(name)
        if name in (SCALE, REPEATED_SCALE, ALONG):
            squares = {SCALE: self._known, REPEATED_SCALE: self._repeated, ALONG: self._along}[name]
            low, high = squares.limits(self.plan)
            return MechanismTest(name, "noise ratio >= 1", squares.count, evidence, squares.ratio, low, high)
        if name == BLOCKS:
            measured = self._blocks if self._repeated.count or not self.plan.repeats else self._known_blocks
            weakest = min(measured, key=lambda each: measured[each].limits(self.plan)[1])
            squares = measured[weakest]
            low, high = squares.limits(self.plan)
            claim = f"noise ratio of each of {len(self._blocks)} >= 1"
            return MechanismTest(name, claim, squares.count, evidence, squares.ratio, low, high, weakest)
        if name == REUSE:
            earlier = self._fit.cosines
            mean = float(np.mean(earlier)) if earlier else None
            return MechanismTest(name, "correlation with earlier releases = 0", len(earlier), evidence, mean)
        if name == CONTRIBUTION:
            ends = self.contribution_limits()
            measured_shifts = [each.cosines for each in (self._expected, self._learned) if each.cosines]
            estimates = [self._estimate_shift(float(np.mean(cosines))) for cosines in measured_shifts]
            claim, pairs = "contribution / claimed sensitivity <= 1", max(map(len, measured_shifts), default=0)
            estimate = max(estimates, default=None)
            return MechanismTest(name, claim, pairs, evidence, estimate, *(ends or (None, None)))
        guesses = self._canary if name == CANARY else self._identified
        low, high = count_limits(guesses.right, guesses.trials, alpha=self.plan.alpha / 2, prior=CANARY_PRIOR)
        share = guesses.right / guesses.trials if guesses.trials else None
        claim = f"{name} <= {guesses.cap:.4g}"
        return MechanismTest(name, claim, guesses.trials, evidence, share, low, high)

    def _estimate_shift(self, cosine: float) -> float:
        """Return the shift whose usual cosine this is, in units of the claimed one."""
        return cosine * math.sqrt(self.plan.size / max(1 - cosine**2, 1e-12)) / self._claimed_shift
