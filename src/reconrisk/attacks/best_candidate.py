"""Exhaustive maximum a posteriori search over a finite set of candidate records."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reconrisk.attacks.baselines import WITH_PRIOR, check_knows, check_record_shape
from reconrisk.attacks.labels.infer import class_labels_or_none, labels_for
from reconrisk.attacks.matching.distances import sum_of_squares
from reconrisk.attacks.matching.loop import whiten_and_mask
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.progress import track
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_all_finite, check_not_empty, invalid_input

if TYPE_CHECKING:
    from reconrisk.attacks.knowledge import PublicKnowledge

_VALUES_AT_ONCE = 2**24  # released values per vectorised call, over all its candidates: 64 MB of float32
_SAME = 1e-6  # relative squared distance of a tie: float32 releases of one record differ by 1e-12, of two by far more
_EXACT = 1e-10  # relative squared distance of an exact match: undeclared noise leaves more


@dataclass(frozen=True, eq=False)
class BestCandidate:
    """Attack configured by :func:`best_candidate`."""

    candidates: Tensor
    labels: Tensor | None = None
    weights: Tensor | None = None
    needs: ThreatModel = WITH_PRIOR

    def __post_init__(self) -> None:
        candidates: object = self.candidates
        if not isinstance(candidates, Tensor) or not candidates.is_floating_point() or candidates.ndim < 2:
            raise invalid_input(
                "candidates",
                type(candidates).__name__,
                "to be a floating point tensor (candidates, *shape of a record)",
                "Pass torch.as_tensor(candidates).float().",
            )
        check_not_empty("candidates", candidates.flatten())
        check_all_finite("candidates", candidates)
        for name, values in (("labels", self.labels), ("weights", self.weights)):
            if values is not None and (values.ndim < 1 or len(values) != len(candidates)):
                raise invalid_input(
                    f"{name}.shape", tuple(values.shape), f"to begin with {len(candidates)}, the number of candidates"
                )
        if self.weights is not None:
            check_all_finite("weights", self.weights)
            if self.weights.ndim != 1 or bool((self.weights < 0).any()) or not bool(self.weights.any()):
                raise InvalidInput("Expected weights >= 0 that are not all 0. Pass one number for each candidate.")

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Return the candidate that fits ``observation`` best; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        if observation.batch_size != 1:
            remedy = "Attack updates of one record, or use gauss_newton(): candidates are tried one at a time."
            raise invalid_input("batch_size", observation.batch_size, "to be 1", remedy)
        check_record_shape("candidates", self.candidates, observation, leading=(len(self.candidates),))
        labels, possible = self.label_candidates(observation)
        search = CandidateDistances(observation, labels)
        scores, interrupted = search.compute(self.candidates)
        best, objective = self.choose(scores.masked_fill(~possible, math.inf), noisy=observation.noise_std is not None)
        account = AttackReport(
            attack=repr(self),
            status=_status(objective, len(scores), observation.noise_std is not None, interrupted),
            objective=(objective,),
            cost=Cost(time.monotonic() - begun, search.evaluations),
            labels=class_labels_or_none(labels[[best]]),
        )
        low, high = observation.data_range
        estimate = self.candidates[best : best + 1].detach().clamp(low, high)
        return Reconstruction(estimate.to(torch.get_default_dtype()), account)

    def label_candidates(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Return the label of each candidate, and a mask of the candidates with the known label."""
        count = len(self.candidates)
        if self.labels is None:
            # Without labels of their own, candidates share the label of the observation.
            label = labels_for(observation)
            return label.expand(count, *label.shape[1:]), torch.ones(count, dtype=torch.bool)
        if observation.labels is None:
            return self.labels, torch.ones(count, dtype=torch.bool)
        possible = (self.labels == observation.labels).reshape(count, -1).all(1)
        if not bool(possible.any()):
            raise invalid_input(
                "labels",
                self.labels.unique().tolist(),
                f"to include the known label {observation.labels.tolist()}",
                "Pass candidates of that label.",
            )
        return self.labels, possible

    def choose(self, scores: Tensor, *, noisy: bool) -> tuple[int, float]:
        """Return the candidate of highest posterior probability; without noise the weights only break ties."""
        weights = torch.ones_like(scores) if self.weights is None else self.weights.to(scores)
        if noisy:
            # Negative log posterior: half the squared distance in units of the noise, minus the log prior.
            scores = scores - (weights / weights.sum()).log()
            best = int(scores.argmin())
        else:
            scores = scores.masked_fill(weights == 0, math.inf)
            # The absolute term covers a minimum of exactly 0, where a relative tolerance allows nothing.
            equal = scores <= scores.min() * (1 + _SAME) + _SAME**2
            best = int((weights * equal).argmax())
        return best, float(scores[best])

    def __repr__(self) -> str:
        """Return the call with every setting; tensors are shown by shape."""
        labels, weights = ("none" if value is None else "given" for value in (self.labels, self.weights))
        return f"best_candidate(tensor of shape {tuple(self.candidates.shape)}, labels={labels}, weights={weights})"


def best_candidate(candidates: Tensor, *, labels: Tensor | None = None, weights: Tensor | None = None) -> BestCandidate:
    r"""Configure the attack that picks the candidate whose release is nearest to the observed one.

    .. math:: \hat z = \arg\max_z \; \log \pi(z) - \tfrac12 (y - f(z))^T \Sigma^{-1} (y - f(z))

    Here y is the observed release, f(z) the release of candidate z, :math:`\Sigma` the covariance of the known noise,
    and :math:`\pi` are the ``weights``. Without known noise the attack picks the nearest release, which is the limit of
    small noise, and the weights break ties. Values that were not sent are ignored if the threat model knows which they
    are.

    Args:
        candidates: Possible records, of shape (candidates, \*shape of a record).
        labels: Label of each candidate, if a candidate is a record together with its label. None uses the labels of the
            observation, known or inferred.
        weights: Prior probability of each candidate, up to a factor. None weighs all candidates equally.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If shapes disagree or values are not finite; when the attack is called, if the update has more
            than one record, a candidate is outside the data range, or no candidate has the known label.

    Assumes: the record is one of ``candidates``; the threat model includes knowledge of the prior.
    Guarantee: under Gaussian noise of known scale, and for a record drawn from the weights, no attack is right more
    often: this is the maximum a posteriori rule. It applies to any release with a forward map.
    Edge cases: batches of more than one record are refused, as are candidates outside the data range. Candidates with
    another label than the known one, or of weight 0, are never chosen. A candidate whose release is not finite is never
    chosen.
    Reference: Section VII-A, balle2022.

    >>> forward = lambda inputs, labels: {"y": inputs.sum(0)}
    >>> from reconrisk.core.threat import Knows
    >>> threat = WITH_PRIOR.with_knowledge(Knows.LABELS)
    >>> released = {"y": torch.tensor([0.3, 0.6])}
    >>> observation = Observation(released, forward, threat, (2,), (0.0, 1.0), labels=torch.tensor([0]))
    >>> candidates = torch.tensor([[0.0, 0.0], [0.25, 0.5], [1.0, 1.0]])
    >>> best_candidate(candidates)(observation, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.5000]])
    """
    return BestCandidate(candidates, labels, weights)


class CandidateDistances:
    """Distances between the candidates' releases and the observed one.

    With known noise: half the squared distance in units of the noise. Otherwise: the squared distance relative to the
    squared norm of the observed release.
    """

    def __init__(self, observation: Observation, labels: Tensor) -> None:
        self.evaluations = 0
        self._observation, self._labels = observation, labels
        self._observed = {
            name: value.double() for name, value in whiten_and_mask(observation.released, observation).items()
        }
        norm = sum_of_squares(self._observed).clamp_min(torch.finfo(torch.float64).tiny)
        # With known noise the score is half the squared whitened distance; otherwise it is relative to |y|^2.
        self._scale = norm if observation.noise_std is None else norm.new_tensor(2.0)
        # Candidates in the precision of the release; differences in double precision.
        first = next(iter(observation.released.values()))
        self._dtype = first.dtype if first.is_floating_point() else torch.get_default_dtype()

    def compute(self, candidates: Tensor) -> tuple[Tensor, bool]:
        """Return one distance per candidate (inf instead of NaN), and True if the user stopped the search."""
        # Candidates that are not reached before an interruption keep inf and are never chosen.
        found = torch.full((len(candidates),), math.inf, dtype=torch.float64)
        values = sum(tensor.numel() for tensor in self._observation.released.values())
        # Candidates per vectorised call, at least one.
        size = max(1, _VALUES_AT_ONCE // values)
        rows = torch.arange(len(candidates)).split(size)
        # One comparison with the plain loop, since vmap is wrong or unsupported for some layers.
        vectorized = self._agrees(candidates[:2])
        try:
            for chosen in track(rows, "candidates"):
                records = candidates[chosen].to(self._dtype)
                labels = self._labels[chosen]
                if vectorized:
                    found[chosen] = torch.func.vmap(self._distance)(records, labels).cpu()
                else:
                    for row, record, label in zip(chosen.tolist(), records, labels, strict=True):
                        found[row] = self._distance(record, label)
                self.evaluations += len(chosen)
        except KeyboardInterrupt:
            return found.nan_to_num(nan=math.inf), True
        return found.nan_to_num(nan=math.inf), False

    def _distance(self, record: Tensor, label: Tensor) -> Tensor:
        with torch.no_grad():
            return self.of(self._observation.forward(record[None], label[None]))

    def of(self, released: Mapping[str, Tensor]) -> Tensor:
        """Return the distance of one candidate's release."""
        whitened = whiten_and_mask(released, self._observation)
        difference = {name: whitened[name].double() - value for name, value in self._observed.items()}
        return sum_of_squares(difference) / self._scale

    def _agrees(self, records: Tensor) -> bool:
        """Return True if torch vectorises the forward map correctly, tested on the first candidates."""
        records, labels = records.to(self._dtype), self._labels[: len(records)]
        plain = torch.stack([self._distance(record, label) for record, label in zip(records, labels, strict=True)])
        self.evaluations += len(records)
        try:
            together = torch.func.vmap(self._distance)(records, labels)
        except (RuntimeError, ValueError, TypeError, NotImplementedError):  # control flow that depends on the data
            return False
        return torch.allclose(together, plain, rtol=1e-3, atol=_SAME, equal_nan=True)


def _status(objective: float, count: int, noisy: bool, interrupted: bool) -> Status:
    if interrupted:
        return Status(Ending.INTERRUPTED, "stopped by the user", "Run again to try all candidates")
    if not math.isfinite(objective):
        return Status(Ending.DIVERGED, "no candidate has a finite release", "Check the forward map")
    if not noisy and objective < _EXACT:
        return Status(Ending.EXACT, f"one of {count} candidates has the observed release")
    kind = "negative log posterior" if noisy else "relative squared distance"
    return Status(Ending.CONVERGED, f"nearest of {count} candidates, {kind} {objective:.2e}")


def settings_from_knowledge(knowledge: PublicKnowledge, given: Mapping[str, object]) -> dict[str, object]:
    """Return the candidate records and their labels as settings of :func:`best_candidate` and ``low_bits``.

    Args:
        knowledge: Public knowledge with the candidate records.
        given: Settings stated by the user; not used.

    Returns:
        The settings ``candidates`` and, where there are labels, ``labels``.

    Raises:
        InvalidInput: If there are no candidate records.
    """
    del given
    if knowledge.candidates is None:
        raise InvalidInput(
            "Expected candidate records for best_candidate or low_bits. Pass the data that contains the target record."
        )
    labels = knowledge.candidates.labels
    return {"candidates": knowledge.candidates.inputs, **({} if labels is None else {"labels": labels})}
