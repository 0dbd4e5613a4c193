"""The precision attack: candidates that noise added in floating point cannot turn into the observed release."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from reconrisk.attacks.baselines import WITH_PRIOR, check_knows, check_record_shape
from reconrisk.attacks.best_candidate import BestCandidate, CandidateDistances
from reconrisk.attacks.float_noise import check_precision, count_infeasible
from reconrisk.attacks.labels.infer import class_labels_or_none
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.progress import track
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_all_finite, invalid_input

MEANING = (
    "the last bits of the release show which record was used, because the noise was added in floating point: for wrong "
    "records, no float is the noise"
)
"""Meaning of a success of this attack, for reports."""

REMEDY = (
    "Add the noise with rr.defenses, which rounds exactly, and never add noise in the precision of a tensor: more "
    "noise does not help"
)
"""Remedy for a release that this attack identifies, for reports."""

Precision = Literal["float64", "float32", "float16", "bfloat16"]


@dataclass(frozen=True, eq=False)
class LowBits:
    """Attack configured by :func:`low_bits`."""

    candidates: Tensor
    labels: Tensor | None = None
    weights: Tensor | None = None
    precision: Precision | None = None
    known_inputs: Tensor | None = None
    known_labels: Tensor | None = None
    needs: ThreatModel = field(default=WITH_PRIOR)

    def __post_init__(self) -> None:
        _ = self._ordinary  # building it checks the candidates
        if self.precision is not None:
            check_precision("precision", self.precision)
        if (self.known_inputs is None) != (self.known_labels is None):
            raise InvalidInput("Expected known_inputs and known_labels together. Pass both, or neither.")
        if self.known_inputs is not None and self.known_labels is not None:
            check_all_finite("known_inputs", self.known_inputs)
            if len(self.known_inputs) != len(self.known_labels):
                raise invalid_input("len(known_labels)", len(self.known_labels), f"to be {len(self.known_inputs)}")
            if self.labels is None:
                remedy = "Pass the label of each candidate."
                raise InvalidInput(f"Expected labels together with known_inputs. {remedy}")
            object.__setattr__(self, "needs", WITH_PRIOR.with_knowledge(Knows.OTHER_RECORDS))

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Return the candidate that fits ``observation`` best; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        known = 0 if self.known_inputs is None else len(self.known_inputs)
        if observation.batch_size != known + 1:
            remedy = "Pass the other records of the batch as known_inputs and known_labels."
            raise invalid_input("batch_size", observation.batch_size, f"to be {known + 1}", remedy)
        check_record_shape("candidates", self.candidates, observation, leading=(len(self.candidates),))
        if known and self.labels is not None:  # the labels of a batch do not say which is the target's
            labels, possible = self.labels, torch.ones(len(self.candidates), dtype=torch.bool)
        else:
            labels, possible = self._ordinary.label_candidates(observation)
        counts, distances, interrupted = self._compare(observation, labels)
        counts = counts.masked_fill(~possible, math.inf)
        fewest = counts.min()
        noisy = observation.noise_std is not None
        best, objective = self._ordinary.choose(distances.masked_fill(counts > fewest, math.inf), noisy=noisy)
        orders = 2 if known else 1
        account = AttackReport(
            attack=repr(self),
            status=_status(counts, interrupted),
            objective=(objective,),
            cost=Cost(time.monotonic() - begun, orders * int(counts.isfinite().sum())),
            labels=class_labels_or_none(labels[[best]]),
        )
        low, high = observation.data_range
        estimate = self.candidates[best : best + 1].detach().clamp(low, high)
        return Reconstruction(estimate.to(torch.get_default_dtype()), account)

    @cached_property
    def _ordinary(self) -> BestCandidate:
        return BestCandidate(self.candidates, self.labels, self.weights)

    def _compare(self, observation: Observation, labels: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Return the infeasible coordinates and the distance of each candidate, and True if the user stopped it.

        Candidates are evaluated one at a time: vectorised evaluation changes the last bits, which decide here.
        """
        nearness = CandidateDistances(observation, labels)
        precision = None if self.precision is None else check_precision("precision", self.precision)
        dtype = next(iter(observation.released.values())).dtype
        counts, distances = torch.full((2, len(self.candidates)), math.inf, dtype=torch.float64)
        try:
            for row in track(range(len(self.candidates)), "candidates"):
                for inputs, targets in self._batches(self.candidates[row].to(dtype), labels[row]):
                    with torch.no_grad():
                        noiseless = observation.forward(inputs, targets)
                    released, kept = observation.released, observation.kept
                    count = count_infeasible(noiseless, released, precision=precision, kept=kept)
                    if count < counts[row]:
                        counts[row], distances[row] = count, nearness.of(noiseless)
        except KeyboardInterrupt:
            return counts, distances.nan_to_num(nan=math.inf), True
        return counts, distances.nan_to_num(nan=math.inf), False

    def _batches(self, record: Tensor, label: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the batches with the candidate: alone, or last and first, since the order decides the rounding."""
        if self.known_inputs is None or self.known_labels is None:
            return [(record[None], label[None])]
        others, answers = self.known_inputs.to(record.dtype), self.known_labels
        return [
            (torch.cat([others, record[None]]), torch.cat([answers, label[None]])),
            (torch.cat([record[None], others]), torch.cat([label[None], answers])),
        ]

    def __repr__(self) -> str:
        """Return the call with every setting; tensors are shown by shape."""
        labels, weights = ("none" if value is None else "given" for value in (self.labels, self.weights))
        known = 0 if self.known_inputs is None else len(self.known_inputs)
        shape = tuple(self.candidates.shape)
        return (
            f"low_bits(tensor of shape {shape}, labels={labels}, weights={weights}, precision={self.precision}, "
            f"known={known})"
        )


def low_bits(
    candidates: Tensor,
    *,
    labels: Tensor | None = None,
    weights: Tensor | None = None,
    precision: Precision | None = None,
    known_inputs: Tensor | None = None,
    known_labels: Tensor | None = None,
) -> LowBits:
    r"""Configure the precision attack, which reads the last bits of a release with noise.

    .. math:: \hat z = \arg\min_z \# \{ i : fl(f_i(z) + n) \ne y_i \text{ for every float } n \}

    Here y is the observed release, f(z) the release of candidate z before the noise, and fl rounds to the precision in
    which the noise was added. For the true record every coordinate has such an n, namely the noise. For another record
    many coordinates have none, because floats are dense near 0 and sparse elsewhere. Ties are decided by the
    likelihood, as :func:`~reconrisk.attacks.best_candidate.best_candidate` does.

    Args:
        candidates: Possible records, of shape (candidates, \*shape of a record).
        labels: Label of each candidate, if a candidate is a record together with its label. None uses the labels of the
            observation, known or inferred.
        weights: Prior probability of each candidate, up to a factor; they break ties. None weighs all equally.
        precision: Precision in which the noise was added. None is that of the release.
        known_inputs: The other records of the batch, which the adversary knows. The candidate is tried after them and
            before them, since the order of a sum decides its rounding.
        known_labels: Labels of the known records.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If shapes disagree or values are not finite; when the attack is called, if the update has other
            than one unknown record, a candidate is outside the data range, or no candidate has the known label.

    Assumes: the record is one of ``candidates``; the adversary evaluates the forward map as the owner of the records
    does, bit by bit.
    Guarantee: the record is among the candidates without infeasible coordinate if one float was added to each value,
    however large and however it was drawn. Then no amount of noise makes the release private.
    Edge cases: after noise that was rounded exactly, as that of ``rr.defenses``, the counts say nothing about the
    record, and no guarantee is exceeded. If no candidate is excluded, the attack is the best candidate.
    Reference: `Haney et al. (2022) <https://arxiv.org/abs/2207.13793>`_, precision-based attacks.

    >>> from reconrisk.core.threat import HONEST_BUT_CURIOUS
    >>> records, rng = torch.rand(20, 30, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    >>> sent = {"y": records[3] + 10 * torch.randn(30, generator=rng)}
    >>> threat = WITH_PRIOR.with_knowledge(Knows.LABELS)
    >>> forward = lambda inputs, labels: {"y": inputs[0]}
    >>> observation = Observation(sent, forward, threat, (30,), (0.0, 1.0), labels=torch.tensor([0]))
    >>> found = low_bits(records)(observation, rng=torch.Generator())
    >>> torch.equal(found.estimates[0], records[3])
    True
    """
    return LowBits(candidates, labels, weights, precision, known_inputs, known_labels)


def _status(counts: Tensor, interrupted: bool) -> Status:
    if interrupted:
        return Status(Ending.INTERRUPTED, "stopped by the user", "Run again to try all candidates")
    if not bool(counts.isfinite().any()):
        return Status(Ending.DIVERGED, "no candidate has a finite release", "Check the forward map")
    fewest, total = int(counts.min()), len(counts)
    left = int((counts == fewest).sum())
    if left == total:
        return Status(Ending.CONVERGED, f"the last bits exclude none of {total} candidates")
    if fewest:
        return Status(
            Ending.CONVERGED, f"the nearest of {total} candidates leave {fewest} values that no float explains"
        )
    cause = f"{left} of {total} candidates can have produced every value; the record is one of them if the noise was a"
    return Status(Ending.CONVERGED, f"{cause} float", REMEDY)
