"""The records that an informed adversary knows, the unknown one, and what the known ones alone tell about it.

:func:`least_unbiased_mse` and :func:`linear_bound` say how near unbiased estimates can come under known noise, at the
record itself, which an audit knows.
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
"""Values of a record up to which a bound is computed: it takes as many derivatives, and a matrix of them."""


def least_unbiased_mse(information: Tensor) -> float:
    r"""The Cramer-Rao bound on the mean squared error of unbiased estimates.

    .. math:: \mathrm{tr}(I^{-1}) / d

    Edge cases: inf where the information is singular up to rounding: no unbiased estimate exists.

    >>> least_unbiased_mse(torch.diag(torch.tensor([1.0, 4.0])))
    0.625
    """
    values = torch.linalg.eigvalsh(information.double())
    if not float(values[0]) > len(values) * torch.finfo(torch.float64).eps * float(values[-1]):
        return math.inf
    return float(values.reciprocal().mean())


def linear_bound(
    model: LinearModel, known: Tensor, target: Tensor, *, noise_std: float, sought: Tensor | None = None
) -> float | None:
    """The bound for a linear model fitted to known records and, last, ``target``, with noise on each coefficient.

    ``model`` holds the labels of all of them; ``sought`` marks coordinates that are not known, by default all.

    Edge cases: None for records of more than 4096 values and for weighted records.
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
    """The known record nearest to a target and the mean of its class, with the place of the former in the data."""

    neighbour: int
    nearest: Tensor
    class_mean: Tensor


@dataclass(frozen=True, eq=False)
class InformedSplit:
    """Targets, the records that are fixed, and those left over.

    ``together`` says that one model was trained on the fixed records and all targets, whose adversary knows the other
    targets too; otherwise there is a model for each target, trained on the fixed records and it. ``prior`` are records
    that were not trained on and are known all the same, such as shadow targets.
    """

    dataset: Dataset
    targets: tuple[int, ...]
    fixed: Tensor
    left: Tensor
    together: bool
    prior: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def known(self, place: int) -> Tensor:
        """Which records the adversary of one target knows, in the order of the data."""
        if not self.together or len(self.targets) == 1:
            return self.fixed
        others = [record for number, record in enumerate(self.targets) if number != place]
        return torch.cat([self.fixed, torch.tensor(others)]).sort().values

    @property
    def known_count(self) -> int:
        """How many records each adversary knows."""
        return len(self.known(0))

    def guess(self, place: int) -> Guess:
        """What the records known to the adversary of a target tell about it."""
        rows, target = torch.cat([self.known(place), self.prior]), self.dataset.inputs[self.targets[place]]
        known, labels = self.dataset.inputs[rows], self.dataset.labels
        index = int(nearest_neighbour_oracle(target[None], known).indices[0])
        alike = known
        if labels is not None and not labels.is_floating_point():
            same = labels[rows] == labels[self.targets[place]]
            alike = known[same] if bool(same.any()) else known
        return Guess(int(rows[index]), known[index], alike.mean(0))

    def membership(self, place: int, estimate: Tensor, error: float | None) -> str:
        """Whether a model was trained on the target, told by its reconstruction; undecided if that may err too much.

        The estimate speaks for the target if it is within half the target's distance from every known record.
        ``error`` is the root mean square error that the estimate may have, None where the attack failed.
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
    """The records of a training around ``targets``: ``fixed`` of the others, the first ones, by default all.

    >>> data = Dataset("toy", torch.rand(5, 2), torch.tensor([0, 1, 0, 1, 0]))
    >>> split = informed_split(data, [1, 3], fixed=2)
    >>> split.fixed.tolist(), split.left.tolist()
    ([0, 2], [4])
    """
    check_not_empty("targets", targets, "Choose at least one record.")
    if dataset.labels is None:
        raise invalid_input(
            "dataset", dataset.name, "to have labels", "A model is trained on records and their labels."
        )
    for target in targets:
        if check_whole("target_index", target, minimum=0) >= len(dataset):
            raise invalid_input(
                "target_index", target, f"to be from 0 to {len(dataset) - 1}, the records of {dataset.name}"
            )
    if len(set(targets)) < len(targets):
        raise invalid_input("target_index", list(targets), "to name each record once")
    others = torch.ones(len(dataset), dtype=torch.bool)
    others[list(targets)] = False
    rows = others.nonzero().squeeze(1)
    check_not_empty("other records", rows, "Leave records that are no targets: an informed adversary knows some.")
    count = len(rows) if fixed is None else check_whole("fixed", fixed)
    if count > len(rows):
        raise invalid_input("fixed", fixed, f"<= {len(rows)}, the records of {dataset.name} that are no targets")
    return InformedSplit(dataset, tuple(int(one) for one in targets), rows[:count], rows[count:], together)
