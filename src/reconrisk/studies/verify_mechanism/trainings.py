"""Audit of final models: canaries take part in whole trainings by fair coins, and are guessed from the models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor, nn

from reconrisk.accounting.phases import has_phases, phases_of
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.validation import check_finite, invalid_input
from reconrisk.releases.model_state import LossFunction
from reconrisk.statistics.betting import CANARY_PRIOR, count_limits, log_evidence_above
from reconrisk.statistics.intervals import clopper_pearson
from reconrisk.statistics.privacy_lower_bounds import (
    accuracy_cap,
    gaussian_epsilon,
    gaussian_mu_lower,
    one_run_epsilon,
    one_run_mu,
    one_run_trade_off_rejected,
)
from reconrisk.studies.verify_mechanism.claims import (
    TradeOff,
    epsilon_with_less_noise,
    scale_noise,
    trade_off_of,
)
from reconrisk.studies.verify_mechanism.result import MechanismTest

Array = NDArray[np.float64]

ONE_RUN = "canaries of one run"
MANY = 500  # canaries; fewer leave too few guesses at the smaller share
_SEARCHES = 14  # a range of 12 in the logarithm, divided by 2^14: three digits


def guesses_of(canaries: int) -> int:
    """Return the number of guesses about the canaries of a run, fixed before the run.

    Args:
        canaries: Number of canaries.

    Returns:
        A tenth of them, or a fifth if there are few.

    >>> guesses_of(100), guesses_of(1000)
    (20, 100)
    """
    return max(1, math.ceil(canaries * (0.1 if canaries >= MANY else 0.2)))


class TrainingAudit:
    """Trainings in which canaries take part by fair coins.

    Args:
        data: Records and labels that are in every training.
        canaries: Canaries and their labels; one for many trainings, or many for one training.
        claimed: The claimed mechanism of a training.
        loss_fn: Loss of a record; a canary with a small loss probably took part.
        rng: Source of the coins.
        fixed: True if the number of trainings was fixed beforehand.
        alpha: Probability that an interval is wrong.
    """

    def __init__(
        self,
        data: tuple[Tensor, Tensor],
        canaries: tuple[Tensor, Tensor],
        claimed: Mechanism,
        loss_fn: LossFunction,
        rng: torch.Generator,
        *,
        fixed: bool,
        alpha: float,
    ) -> None:
        self.claimed, self.fixed, self.alpha = claimed, fixed, alpha
        self._data, self._canaries, self._loss_fn, self._rng = data, canaries, loss_fn, rng
        self.count = len(canaries[0])
        self.runs = self.right = self.guesses = 0
        self.scores: list[float] = []
        self.truths: list[bool] = []
        self._coins = torch.zeros(0, dtype=torch.bool)
        self._raw: list[float] = []
        self.cap = accuracy_cap(trade_off_of(claimed)) if self.count == 1 else math.nan

    def set_coins(self, coins: Tensor) -> None:
        """Set the coins of a training that is done already.

        Args:
            coins: True for each canary that took part.
        """
        self._coins = coins

    def draw_records(self) -> tuple[Tensor, Tensor]:
        """Flip the coins of the next training and return its records and labels."""
        self._coins = torch.rand(self.count, generator=self._rng) < 0.5
        pairs = zip(self._data, self._canaries, strict=True)
        inputs, labels = (torch.cat([some, more[self._coins]]) for some, more in pairs)
        return inputs, labels

    def add_model(self, model: object) -> None:
        """Guess the coins from the trained model.

        Args:
            model: The model that was trained on the records of :meth:`draw_records`.

        Raises:
            InvalidInput: If it is not a module, or its loss is not finite.
        """
        scores = self._score(model)
        self.runs += 1
        if self.count == 1:
            self._guess_one(scores[0], bool(self._coins[0]))
            return
        # relative to the middle, so that half of the guesses says "took part"
        relative = scores - np.median(scores)
        chosen = np.argsort(-np.abs(relative), kind="stable")[: guesses_of(self.count)]
        self.guesses += len(chosen)
        self.right += int(((relative > 0) == self._coins.numpy())[chosen].sum())

    def evidence(self) -> float:
        """Return the logarithm of the evidence against the claim."""
        if self.count == 1 and self.fixed:
            return -float(binom.logsf(self.right - 1, self.guesses, self.cap))
        if self.count == 1:
            return log_evidence_above(self.right, self.guesses, self.cap, CANARY_PRIOR)
        return self._one_run_evidence(trade_off_of(self.claimed))

    def row(self) -> MechanismTest:
        """Return the test with its evidence."""
        share = self.right / self.guesses
        if self.count == 1:
            low, high = self._limits()
            claim = f"canary accuracy <= {self.cap:.4g}"
            return MechanismTest("canary accuracy", claim, self.guesses, self.evidence(), share, low, high)
        claim = f"so many right guesses about {self.count * self.runs} canaries can happen"
        return MechanismTest(ONE_RUN, claim, self.guesses, self.evidence(), share)

    def epsilon_within_family(self, delta: float) -> float | None:
        """Return the smallest epsilon in the family of the claim that the guesses do not reject.

        Args:
            delta: Delta of the epsilon.

        Returns:
            Lower bound on epsilon within the family; None if the claim states no noise.
        """
        if not has_phases(self.claimed):
            return None
        if all(phase.is_full_batch for phase in phases_of(self.claimed)):  # Gaussian DP, without a numerical search
            return gaussian_epsilon(self._gaussian_mu(), delta)

        def rejects(log_factor: float) -> bool:
            scaled: Any = scale_noise(self.claimed, math.exp(log_factor))
            if self.count == 1:
                return self._lower_share() > accuracy_cap(trade_off_of(scaled))
            return one_run_trade_off_rejected(
                self.count * self.runs, self.guesses, self.right, trade_off_of(scaled), alpha=self.alpha
            )

        low, high = math.log(1e-2), math.log(1e3)
        if not rejects(high):
            return 0.0
        for _ in range(_SEARCHES):
            middle = (low + high) / 2
            low, high = (low, middle) if rejects(middle) else (middle, high)
        return epsilon_with_less_noise(self.claimed, math.exp(high), delta)

    def epsilon_of_one_run(self, delta: float) -> float:
        """Return the shape-free lower bound on epsilon from many canaries.

        Args:
            delta: Delta of the epsilon.

        Returns:
            The bound.
        """
        return one_run_epsilon(self.count * self.runs, self.guesses, self.right, delta=delta, alpha=self.alpha)

    def _gaussian_mu(self) -> float:
        """Return the lower bound on the parameter of Gaussian DP."""
        if self.count > 1:
            return one_run_mu(self.count * self.runs, self.guesses, self.right, alpha=self.alpha)
        return gaussian_mu_lower(self.right, self.guesses, alpha=self.alpha, anytime=not self.fixed)

    def _lower_share(self) -> float:
        """Return the one-sided lower limit of the share of right guesses."""
        if self.fixed:
            return clopper_pearson(self.right, self.guesses, 1 - 2 * self.alpha).low
        return count_limits(self.right, self.guesses, alpha=self.alpha, prior=CANARY_PRIOR)[0]

    def _limits(self) -> tuple[float, float]:
        if self.fixed:
            found = clopper_pearson(self.right, self.guesses, 1 - self.alpha)
            return found.low, found.high
        return count_limits(self.right, self.guesses, alpha=self.alpha / 2, prior=CANARY_PRIOR)

    def _score(self, model: object) -> Array:
        """Return minus the loss of each canary."""
        if not isinstance(model, nn.Module):
            remedy = "Let train(records, labels) return the trained model."
            raise invalid_input("type(train(...))", type(model).__name__, "to be a torch module", remedy)
        was_training = model.training
        model.eval()
        with torch.no_grad():
            pairs = zip(*self._canaries, strict=True)
            losses = [float(self._loss_fn(model(record[None]), label[None])) for record, label in pairs]
        model.train(was_training)
        return -np.array([check_finite("loss of a canary", loss, "Check the training.") for loss in losses])

    def _guess_one(self, score: float, took_part: bool) -> None:
        """Guess one coin by the scores of earlier trainings."""
        past, inside = np.array(self._raw), np.array(self.truths, dtype=bool)
        ratio = 0.0
        if 0 < inside.sum() < len(inside):
            means = past[inside].mean(), past[~inside].mean()
            spread = np.where(inside, past - means[0], past - means[1]).std()
            # log likelihood ratio of two normal laws; at first the spread is unknown, and only the sign counts
            slope = (means[0] - means[1]) / spread**2 if spread > 0 else math.copysign(1.0, means[0] - means[1])
            ratio = float(slope * (score - sum(means) / 2))
        coin = bool(torch.rand(1, generator=self._rng) < 0.5)
        self._raw.append(score)
        self.scores.append(ratio)
        self.truths.append(took_part)
        self.guesses += 1
        self.right += (coin if ratio == 0 else ratio > 0) == took_part

    def _one_run_evidence(self, trade_off: TradeOff) -> float:
        """Return ln(1 / p) for the smallest level at which the claim is rejected."""

        def rejects(level: float) -> bool:
            return one_run_trade_off_rejected(
                self.count * self.runs, self.guesses, self.right, trade_off, alpha=math.exp(level)
            )

        low, high = math.log(1e-12), math.log(0.999)  # levels that are not rejected, and rejected
        if not rejects(high):
            return 0.0
        if rejects(low):
            return -low
        for _ in range(_SEARCHES):
            middle = (low + high) / 2
            low, high = (low, middle) if rejects(middle) else (middle, high)
        return -high
