"""The population that targets are drawn from, and the success of a guess at one of its records.

The confidence intervals of an audit and the prior of its bounds refer to this population.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from reconrisk.bounds.prior_success import PriorSuccess, candidate_set
from reconrisk.core.threat import Knows
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.data.dataset import Dataset

LARGEST = 4096
"""Largest population; larger data are sampled, because the distances of all pairs of records are computed."""

_MOST_VALUES = 2**26  # values in a population: half a gigabyte in double precision

# Knowledge that can identify a record among all others, so that a guess may always succeed.
_IDENTIFYING = frozenset({Knows.RECORD_NORM, Knows.BATCH_STATISTICS})


@dataclass(frozen=True, eq=False)
class Population:
    """Records that targets are drawn from, each equally likely.

    Attributes:
        dataset: Data set that holds the records.
        rows: Rows of the data set that form the population.
    """

    dataset: Dataset
    rows: tuple[int, ...]

    def updates(self, count: int, batch_size: int, rng: torch.Generator) -> tuple[tuple[int, ...], ...]:
        """Draw the target rows of every update.

        Args:
            count: Number of updates.
            batch_size: Records of each update.
            rng: Source of the random choice.

        Returns:
            One tuple of ``batch_size`` row indices per update.

        Guarantee: every update is a uniform choice of ``batch_size`` different records; a larger ``count`` adds updates
        to those of a smaller one. Single records are drawn without replacement until all have been used. Updates of
        several records are drawn independently and may share records. Disjoint updates would not be independent trials,
        so intervals would be too narrow.
        """
        if check_whole("batch_size", batch_size) > len(self.rows):
            raise invalid_input(
                "batch_size", batch_size, f"<= {len(self.rows)}, the records that targets are drawn from"
            )
        rows, found = torch.tensor(self.rows), list[tuple[int, ...]]()
        while len(found) < count:
            shuffled = rows[torch.randperm(len(rows), generator=rng)]
            found += (
                [(row,) for row in shuffled.tolist()] if batch_size == 1 else [tuple(shuffled[:batch_size].tolist())]
            )
        return tuple(found[:count])

    def prior_success(self, mse: float, *, knows: frozenset[Knows], batch_size: int) -> PriorSuccess:
        r"""Return an upper bound on the success of a guess by an adversary who knows the whole population.

        .. math:: \kappa \le \sum_c \frac{n_c}{n} \min\Bigl(1, \frac{B m_c}{n_c - B + 1}\Bigr)

        Notation: there are n records, :math:`n_c` of them with label c if labels are known. One guess is within ``mse``
        of at most :math:`m_c` of these. An update of B = ``batch_size`` records allows B estimates, of which the
        nearest counts. An adversary who has found the other B - 1 records excludes them.

        Args:
            mse: Mean squared error within which a guess succeeds.
            knows: Knowledge of the adversary about the target.
            batch_size: Records that share one update.

        Returns:
            The bound, marked as not exact, with a description of the prior.

        Guarantee: at least the true success probability. It is 1 if the norm or batch statistics are known, because
        they may identify the record.
        """
        inputs = self.dataset.inputs[list(self.rows)].flatten(1).numpy()
        belief = f"one of {len(self.rows)} records, each equally likely"
        if knows & _IDENTIFYING:
            names = ", ".join(sorted(each.value for each in knows & _IDENTIFYING))
            return PriorSuccess(0.0, f"{belief}, identified by {names}")
        groups = [inputs]
        labels = self.dataset.labels
        if Knows.LABELS in knows and labels is not None:
            _, classes = np.unique(labels[list(self.rows)].numpy(), axis=0, return_inverse=True)  # rows may be vectors
            groups = [inputs[classes.ravel() == each] for each in range(int(classes.max()) + 1)]
            belief += " within its known label"
        shares = [len(group) / len(inputs) * _best_guesses(group, mse, batch_size) for group in groups]
        if batch_size > 1:
            belief += f", {batch_size} guesses"
        # The slack covers the rounding of the sum, so that the bound stays on the safe side.
        return PriorSuccess(min(0.0, math.log(sum(shares)) + 1e-12), belief, exact=False)

    @property
    def least_norm(self) -> float:
        """Smallest Euclidean norm of a record."""
        return float(self.dataset.inputs[list(self.rows)].flatten(1).norm(dim=1).min())


def draw_population(
    dataset: Dataset, records: Sequence[int] | None, rng: torch.Generator, known: Collection[int] = ()
) -> Population:
    """Return the population of a data set.

    Args:
        dataset: Records.
        records: Rows that form the population; None for all rows, or a sample of more than :data:`LARGEST`.
        rng: Source of the sample.
        known: Rows that the adversary knows; they are left out.

    Returns:
        The population.

    Raises:
        InvalidInput: If rows do not exist, repeat, or are known, or if no row is left.
    """
    if records is not None:
        rows = tuple(check_whole("records", row, minimum=0) for row in records)
        if not rows or len(set(rows)) < len(rows) or max(rows) >= len(dataset):
            raise invalid_input(
                "records", rows[:8], f"to be different rows from 0 to {len(dataset) - 1} of {dataset.name}"
            )
        clash = sorted(set(rows) & set(known))
        if clash:
            remedy = "Pass other rows, or remove these from the fixed records, which the adversary knows."
            raise invalid_input("records", clash[:8], "to be none of the fixed records", remedy)
        return Population(dataset, rows)
    largest = min(LARGEST, max(2, _MOST_VALUES // dataset.inputs[0].numel()))  # fewer if records are large
    free = torch.tensor(sorted(set(range(len(dataset))) - set(known)), dtype=torch.int64)
    if not len(free):
        remedy = "Pass records that are not among the fixed ones: in each trial, one of them is added to the training."
        raise invalid_input("data", dataset.name, "to hold records other than the fixed ones, which are known", remedy)
    if len(free) <= largest:
        return Population(dataset, tuple(free.tolist()))
    chosen = free[torch.randperm(len(free), generator=rng)[:largest].sort().values]
    return Population(dataset, tuple(chosen.tolist()))


def _best_guesses(points: np.ndarray, mse: float, guesses: int) -> float:
    """Upper bound on the success of several guesses at one of ``points`` if ``guesses - 1`` of them are excluded."""
    left = len(points) - guesses + 1
    if left <= guesses:  # as many guesses as remaining records
        return 1.0
    weights = np.full(len(points), 1 / len(points))
    # At mse = 0, candidate_set ignores the points; the smallest float32 counts equal records as one candidate.
    one = candidate_set(weights, candidates=points, mse=max(mse, float(np.finfo(np.float32).tiny))).value
    return min(1.0, guesses * one * len(points) / left)
