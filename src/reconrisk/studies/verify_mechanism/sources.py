"""Releases to examine: of a defense, and of a function that takes a training step on chosen records.

A source returns releases as vectors in units of the claimed noise. It can add candidate records to a release; the first
candidate is the canary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reconrisk.attacks.informed.match_candidates import clipped_gradients
from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian, Mechanism
from reconrisk.core.validation import check_all_finite, check_not_empty, check_positive, invalid_input
from reconrisk.defenses.chain import Chain, chain
from reconrisk.defenses.clipping import NoiseScales
from reconrisk.releases.model_state import LossFunction
from reconrisk.studies.verify_mechanism.claims import gaussian_of_one_release

UNTESTED_BITS = (
    "the low bits of the noise are not tested: noise that other code than rr.defenses adds in floating point can "
    "identify a record by them"
)
"""Assumption of every verdict about noise that other code may have added."""

Array = NDArray[np.float64]

Step: TypeAlias = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""Function of records and labels that returns a noisy sum of clipped gradients, by parameter name."""

CANDIDATES = 10
"""Number of candidates of the identification test, where there are enough records."""

_MOST_VALUES = 10**6  # of a release; for more, the candidates would not fit into memory
_OPPOSITE = -2  # of the canary, the last update of a defense
_COPIES_SHIFT = 16.0  # contribution of all copies of the canary in units of the noise: clear after a few releases
_MOST_COPIES = 256
_RECORDS = 16  # other records in a batch: their number does not matter, as long as it is the same
_FAR = 10.0  # an update of this many clip norms shows if it is clipped
_SCALES = (1.0, 10.0, 100.0)  # factors of the records that may become the canary
_VALUES_AT_ONCE = 2**22
_WITHOUT_CLIP = 1e100  # no gradient is longer
_LATER = "releases that were not examined, also in other processes, have new noise of the same kind"


class ReleaseSource(ABC):
    """Releases of one mechanism with chosen records.

    Attributes:
        name: Description of the mechanism.
        claimed: The claimed mechanism.
        shift: Claimed sensitivity in units of the claimed noise.
        blocks: First place of each parameter in a release, by name.
        size: Number of values of a release.
        candidates: Number of candidates that can be added.
        far: Records of a release that differs most from the release of ``near``.
        near: Records of that other release.
        multiple: Number of contributions of the canary in their difference.
        has_mean: True if :meth:`mean` is known.
        assumptions: Conditions under which its releases test the claim.
    """

    name: str
    claimed: Mechanism
    shift: float
    blocks: dict[str, int]
    size: int
    candidates: int
    far: tuple[int, ...]
    near: tuple[int, ...] = ()
    multiple: int
    has_mean: bool = False
    assumptions: tuple[str, ...] = ()

    @abstractmethod
    def release(self, added: tuple[int, ...]) -> Array:
        """Return a new release that contains the candidates ``added``, in units of the claimed noise."""

    @abstractmethod
    def mean(self, added: tuple[int, ...]) -> Array | None:
        """Return that release without noise; None if unknown."""

    def _set_layout(self, released: Mapping[str, Tensor], stds: Mapping[str, Tensor] | float) -> None:
        """Fix names, shapes and units of a release."""
        self._shapes = {name: tuple(value.shape) for name, value in released.items()}
        self._stds = stds
        sizes = {name: value.numel() for name, value in released.items()}
        starts = np.cumsum([0, *sizes.values()])
        self.blocks, self.size = dict(zip(sizes, starts[:-1].tolist(), strict=True)), int(starts[-1])

    def _flatten(self, released: object) -> Array:
        """Return a release as one vector in units of the claimed noise."""
        if not isinstance(released, Mapping):
            remedy = "Return {name: tensor}: the noisy sum of clipped gradients of each parameter."
            raise invalid_input("type(release)", type(released).__name__, "to map names to tensors", remedy)
        shapes = {name: tuple(value.shape) for name, value in released.items()}
        if shapes != self._shapes:
            wrong = next(each for each in {**self._shapes, **shapes} if shapes.get(each) != self._shapes.get(each))
            remedy = "Return the same parameters, with the same shapes, for every batch."
            raise invalid_input(
                f"release[{wrong!r}].shape", shapes.get(wrong), f"to be {self._shapes.get(wrong)}", remedy
            )
        parts = []
        for name, value in released.items():
            check_all_finite(f"release[{name!r}]", value, "Check the loss and the learning rate.")
            std = self._stds if isinstance(self._stds, float) else self._stds[name].double()
            parts.append((value.detach().double().cpu() / std).reshape(-1))
        return np.asarray(torch.cat(parts).numpy(), dtype=np.float64)


class DefenseSource(ReleaseSource):
    """Releases of a defense. The canary is a whole update; without it the update is zero.

    Args:
        defense: The defense.
        update: Update to defend, whose direction and shapes count.
        claimed: Claimed mechanism; None for that of the defense.
        rng: Source of the defense's noise and of other updates.

    Raises:
        InvalidInput: If nothing is claimed, the defense adds no noise, or the update is zero.
    """

    def __init__(
        self, defense: Defense, update: Mapping[str, Tensor], claimed: Mechanism | None, rng: torch.Generator
    ) -> None:
        mechanism = claimed if claimed is not None else defense.mechanism
        if mechanism is None:
            remedy = "Pass claimed=rr.mechanisms.Gaussian(...); in the shell, --noise-multiplier and --clip-norm."
            raise invalid_input(f"mechanism of {defense}", None, "to be claimed", remedy)
        one = gaussian_of_one_release(mechanism)
        self.name, self.claimed, self.shift = str(defense), mechanism, 1 / one.noise_multiplier
        self._defense, self._rng = _without_later_parts(defense), rng
        zero = {name: torch.zeros_like(value) for name, value in update.items()}
        self._set_layout(update, self._unit_of_noise(zero, one))
        self.candidates = CANDIDATES if self.size <= _MOST_VALUES else 1
        others = (
            {name: _normal_like(value, rng) for name, value in update.items()} for _ in range(self.candidates - 1)
        )
        long = [self._lengthen(each) for each in (update, *others)]
        opposite = {name: -value for name, value in long[0].items()}
        self._updates = [zero, *long, opposite]
        # the opposite update is another whole update, so their difference is at most twice the sensitivity
        self.near, self.far, self.multiple = (0,), (_OPPOSITE,), 2
        self._means = [self._replay(each) for each in self._updates]
        self.has_mean = self._means[0] is not None
        self.assumptions = (
            "the release is one whole update, or none",
            "the noise is Gaussian, and independent between values",
            _LATER,
        )
        if not getattr(defense, "exact_noise", False):  # a plugin's defense may lack it
            self.assumptions += (UNTESTED_BITS,)

    def release(self, added: tuple[int, ...]) -> Array:
        """Return the defended update of a candidate, or of none."""
        return self._flatten(self._defense(self._updates[_place(added)], rng=self._rng))

    def mean(self, added: tuple[int, ...]) -> Array | None:
        """Return the update that the defense replays."""
        return self._means[_place(added)]

    def _unit_of_noise(self, update: Mapping[str, Tensor], one: Gaussian) -> Mapping[str, Tensor] | float:
        """Return the claimed noise of each value: the proportions are those of the defense, the size is claimed."""
        stated = getattr(self._defense, "noise_std", lambda sent: None)(update)
        if stated is None:
            return one.noise_std
        scales = NoiseScales({name: value.detach().double().cpu() for name, value in stated.items()})
        return {name: value * (one.noise_std / scales.unit) for name, value in scales.stds.items()}

    def _lengthen(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the update with a length that shows if it is clipped."""
        length = float(np.linalg.norm(self._flatten(update)))
        check_positive("norm of the update", length, "Pass an update that is not zero.")
        return {name: value * (_FAR * self.shift / length) for name, value in update.items()}

    def _replay(self, update: Mapping[str, Tensor]) -> Array | None:
        replay = getattr(self._defense, "replay", None)
        return None if replay is None else self._flatten(replay(update))


class RecordSource(ReleaseSource):
    """Releases of a training step on chosen records.

    Args:
        step: Function that returns the noisy sum of clipped gradients of a batch.
        data: Records and labels.
        claimed: The claimed mechanism.
        name: Description of the step.
        model: Model at the weights of the step, for means and a canary; None if unknown.
        loss_fn: Training loss; needed with a model.
        canary: Record and label with a batch dimension of one; None to choose one.
        stds: Claimed noise of each value by name; None for equal noise.

    Raises:
        InvalidInput: If there are too few records, or the release is not a mapping to finite tensors.
    """

    def __init__(
        self,
        step: Step,
        data: tuple[Tensor, Tensor],
        claimed: Mechanism,
        *,
        name: str,
        model: nn.Module | None = None,
        loss_fn: LossFunction | None = None,
        canary: tuple[Tensor, Tensor] | None = None,
        stds: Mapping[str, Tensor] | None = None,
    ) -> None:
        one = gaussian_of_one_release(claimed)
        self.name, self.claimed, self.shift = name, claimed, 1 / one.noise_multiplier
        self.multiple = max(1, min(_MOST_COPIES, math.ceil(_COPIES_SHIFT / self.shift)))
        self.far = (0,) * self.multiple
        inputs, labels = data
        if len(inputs) < 2:
            raise invalid_input("number of records", len(inputs), ">= 2", "One is the canary, the others surround it.")
        self._step = step
        parameters = {} if model is None else _trainable(model)
        if canary is None:
            canary = (inputs[-1:], labels[-1:])
            if model is not None and loss_fn is not None:
                canary = choose_canary(model, loss_fn, inputs, labels)
        is_large = sum(value.numel() for value in parameters.values()) > _MOST_VALUES
        pool = 0 if is_large else min(CANDIDATES - 1, len(inputs) // 2)
        self._candidates = (torch.cat([canary[0], inputs[:pool]]), torch.cat([canary[1], labels[:pool]]))
        self._others = (inputs[pool:][:_RECORDS], labels[pool:][:_RECORDS])
        self.candidates = pool + 1
        first = step(*self._others)
        if not isinstance(first, Mapping) or not all(isinstance(value, Tensor) for value in first.values()):
            remedy = "Return {name: tensor}, the noisy sum of clipped gradients; multiply a mean by its divisor."
            raise invalid_input("type(release)", type(first).__name__, "to map names to tensors", remedy)
        check_not_empty("release", list(first), "Return every trained parameter.")
        self._set_layout(first, one.noise_std if stds is None else {k: v.double().cpu() for k, v in stds.items()})
        self._base: Array | None = None
        if model is not None and loss_fn is not None and stds is None:
            if set(parameters) != set(first):
                remedy = "Pass the trained model; call requires_grad_(False) on frozen parameters."
                raise InvalidInput(
                    f"Expected the release to have the trainable parameters of the model, {sorted(parameters)}, got "
                    f"{sorted(first)}. {remedy}"
                )
            ordered = {name: parameters[name] for name in first}
            std = one.noise_std
            others = clipped_gradients(model, loss_fn, ordered, *self._others, one.clip_norm).sum(0).numpy()
            self._base = others / std
            self._own = clipped_gradients(model, loss_fn, ordered, *self._candidates, one.clip_norm).numpy() / std
            self.has_mean = True
        self.assumptions = (
            "every release of the same records has the same mean: the step begins at the same weights each time",
            "releases are in the unit of the claim: the noisy sum of clipped gradients",
            "the noise is Gaussian, independent between values, and of equal scale in units of the claim",
            "the contribution of a record does not depend on the others",
            _LATER,
            "the canary is one record; another record may contribute more",
            UNTESTED_BITS,
        )

    def release(self, added: tuple[int, ...]) -> Array:
        """Return the step on the other records and the candidates."""
        (inputs, labels), (more, more_labels) = self._others, self._candidates
        places = torch.tensor(added, dtype=torch.int64)
        return self._flatten(self._step(torch.cat([inputs, more[places]]), torch.cat([labels, more_labels[places]])))

    def mean(self, added: tuple[int, ...]) -> Array | None:
        """Return the sum of clipped gradients at the weights of the model."""
        return None if self._base is None else self._base + self._own[list(added)].sum(0)


def choose_canary(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Choose the record whose gradient is long in every parameter, so that wrong clipping shows.

    Real-valued records are also tried times 10 and 100.

    Args:
        model: Model at the weights of the step.
        loss_fn: Training loss.
        inputs: Records to choose from.
        labels: Their labels.

    Returns:
        One record and its label, with a batch dimension.

    >>> layer = nn.Linear(2, 1)
    >>> loss = lambda output, label: output.sum()
    >>> choose_canary(layer, loss, torch.eye(2) * torch.tensor([1.0, 3.0]), torch.zeros(2))[0]
    tensor([[  0., 300.]])
    """
    parameters = _trainable(model)
    sizes = [value.numel() for value in parameters.values()]
    count = max(1, min(len(inputs), _VALUES_AT_ONCE // sum(sizes) // len(_SCALES)))
    scales = _SCALES if inputs.is_floating_point() else (1.0,)
    tried = torch.cat([inputs[:count] * scale for scale in scales]) if len(scales) > 1 else inputs[:count]
    names = labels[:count].repeat(len(scales), *([1] * (labels.ndim - 1)))
    gradients = clipped_gradients(model, loss_fn, parameters, tried, names, _WITHOUT_CLIP)
    norms = torch.stack([part.norm(dim=1) for part in gradients.split(sizes, dim=1)])
    best = int(norms.clamp_min(1e-30).log().sum(0).nan_to_num(nan=-math.inf, posinf=-math.inf).argmax())
    return tried[best : best + 1], names[best : best + 1]


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _place(added: Sequence[int]) -> int:
    """Return the place of an update: 0 for none, then the candidates; -1 is the opposite of the canary."""
    return added[0] + 1 if added else 0


def _normal_like(value: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(value.shape, generator=rng, dtype=torch.float64).to(value)


def _without_later_parts(defense: Any) -> Any:
    """Return a chain up to the part that gives its guarantee: later parts only process the release further."""
    if not isinstance(defense, Chain):
        return defense
    for last in range(1, len(defense.parts) + 1):
        first = chain(*defense.parts[:last])
        if first.mechanism is not None:
            return first
    return defense
