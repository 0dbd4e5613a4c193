"""The best of given candidates: exhaustive maximum a posteriori over a finite prior."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reconrisk.attacks.baselines import WITH_PRIOR, check_knows, check_record_shape
from reconrisk.attacks.labels.infer import labels_for, stated_labels
from reconrisk.attacks.matching.distances import squares
from reconrisk.attacks.matching.loop import compared
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.progress import track
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_all_finite, check_not_empty, invalid_input

if TYPE_CHECKING:
    from reconrisk.attacks.knowledge import PublicKnowledge

_VALUES_AT_ONCE = 2**24  # released values of all candidates of one vectorised call: 64 MB of float32
_SAME = 1e-6  # relative squared distance: float32 releases of one record differ by 1e-12, of two by far more
_EXACT = 1e-10  # the same, for one that is equal: noise that nobody knows of leaves more


@dataclass(frozen=True, eq=False)
class BestCandidate:
    """The configured attack that :func:`best_candidate` returns."""

    candidates: Tensor
    labels: Tensor | None = None
    weights: Tensor | None = None
    needs: ThreatModel = WITH_PRIOR

    def __post_init__(self) -> None:
        candidates: object = self.candidates
        if not isinstance(candidates, Tensor) or not candidates.is_floating_point() or candidates.ndim < 2:
            raise invalid_input("candidates", type(candidates).__name__, "to be a floating point tensor, records first")
        check_not_empty("candidates", candidates.flatten())
        check_all_finite("candidates", candidates)
        for name, values in (("labels", self.labels), ("weights", self.weights)):
            if values is not None and (values.ndim < 1 or len(values) != len(candidates)):
                raise invalid_input(
                    f"{name}.shape", tuple(values.shape), f"to begin with {len(candidates)}, the candidates"
                )
        if self.weights is not None:
            check_all_finite("weights", self.weights)
            if self.weights.ndim != 1 or bool((self.weights < 0).any()) or not bool(self.weights.any()):
                raise invalid_input("weights", "given", "to be one number >= 0 for each candidate, not all 0")

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The candidate that explains ``observation`` best; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        if observation.batch_size != 1:
            remedy = "Candidates are compared one by one: attack single records, or optimise with gauss_newton()."
            raise invalid_input("batch_size", observation.batch_size, "to be 1", remedy)
        check_record_shape("candidates", self.candidates, observation, leading=(len(self.candidates),))
        labels, possible = self._labels(observation)
        search = _Distances(observation, labels)
        scores, interrupted = search.of(self.candidates)
        best, objective = self._best(scores.masked_fill(~possible, math.inf), noisy=observation.noise_std is not None)
        account = Account(
            attack=repr(self),
            status=_status(objective, len(scores), observation.noise_std is not None, interrupted),
            objective=(objective,),
            cost=Cost(time.monotonic() - begun, search.evaluations),
            labels=stated_labels(labels[[best]]),
        )
        low, high = observation.data_range
        estimate = self.candidates[best : best + 1].detach().clamp(low, high)
        return Reconstruction(estimate.to(torch.get_default_dtype()), account)

    def _labels(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """The label of each candidate, and which candidates agree with a known one."""
        count = len(self.candidates)
        if self.labels is None:
            label = labels_for(observation)
            return label.expand(count, *label.shape[1:]), torch.ones(count, dtype=torch.bool)
        if observation.labels is None:
            return self.labels, torch.ones(count, dtype=torch.bool)
        possible = (self.labels == observation.labels).reshape(count, -1).all(1)
        if not bool(possible.any()):
            raise invalid_input(
                "labels", "of the candidates", f"to include the known label {observation.labels.tolist()}"
            )
        return self.labels, possible

    def _best(self, scores: Tensor, *, noisy: bool) -> tuple[int, float]:
        """The candidate of highest posterior probability; without noise the weights decide among equals only."""
        weights = torch.ones_like(scores) if self.weights is None else self.weights.to(scores)
        if noisy:
            scores = scores - (weights / weights.sum()).log()
            best = int(scores.argmin())
        else:
            scores = scores.masked_fill(weights == 0, math.inf)
            equal = scores <= scores.min() * (1 + _SAME) + _SAME**2
            best = int((weights * equal).argmax())
        return best, float(scores[best])

    def __repr__(self) -> str:
        """Every setting; tensors by their shape."""
        labels, weights = ("none" if value is None else "given" for value in (self.labels, self.weights))
        return f"best_candidate(tensor of shape {tuple(self.candidates.shape)}, labels={labels}, weights={weights})"


def best_candidate(candidates: Tensor, *, labels: Tensor | None = None, weights: Tensor | None = None) -> BestCandidate:
    r"""Choose among candidates the one whose release is nearest to what was observed.

    .. math:: \hat z = \arg\max_z \; \log \pi(z) - \tfrac12 (y - f(z))^T \Sigma^{-1} (y - f(z))

    where pi are the ``weights``, equal by default. Without known noise it is the nearest release, the limit of small
    noise, and the weights decide among equals. Values that were not sent do not count, if the threat knows which.
    ``labels`` go with the candidates, if these are whole examples; else they are those of the observation.

    Assumes: the record is one of ``candidates``: the threat knows the prior.
    Guarantee: under Gaussian noise of known scale no attack is right more often, where the record is drawn from the
    weights: it is the maximum a posteriori rule. Any release with a forward map will do.
    Edge cases: batches of more than one record are refused, as are candidates outside the data range. Candidates of
    another label than the known one, or of weight 0, are never chosen. Releases that are not finite are never nearest.
    Reference: Section VII-A, balle2022.

    >>> forward = lambda inputs, labels: {"y": inputs.sum(0)}
    >>> from reconrisk.core.threat import Knows
    >>> threat = WITH_PRIOR.knowing(Knows.LABELS)
    >>> released = {"y": torch.tensor([0.3, 0.6])}
    >>> observation = Observation(released, forward, threat, (2,), (0.0, 1.0), labels=torch.tensor([0]))
    >>> candidates = torch.tensor([[0.0, 0.0], [0.25, 0.5], [1.0, 1.0]])
    >>> best_candidate(candidates)(observation, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.5000]])
    """
    return BestCandidate(candidates, labels, weights)


class _Distances:
    """Half the squared distance of candidates' releases in units of the noise, or the squared one relative to |y|^2."""

    def __init__(self, observation: Observation, labels: Tensor) -> None:
        self.evaluations = 0
        self._observation, self._labels = observation, labels
        self._observed = {name: value.double() for name, value in compared(observation.released, observation).items()}
        norm = squares(self._observed).clamp_min(torch.finfo(torch.float64).tiny)
        self._scale = norm if observation.noise_std is None else norm.new_tensor(2.0)
        first = next(iter(observation.released.values()))
        self._dtype = first.dtype if first.is_floating_point() else torch.get_default_dtype()

    def of(self, candidates: Tensor) -> tuple[Tensor, bool]:
        """One distance per candidate, inf where it is not a number, and whether the user stopped the search."""
        found = torch.full((len(candidates),), math.inf, dtype=torch.float64)
        values = sum(tensor.numel() for tensor in self._observation.released.values())
        size = max(1, _VALUES_AT_ONCE // values)
        rows = torch.arange(len(candidates)).split(size)
        vectorized = self._agrees(candidates[:2])
        try:
            for chosen in track(rows, "candidates"):
                records = candidates[chosen].to(self._dtype)
                labels = self._labels[chosen]
                if vectorized:
                    found[chosen] = torch.func.vmap(self._one)(records, labels).cpu()
                else:
                    for row, record, label in zip(chosen.tolist(), records, labels, strict=True):
                        found[row] = self._one(record, label)
                self.evaluations += len(chosen)
        except KeyboardInterrupt:
            return found.nan_to_num(nan=math.inf), True
        return found.nan_to_num(nan=math.inf), False

    def _one(self, record: Tensor, label: Tensor) -> Tensor:
        with torch.no_grad():
            released = compared(self._observation.forward(record[None], label[None]), self._observation)
            difference = {name: released[name].double() - value for name, value in self._observed.items()}
            return squares(difference) / self._scale

    def _agrees(self, records: Tensor) -> bool:
        """Whether torch can vectorise the forward map, and does it right, at the first candidates."""
        records, labels = records.to(self._dtype), self._labels[: len(records)]
        plain = torch.stack([self._one(record, label) for record, label in zip(records, labels, strict=True)])
        self.evaluations += len(records)
        try:
            together = torch.func.vmap(self._one)(records, labels)
        except (RuntimeError, ValueError, TypeError, NotImplementedError):  # control flow that depends on the data
            return False
        return torch.allclose(together, plain, rtol=1e-3, atol=_SAME, equal_nan=True)


def _status(objective: float, count: int, noisy: bool, interrupted: bool) -> Status:
    if interrupted:
        return Status(Ending.INTERRUPTED, "stopped by the user", "Run again for all candidates")
    if not math.isfinite(objective):
        return Status(Ending.DIVERGED, "no candidate has a finite release", "Check the forward map")
    if not noisy and objective < _EXACT:
        return Status(Ending.EXACT, f"one of {count} candidates has the observed release")
    kind = "negative log posterior" if noisy else "relative squared distance"
    return Status(Ending.CONVERGED, f"nearest of {count} candidates, {kind} {objective:.2e}")


def settings_from_knowledge(knowledge: PublicKnowledge, given: Mapping[str, object]) -> dict[str, object]:
    """Return the records that the attacked one may be, with their labels, as settings of :func:`best_candidate`."""
    del given
    if knowledge.candidates is None:
        raise InvalidInput("Expected data for best_candidate: the records that the attacked one may be.")
    labels = knowledge.candidates.labels
    return {"candidates": knowledge.candidates.inputs, **({} if labels is None else {"labels": labels})}
