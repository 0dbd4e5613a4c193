"""Knowledge of an informed adversary as data, and the shadow models that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import check_all_finite, check_not_empty, invalid_input
from reconrisk.releases.release import rows_among
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.store import train_shadow_models
from reconrisk.releases.shadow.training import ShadowTraining

FEWEST = 10
"""Smallest number of shadow targets that a reconstructor can be trained on."""

_MEMORY = 2**32  # bytes of shadow models at most: 10,000 of the MNIST network of balle2022 take a twelfth of it


@dataclass(frozen=True, eq=False)
class ShadowKnowledge:
    """Knowledge of the adversary: the training, the other records, and the distribution of the target.

    Attributes:
        training: Fixed records, and everything known about the training: the initialisation (``draw_start`` if it is
            unknown), the batches (``RandomBatches`` if their order is unknown), and the privacy of training.
        targets: Shadow targets (n, ...): records of the adversary, each of which takes the place of the target in one
            shadow model.
        labels: Labels of the shadow targets, (n,).
        in_distribution: True if the shadow targets are drawn from the distribution of the target.

    Assumes: the target is not among the shadow targets.
    Edge cases: shadow targets that are fixed records are refused: a record that is trained on twice is unlike the
    target.
    Reference: sections II-A and VI-B, balle2022.

    >>> from torch import nn
    >>> training = ShadowTraining(nn.Linear(2, 2), torch.ones(1, 2), torch.tensor([0]), steps=1)
    >>> knowledge = ShadowKnowledge(training, torch.eye(2), torch.tensor([0, 1]))
    >>> knowledge.threat
    ThreatModel(sees=final-model, knows=initialisation+other-records+prior, controls=nothing)
    >>> knowledge.shadow_models(rng=torch.Generator()).shape
    torch.Size([2, 6])
    """

    training: ShadowTraining
    targets: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    in_distribution: bool = True

    def __post_init__(self) -> None:
        check_not_empty("targets", self.targets, "Pass records similar to the target.")
        check_all_finite("targets", self.targets)
        if len(self.targets) != len(self.labels):
            raise invalid_input(
                "len(labels)", len(self.labels), f"to be {len(self.targets)}, the number of shadow targets"
            )
        shape = tuple(self.training.fixed_inputs.shape[1:])
        if tuple(self.targets.shape[1:]) != shape:
            found = tuple(self.targets.shape)
            raise invalid_input(
                "targets.shape", found, f"to be {(len(self.targets), *shape)}, since fixed records are {shape}"
            )
        twice = rows_among(self.targets, self.training.fixed_inputs)
        if twice:
            shown = f"{list(twice[:5])}{' and more' if len(twice) > 5 else ''}"
            raise InvalidInput(f"Expected targets to contain no fixed record. Remove the rows {shown}.")

    @property
    def initialisation(self) -> bool:
        """Return True if the parameters before training are known."""
        return self.training.draw_start is None

    @property
    def batch_order(self) -> bool:
        """Return True if the records of each step are known."""
        return not isinstance(self.training.batches, RandomBatches)

    @property
    def threat(self) -> ThreatModel:
        """Threat model of an adversary with this knowledge."""
        threat = ThreatModel(Sees.FINAL_MODEL, frozenset({Knows.OTHER_RECORDS, Knows.PRIOR}))
        return threat.with_knowledge(Knows.INITIALISATION) if self.initialisation else threat

    def shadow_models(self, *, rng: torch.Generator, store: str | Path | None = None) -> Tensor:
        """Train one shadow model per shadow target.

        Args:
            rng: Source of randomness of the trainings.
            store: Folder that keeps the models; the same call with the same folder resumes their training.

        Returns:
            Parameters (n, p), one row per shadow target.
        """
        made = train_shadow_models(self.training, self.targets, self.labels, store=store, memory=_MEMORY, rng=rng)
        return made.rows

    def __repr__(self) -> str:
        """Return the numbers of records and the known parts of the training."""
        parts = {
            "initialisation": self.initialisation,
            "batch order": self.batch_order,
            "distribution of the target": self.in_distribution,
        }
        known = [name for name, is_known in parts.items() if is_known]
        private = "" if self.training.private is None else f", trained with {self.training.private}"
        fixed = len(self.training.fixed_inputs)
        return f"ShadowKnowledge({len(self.targets)} targets, {fixed} fixed, knows {', '.join(known)}{private})"
