"""The population that targets are drawn from, and how often a guess at one of them succeeds.

The intervals of an audit and the prior of its bounds are about this population.
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
"""Records of a population; of larger data, a sample is the population. Distances of all pairs are computed."""

_MOST_VALUES = 2**26  # of a population, for which half a gigabyte is needed

_TELLING = frozenset({Knows.RECORD_NORM, Knows.BATCH_STATISTICS})


@dataclass(frozen=True, eq=False)
class Population:
    """Records of ``dataset`` that targets are drawn from, each equally likely: ``rows`` of it."""

    dataset: Dataset
    rows: tuple[int, ...]

    def updates(self, count: int, batch_size: int, rng: torch.Generator) -> tuple[tuple[int, ...], ...]:
        """Rows of ``count`` updates; of single records none occurs twice before all have had their turn.

        Guarantee: every update is a uniform choice of ``batch_size`` different records; a larger ``count`` adds updates
        to those of a smaller one. Updates of several records are drawn independently: disjoint ones can succeed and
        fail together, so that their number would say less than it seems to.
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
        r"""The best success of a guess by whoever knows all these records, and of the target what ``knows`` says.

        .. math:: \kappa \le \sum_c \frac{n_c}{n} \min\Bigl(1, \frac{B m_c}{n_c - B + 1}\Bigr)

        Notation: n records, :math:`n_c` of label c where that is known, at most :math:`m_c` of them within reach of one
        guess. Of an update of B = ``batch_size`` records there are B estimates, of which the nearest counts: so many
        guesses; whoever has found the others knows that the target is none of them.

        Guarantee: never below the truth. Norms and statistics of a batch may tell records apart, so that with them
        it is 1. Labels are known class by class.
        """
        inputs = self.dataset.inputs[list(self.rows)].flatten(1).numpy()
        belief = f"one of {len(self.rows)} records, each equally likely"
        if knows & _TELLING:
            return PriorSuccess(0.0, f"{belief}, told apart by {', '.join(sorted(k.value for k in knows & _TELLING))}")
        groups = [inputs]
        labels = self.dataset.labels
        if Knows.LABELS in knows and labels is not None:
            _, classes = np.unique(labels[list(self.rows)].numpy(), axis=0, return_inverse=True)
            groups = [inputs[classes.ravel() == each] for each in range(int(classes.max()) + 1)]
            belief += " within its known label"
        shares = [len(group) / len(inputs) * _best_guesses(group, mse, batch_size) for group in groups]
        if batch_size > 1:
            belief += f", {batch_size} guesses"
        return PriorSuccess(min(0.0, math.log(sum(shares)) + 1e-12), belief, exact=False)

    @property
    def least_norm(self) -> float:
        """The smallest Euclidean norm of a record."""
        return float(self.dataset.inputs[list(self.rows)].flatten(1).norm(dim=1).min())


def population_of(
    dataset: Dataset, records: Sequence[int] | None, rng: torch.Generator, known: Collection[int] = ()
) -> Population:
    """All records, or a sample where there are more than :data:`LARGEST`, or those that were chosen.

    Guarantee: rows that the adversary has as ``known`` records are left out, and refused where they were chosen.
    """
    if records is not None:
        rows = tuple(check_whole("records", row, minimum=0) for row in records)
        if not rows or len(set(rows)) < len(rows) or max(rows) >= len(dataset):
            raise invalid_input(
                "records", rows[:8], f"to be different rows from 0 to {len(dataset) - 1} of {dataset.name}"
            )
        clash = sorted(set(rows) & set(known))
        if clash:
            remedy = "Who knows a record needs no attack: choose others, or leave them out of the fixed ones."
            raise invalid_input("records", clash[:8], "to be none of the fixed records", remedy)
        return Population(dataset, rows)
    largest = min(LARGEST, max(2, _MOST_VALUES // dataset.inputs[0].numel()))
    free = torch.tensor(sorted(set(range(len(dataset))) - set(known)), dtype=torch.int64)
    if not len(free):
        remedy = "Pass records that the model was not trained on: each in turn is the one more that it is trained on."
        raise invalid_input("data", dataset.name, "to hold records beside the fixed ones, which are known", remedy)
    if len(free) <= largest:
        return Population(dataset, tuple(free.tolist()))
    chosen = free[torch.randperm(len(free), generator=rng)[:largest].sort().values]
    return Population(dataset, tuple(chosen.tolist()))


def _best_guesses(points: np.ndarray, mse: float, guesses: int) -> float:
    """Upper bound on the success of so many guesses at one of ``points``, of which as many less one are ruled out."""
    left = len(points) - guesses + 1
    if left <= guesses:
        return 1.0
    weights = np.full(len(points), 1 / len(points))
    one = candidate_set(weights, candidates=points, mse=max(mse, float(np.finfo(np.float32).tiny))).value
    return min(1.0, guesses * one * len(points) / left)
