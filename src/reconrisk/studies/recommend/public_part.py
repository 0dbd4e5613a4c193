"""Public records: they configure defenses, and utilities and bounds are computed from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from reconrisk.attacks.baselines import constant_guess
from reconrisk.core.defense import Defense
from reconrisk.core.guarantee import Estimate
from reconrisk.core.validation import invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.families import Reference
from reconrisk.releases.release import Release
from reconrisk.releases.sensitivity.moments import ReferenceMoments, reference_moments
from reconrisk.studies.common.attacked_updates import labels_or_zeros
from reconrisk.studies.common.defended_release import (
    PRIOR_DRAWS,
    PRIOR_ERROR,
    draw_from_box,
    information_trace,
    is_known_smooth,
    mse_bound_from_traces,
    one_step_utilities,
)
from reconrisk.studies.common.subjects.model_updates import ModelUpdates

_UPDATES = 16  # public updates that utilities are averaged over
_MOST_VALUES = 2**26  # values of all updates in memory together: a quarter of a gigabyte in float32
_MOMENTS = 128  # records that the moments of gradients are averaged over
LARGEST_PUBLIC = 256
"""Largest number of records split off as public."""


@dataclass(frozen=True, eq=False)
class PublicPart:
    """Quantities computed from public records; none of them depends on a private record.

    Attributes:
        reference: Public updates and moments that configure defenses.
        drawn: Updates of records drawn from the smoothest prior on the data range, which the bound refers to.
        data_range: Smallest and largest value of a record.
        is_smooth: True if the gradient is known to be a smooth function of the record.
        seed: Seed of the noise in utilities and bounds.
    """

    reference: Reference
    drawn: tuple[Release, ...]
    data_range: tuple[float, float]
    is_smooth: bool
    seed: int

    def utility(self, defense: Defense | None) -> tuple[float, float]:
        r"""Return the share of the first-order decrease that a step keeps, and its standard deviation.

        .. math:: \frac{U_1}{E|g|^2}, \qquad \frac{\sqrt{-U_2}}{E|g|^2}

        Here g is the gradient of a public update, and U1 and U2 are its one-step utilities.

        Guarantee: (1, 0) without a defense.
        """
        kept = spread = total = 0.0
        for update in self.reference.updates:
            rng = torch.Generator().manual_seed(self.seed)  # common random numbers for all defenses
            first, second = one_step_utilities(update, defense, rng=rng)
            norm = sum(float(value.double().square().sum()) for value in update.values())
            kept, spread, total = kept + first * norm, spread - second, total + norm
        # root of the mean variance over the mean squared norm: sqrt(spread / n) / (total / n)
        return kept / total, math.sqrt(spread * len(self.reference.updates)) / total

    def mse_bound(self, defense: Defense | None) -> Estimate:
        """Estimate a lower bound on the mean squared error of any estimator that knows the other records of an update.

        Edge cases: 0, the trivial bound, without noise.
        """
        dimension = self.drawn[0].inputs[0].numel()
        traces = torch.full((len(self.drawn),), math.inf)
        if defense is not None:
            rng, found = torch.Generator().manual_seed(self.seed), []
            for release in self.drawn:
                # the first record of each update; one infinite trace makes the mean infinite, so stop there
                found.append(information_trace(release, defense, relative_error=PRIOR_ERROR, rng=rng)[:1])
                if not bool(found[-1].isfinite()):
                    break
            traces = torch.cat(found)
        return mse_bound_from_traces(traces, dimension=dimension, data_range=self.data_range)


def compute_public_part(subject: ModelUpdates, *, seed: int) -> PublicPart:
    """Compute public updates, prior draws and moments from the records of a subject.

    Args:
        subject: Model, recipe and public records.
        seed: Seed of all draws.

    Returns:
        The quantities that configure and evaluate defenses.

    Raises:
        InvalidInput: If there are too few records for two updates, or the derivative of an update is broken.
    """
    rng, public, batch_size = torch.Generator().manual_seed(seed), subject.dataset, subject.recipe.batch_size
    client = subject.client(constant_guess())
    size = sum(value.numel() for value in client.model.parameters() if value.requires_grad)
    # as many updates as memory holds, but at least two, since utilities average over them
    count = min(_UPDATES, max(2, _MOST_VALUES // max(size, 1)), len(public) // batch_size)
    if count < 2:
        raise invalid_input(
            "len(public)", len(public), f">= {2 * batch_size}, the records of two updates", "Pass more public records."
        )
    batches = torch.randperm(len(public), generator=rng)[: count * batch_size].split(batch_size)
    labels = labels_or_zeros(public)
    releases = tuple(client.release(public.inputs[rows], labels[rows]) for rows in batches)
    releases[0].check_derivative()  # attacks that fail for want of it would recommend too little noise
    # draws of the prior keep the labels of public batches, which a bound on the inputs takes as known
    prior = tuple(
        client.release(draw_from_box(public.inputs[rows], public.data_range, rng=rng), labels[rows])
        for rows in (batches[place % len(batches)] for place in range(PRIOR_DRAWS))
    )
    moments_of = torch.randperm(len(public), generator=rng)[:_MOMENTS]

    # deferred: only optimal defenses need moments, and models whose layers mix records have none
    def find_moments() -> ReferenceMoments:
        draws = torch.Generator().manual_seed(seed)
        return reference_moments(client.model, client.loss_fn, public.inputs[moments_of], labels[moments_of], rng=draws)

    reference = Reference(find_moments, tuple(release.value() for release in releases))
    is_smooth = is_known_smooth(client.model, client.loss_fn, public.inputs[batches[0]], labels[batches[0]])
    return PublicPart(reference, prior, public.data_range, is_smooth, seed)


def split_public_records(
    dataset: Dataset, public: Dataset | None, rng: torch.Generator
) -> tuple[Dataset, tuple[int, ...]]:
    """Return public records and the rows of private records in random order.

    Args:
        dataset: All records.
        public: Public records that are not among ``dataset``; None to split off a quarter, at most 256.
        rng: Source of the random order.

    Returns:
        The public records, and the private rows of ``dataset``.

    Raises:
        InvalidInput: If ``public`` has another shape or range, or there are fewer than four records to split.

    Guarantee: no row is in both parts.
    """
    order = torch.randperm(len(dataset), generator=rng).tolist()
    if public is not None:
        if public.shape != dataset.shape or public.data_range != dataset.data_range:
            raise invalid_input("public", public, f"to hold records of shape {dataset.shape} in {dataset.data_range}")
        return public, tuple(order)
    count = min(LARGEST_PUBLIC, len(dataset) // 4)
    if count < 1:
        remedy = "Pass options=rr.RecommendOptions(public=...)."
        raise invalid_input("len(data)", len(dataset), ">= 4, to split off public records", remedy)
    return dataset.subset(order[:count]), tuple(order[count:])
