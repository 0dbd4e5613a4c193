"""What attacks of an informed adversary found, scored against the targets and against what was known before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.audit.informed_report import InformedReport, InformedTarget
from reconrisk.audit.informed_split import InformedSplit
from reconrisk.core.reconstruction import Account
from reconrisk.core.threat import ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.metrics import mse, psnr


@dataclass(frozen=True, eq=False)
class RebuiltInformed:
    """The report of an informed adversary; estimates, targets and the nearest known records in its order."""

    report: InformedReport
    estimates: Tensor
    targets: Tensor
    neighbours: Tensor

    def __repr__(self) -> str:
        """The report as text."""
        return str(self.report)


@dataclass(frozen=True, eq=False)
class Finding:
    """What the attack on one target gave.

    ``label`` is the one it found, None where it was known. ``account`` is the place of its account. ``error`` is the
    root mean square error that the estimate has at most, None where nothing is known of it; if it ``is_typical``, some
    estimates err more. ``membership`` is an answer that does not rest on the estimate.
    """

    estimate: Tensor
    label: float | None
    objective: float
    account: int
    cramer_rao_mse: float | None = None
    error: float | None = None
    is_typical: bool = False
    membership: str | None = None


@dataclass(frozen=True)
class Words:
    """What a report says about attack, model and training."""

    attack: str
    model: str
    training: str
    noise: str
    victims: str


def informed_result(
    split: InformedSplit,
    findings: Sequence[Finding],
    accounts: Sequence[Account],
    *,
    words: Words,
    threat: ThreatModel,
    membership: bool,
    seed: int,
    sought: Tensor | None = None,
) -> RebuiltInformed:
    """The findings on the first targets, scored on the coordinates that were ``sought``, by default all."""
    rows = list(split.targets[: len(findings)])
    targets, data = split.dataset.inputs[rows], split.dataset
    guesses = [split.guess(place) for place in range(len(rows))]
    estimates = torch.stack([finding.estimate.reshape(data.shape) for finding in findings])
    neighbours = torch.stack([guess.nearest for guess in guesses])
    means = torch.stack([guess.class_mean for guess in guesses])
    every = slice(None) if sought is None else sought
    truth, *others = (one.double().flatten(1)[:, every] for one in (targets, estimates, neighbours, means))
    errors = [mse()(one, truth).tolist() for one in others]
    ratios = psnr(data_range=data.data_range)(others[0], truth).tolist()
    told = [
        InformedTarget(
            record=rows[place],
            label=_label(data, rows[place]),
            found="" if finding.label is None else label_word(data, finding.label),
            mse=errors[0][place],
            psnr=ratios[place],
            neighbour=guesses[place].neighbour,
            neighbour_mse=errors[1][place],
            class_mean_mse=errors[2][place],
            objective=finding.objective,
            account=finding.account,
            cramer_rao_mse=finding.cramer_rao_mse,
            membership=_membership(split, place, finding) if membership else "",
        )
        for place, finding in enumerate(findings)
    ]
    report = InformedReport(
        attack=words.attack,
        model=words.model,
        data=data.name,
        training=words.training,
        noise=words.noise,
        victims=words.victims,
        threat=threat,
        shape=data.shape,
        data_range=data.data_range,
        known=split.known_count,
        requested=len(split.targets),
        targets=tuple(told),
        accounts=tuple(accounts),
        seed=seed,
    )
    return RebuiltInformed(report, estimates, targets, neighbours)


def label_word(dataset: Dataset, label: float) -> str:
    """A label as people read it: the name of its class, or the number.

    >>> label_word(Dataset("toy", torch.zeros(2, 1), torch.tensor([0, 1]), classes=("cat", "dog")), 1)
    'dog'
    """
    names = dataset.classes
    if names is not None and float(label).is_integer() and 0 <= label < len(names):
        return names[int(label)]
    return f"{label:.5g}"


def _label(dataset: Dataset, record: int) -> str:
    labels = dataset.labels
    if labels is None or labels[record].numel() > 1:
        return "none" if labels is None else "several"
    return label_word(dataset, float(labels[record]))


def _membership(split: InformedSplit, place: int, finding: Finding) -> str:
    if finding.membership is not None:
        return finding.membership
    answer = split.membership(place, finding.estimate.reshape(split.dataset.shape), finding.error)
    # an estimate farther off than is typical may still be of the target
    return "undecided" if finding.is_typical and answer == "not in" else answer
