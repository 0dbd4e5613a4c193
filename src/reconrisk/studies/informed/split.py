"""Known and unknown records of an informed adversary, and baselines that use the known records alone.

:func:`least_unbiased_mse` and :func:`linear_bound` bound the error of unbiased estimates under known noise. They are
evaluated at the target record, which an audit knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from reconrisk.attacks.informed.membership import informed_membership
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.metrics import nearest_neighbour_oracle
from reconrisk.releases.fitted_estimators.estimators import LinearModel
from reconrisk.releases.fitted_estimators.glm import GlmRelease
from reconrisk.releases.sensitivity.fisher import fisher_matrix

LARGEST = 4096
"""Largest number of values of a record with a bound: it needs that many derivatives, and a square matrix of them."""


def least_unbiased_mse(information: Tensor) -> float:
    r"""Cramer-Rao bound on the mean squared error of unbiased estimates.

    .. math:: \mathrm{tr}(I^{-1}) / d

    Here I is the information and d the number of values.

    Args:
        information: Fisher information matrix of shape (d, d).

    Returns:
        The smallest mean squared error per value.

    Edge cases: inf if the information is singular up to rounding, since no unbiased estimate exists.

    >>> least_unbiased_mse(torch.diag(torch.tensor([1.0, 4.0])))
    0.625
    """
    values = torch.linalg.eigvalsh(information.double())
    # eigenvalues below d eps times the largest are rounding; negated, so that NaN gives inf too
    if not float(values[0]) > len(values) * torch.finfo(torch.float64).eps * float(values[-1]):
        return math.inf
    return float(values.reciprocal().mean())


def linear_bound(
    model: LinearModel, known: Tensor, target: Tensor, *, noise_std: float, sought: Tensor | None = None
) -> float | None:
    """Cramer-Rao bound for a linear model fitted to known records and a target, with noise on each coefficient.

    Args:
        model: Fitted model with the labels of the known records and, last, of the target.
        known: Known records.
        target: Target record.
        noise_std: Standard deviation of the noise.
        sought: Mask of the coordinates that are not known; None for all.

    Returns:
        The smallest mean squared error of unbiased estimates; None for more than 4096 values or weighted records.
    """
    weights = torch.as_tensor(model.sample_weights.copy())
    if target.numel() > LARGEST or bool((weights != 1).any()):
        return None
    labels = torch.as_tensor(model.labels)
    labels = labels.long() if model.family == "multinomial" else labels
    release = GlmRelease(
        target.double().flatten()[None],
        labels[-1:],
        known_inputs=known.double().flatten(1),
        known_labels=labels[:-1],
        family=model.family,
        penalty=model.penalty,
        intercept=model.bias is not None,
        intercept_penalty=model.intercept_penalty,
        classes=len(model.weight) if model.family == "multinomial" else None,
    )
    information = fisher_matrix(release, noise_std=noise_std)
    return least_unbiased_mse(information if sought is None else information[sought][:, sought])


class Guess(NamedTuple):
    """Baselines for a target: the nearest known record with its index, and the mean of known records of its class."""

    neighbour: int
    nearest: Tensor
    class_mean: Tensor


@dataclass(frozen=True, eq=False)
class InformedSplit:
    """Targets, known training records, and remaining records.

    Attributes:
        dataset: All records.
        targets: Indices of the targets.
        fixed: Rows of the known training records.
        left: Rows that are neither fixed nor targets.
        together: True if one model was trained on the fixed records and all targets; the adversary of one target then
            knows the others. False for one model per target.
        prior: Rows of known records that were not trained on, such as shadow targets.
    """

    dataset: Dataset
    targets: tuple[int, ...]
    fixed: Tensor
    left: Tensor
    together: bool
    prior: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def known_rows(self, place: int) -> Tensor:
        """Return the rows that the adversary of one target knows, in the order of the data."""
        if not self.together or len(self.targets) == 1:
            return self.fixed
        others = [record for number, record in enumerate(self.targets) if number != place]
        return torch.cat([self.fixed, torch.tensor(others)]).sort().values

    @property
    def known_count(self) -> int:
        """Number of records that each adversary knows."""
        return len(self.known_rows(0))

    def guess(self, place: int) -> Guess:
        """Return the baselines of a target from the records known to its adversary."""
        rows, target = torch.cat([self.known_rows(place), self.prior]), self.dataset.inputs[self.targets[place]]
        known, labels = self.dataset.inputs[rows], self.dataset.labels
        index = int(nearest_neighbour_oracle(target[None], known).indices[0])
        alike = known
        if labels is not None and not labels.is_floating_point():
            same = labels[rows] == labels[self.targets[place]]
            alike = known[same] if bool(same.any()) else known
        return Guess(int(rows[index]), known[index], alike.mean(0))

    def membership(self, place: int, estimate: Tensor, error: float | None) -> str:
        """Decide from its reconstruction if a model was trained on the target: "in", "not in" or "undecided".

        The answer is "in" if the estimate is within half the target's distance to the nearest known record.

        Args:
            place: Index of the target among the targets.
            estimate: Estimated record.
            error: Upper limit on the root mean square error of the estimate; None if the attack failed.

        Returns:
            "undecided" if the attack failed or ``error`` is not below half that distance, otherwise "in" or "not in".
        """
        target = self.dataset.inputs[self.targets[place]]
        apart = float((self.guess(place).nearest - target).double().square().mean().sqrt())
        if error is None or not error < apart / 2:
            return "undecided"
        decided = informed_membership(estimate, target.flatten()[None], error=apart / 2)
        return "not in" if decided.index is None else "in"


def informed_split(
    dataset: Dataset, targets: Sequence[int], *, fixed: int | None = None, together: bool = False
) -> InformedSplit:
    """Split a data set into targets, known training records and remaining records.

    Args:
        dataset: Records with labels.
        targets: Indices of the targets.
        fixed: Number of known training records: the first ones that are not targets. None for all.
        together: True if one model was trained on the fixed records and all targets.

    Returns:
        The split.

    Raises:
        InvalidInput: If there are no labels, no targets, unknown or repeated targets, or too few other records.

    >>> data = Dataset("toy", torch.rand(5, 2), torch.tensor([0, 1, 0, 1, 0]))
    >>> split = informed_split(data, [1, 3], fixed=2)
    >>> split.fixed.tolist(), split.left.tolist()
    ([0, 2], [4])
    """
    check_not_empty("targets", targets, "Choose at least one record.")
    if dataset.labels is None:
        raise invalid_input(
            "dataset", dataset.name, "to have labels", "Pass records with labels: a model is trained on both."
        )
    for target in targets:
        if check_whole("target_index", target, minimum=0) >= len(dataset):
            raise invalid_input(
                "target_index", target, f"to be from 0 to {len(dataset) - 1}, the records of {dataset.name}"
            )
    if len(set(targets)) < len(targets):
        raise invalid_input("target_index", list(targets), "to name each record once", "Remove repeated indices.")
    others = torch.ones(len(dataset), dtype=torch.bool)
    others[list(targets)] = False
    rows = others.nonzero().squeeze(1)
    check_not_empty("other records", rows, "Leave records that are not targets: an informed adversary knows some.")
    count = len(rows) if fixed is None else check_whole("fixed", fixed)
    if count > len(rows):
        raise invalid_input("fixed", fixed, f"<= {len(rows)}, the records of {dataset.name} that are not targets")
    return InformedSplit(dataset, tuple(int(one) for one in targets), rows[:count], rows[count:], together)
