"""One attack on the updates of chosen records, with a score for each record.

:class:`AttackOnUpdates` is the loop that :func:`reconrisk.studies.rebuild.updates.rebuild` and
:func:`reconrisk.studies.prior_value.over_prior.leakage_over_prior` share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.knowledge import attack_name
from reconrisk.attacks.with_prior.guided_diffusion import GuidedSampling
from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Metric
from reconrisk.core.observation import Attack, Observation, check_reconstruction
from reconrisk.core.reconstruction import AttackReport, Ending
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.metrics import score
from reconrisk.releases.observe import observe
from reconrisk.studies.common.subjects.model_updates import Client

_SEEDS = 2**62  # torch.randint draws below this; the largest int64 is 2**63 - 1

Progress = Callable[[int, int], None]
"""Called after each update with the number of updates done and the number of all."""


@dataclass(frozen=True, eq=False)
class AttackedUpdate:
    """Estimates and scores of one update, in the order of its records.

    Attributes:
        estimates: One estimate for each record.
        account: Status, objective and cost that the attack reported.
        objective: The attack's objective for each record.
        labels: Labels of the records, known or inferred, that the attack used; empty if it used none.
        values: Scores of the estimates by the name of a metric.
        guess: Scores of the guess; empty without a guess.
        oracle: Scores of the best estimates on the path of a guided diffusion; empty for other attacks.
    """

    estimates: Tensor
    account: AttackReport
    objective: tuple[float, ...]
    labels: tuple[int, ...]
    values: Mapping[str, Tensor]
    guess: Mapping[str, Tensor]
    oracle: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class AttackOnUpdates:
    """An attack on the updates of a client.

    Attributes:
        attack: The configured attack.
        client: Client that computes the updates.
        defense: Defense of the updates; None for none.
        threat: Abilities of the adversary.
        metrics: Metrics that score the estimates.
        guess: Baseline that is run on the same observations; None for none.
    """

    attack: Attack
    client: Client
    defense: Defense | None
    threat: ThreatModel
    metrics: tuple[Metric, ...]
    guess: Attack | None = None

    def run(
        self, dataset: Dataset, batch_size: int, *, rng: torch.Generator, progress: Progress | None = None
    ) -> list[AttackedUpdate]:
        """Attack one update after the other.

        Args:
            dataset: The records to attack, in the order of their updates.
            batch_size: Number of records in an update; the last update may have fewer.
            rng: Source of the seeds of noise and attack. All are drawn first, so two attacks meet the same noise.
            progress: Called after each update.

        Returns:
            The updates that are done, which are all unless the run was interrupted.

        Raises:
            KeyboardInterrupt: If the run was interrupted before the first update was done.
        """
        batches = torch.arange(len(dataset)).split(batch_size)
        seeds = torch.randint(_SEEDS, (len(batches), 2), generator=rng).tolist()
        done: list[AttackedUpdate] = []
        try:
            for rows, (noise, search) in zip(batches, seeds, strict=True):
                observation = self._observe(dataset.subset(rows), torch.Generator().manual_seed(noise))
                # Noise and search have seeds of their own, so another attack meets the same noise.
                done.append(self._attack(observation, dataset.inputs[rows], torch.Generator().manual_seed(search)))
                if progress is not None:
                    progress(len(done), len(batches))
                if done[-1].account.status.ending is Ending.INTERRUPTED:
                    break
        except KeyboardInterrupt:
            if not done:
                raise
        return done

    def _observe(self, batch: Dataset, rng: torch.Generator) -> Observation:
        release = self.client.release(batch.inputs, labels_or_zeros(batch))
        try:
            return observe(release, defense=self.defense, threat=self.threat, data_range=batch.data_range, rng=rng)
        except InvalidInput:
            raise
        except (RuntimeError, ValueError) as error:  # a network in training mode may refuse a batch of one
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            raise InvalidInput(
                f"Expected a model that can be trained on {len(batch)} records at once. {first_line}"
            ) from error

    def _attack(self, observation: Observation, targets: Tensor, rng: torch.Generator) -> AttackedUpdate:
        guess = None if self.guess is None else self.guess(observation, rng=rng)
        if isinstance(self.attack, GuidedSampling):
            reconstruction, path = self.attack.run_with_trajectory(observation, rng=rng)
        else:
            found, path = self.attack(observation, rng=rng), None
            reconstruction = check_reconstruction(attack_name(self.attack), found, observation)
        scores = score(reconstruction, targets, self.metrics)
        order = scores.matched.tolist()  # estimate that belongs to each record
        # The path holds estimates in the order of the attack, so the targets are permuted back to it.
        peak = None if path is None else path.oracle_peak(targets[scores.matched.argsort()].to(path.estimates.dtype))[1]
        account = reconstruction.account
        return AttackedUpdate(
            reconstruction.estimates[scores.matched],
            account,
            tuple(account.objective[place] for place in order),
            () if account.labels is None else tuple(account.labels[place] for place in order),
            scores,
            {} if guess is None else score(guess, targets, self.metrics),
            {} if peak is None else score(peak, targets, self.metrics),
        )


def choose_records(dataset: Dataset, records: Sequence[int]) -> Dataset:
    """Return chosen records of a data set.

    Args:
        dataset: Records to choose from.
        records: Row numbers, from 0.

    Returns:
        The chosen records in the stated order.

    Raises:
        InvalidInput: If no record is chosen, or a row does not exist.
    """
    check_not_empty("records", records, "Choose at least one.")
    for record in records:
        if check_whole("records", record, minimum=0) >= len(dataset):
            raise invalid_input("records", record, f"to be from 0 to {len(dataset) - 1}, the records of {dataset.name}")
    return dataset.subset(list(records))


def labels_or_zeros(dataset: Dataset) -> Tensor:
    """Return the labels of a data set, or zeros if it has none.

    Args:
        dataset: Records; the loss of unlabelled ones ignores the labels.

    Returns:
        One label per record.
    """
    return torch.zeros(len(dataset), dtype=torch.int64) if dataset.labels is None else dataset.labels
