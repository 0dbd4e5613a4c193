"""Guesses that ignore the release, or use its labels only: every attack has to beat them.

:func:`constant_guess`, :func:`prior_mean` and :func:`class_mean` need little knowledge. :func:`prior_alone` is the
guess of a generative prior without any update: a prior makes plausible records of nothing, and a plausible record is
not a leaked one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from reconrisk.attacks.labels.infer import labels_for
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import check_all_finite, check_finite, check_not_empty, check_whole, invalid_input
from reconrisk.priors.prior import Prior, draw_within_range, is_prior

if TYPE_CHECKING:
    from reconrisk.attacks.knowledge import PublicKnowledge

WITH_PRIOR = HONEST_BUT_CURIOUS.knowing(Knows.PRIOR)
"""The weakest adversary who may hold a belief about the records."""

_ROUNDING = 1e-5  # relative: a float32 mean of values at the end of the range may round to beyond it


@dataclass(frozen=True)
class ConstantGuess:
    """The configured attack that :func:`constant_guess` returns."""

    value: float | None = None
    needs: ThreatModel = HONEST_BUT_CURIOUS

    def __post_init__(self) -> None:
        if self.value is not None:
            check_finite("value", self.value)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The same value everywhere; ``rng`` is not used."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        value = sum(observation.data_range) / 2 if self.value is None else self.value
        guess = torch.full((1, *observation.input_shape), value, dtype=torch.float64)
        check_record_shape("value", guess, observation, leading=(1,))
        return _guessed(observation, guess, repr(self), f"every value is {value:g}", begun)

    def __repr__(self) -> str:
        """Every setting."""
        return f"constant_guess(value={self.value})"


@dataclass(frozen=True, eq=False)
class PriorMean:
    """The configured attack that :func:`prior_mean` returns."""

    mean: Tensor
    needs: ThreatModel = WITH_PRIOR

    def __post_init__(self) -> None:
        _check_tensor("mean", self.mean)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The mean for every record; ``rng`` is not used."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        check_record_shape("mean", self.mean, observation, leading=())
        return _guessed(observation, self.mean[None].double(), repr(self), "every record is the prior mean", begun)

    def __repr__(self) -> str:
        """Every setting; the mean by its shape."""
        return f"prior_mean(tensor of shape {tuple(self.mean.shape)})"


@dataclass(frozen=True, eq=False)
class ClassMean:
    """The configured attack that :func:`class_mean` returns."""

    means: Tensor
    needs: ThreatModel = WITH_PRIOR

    def __post_init__(self) -> None:
        _check_tensor("means", self.means)
        if self.means.ndim < 2:
            raise invalid_input("means.shape", tuple(self.means.shape), "to be (classes, *shape of a record)")

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The mean of each record's class, known or inferred; ``rng`` is not used."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        classes = len(self.means)
        check_record_shape("means", self.means, observation, leading=(classes,))
        labels = labels_for(observation)
        if labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise invalid_input(
                "labels", labels.tolist(), f"to be classes with a mean, 0 to {classes - 1}", "Pass all means."
            )
        guess = self.means.double()[labels.to(self.means.device)]
        made = _guessed(observation, guess, repr(self), "every record is the mean of its class", begun)
        return replace(made, account=replace(made.account, labels=tuple(int(label) for label in labels)))

    def __repr__(self) -> str:
        """Every setting; the means by their shape."""
        return f"class_mean(tensor of shape {tuple(self.means.shape)})"


def constant_guess(value: float | None = None) -> ConstantGuess:
    r"""Guess the same value for every coordinate of every record, by default the middle of the range.

    .. math:: \hat x_i = (\mathrm{low} + \mathrm{high}) / 2

    Assumes: nothing.
    Guarantee: nothing of the release is read, so every threat covers it, whatever it sees. The middle has the smallest
    worst case over the range, (high - low)^2/4.
    Edge cases: a value outside the data range is refused. The objective is inf: nothing speaks for the guess.

    >>> observation = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, HONEST_BUT_CURIOUS, (2,), (0.0, 1.0))
    >>> constant_guess()(observation, rng=torch.Generator()).estimates
    tensor([[0.5000, 0.5000]])
    """
    return ConstantGuess(value)


def prior_mean(mean: Tensor) -> PriorMean:
    r"""Guess the mean of the prior for every record.

    .. math:: \hat x = \mathrm E[X]

    Assumes: ``mean``, shaped as a record, is what the adversary believes: the threat knows the prior.
    Guarantee: the smallest mean squared error of all guesses that ignore the release, the variance of the prior.
    Edge cases: a mean outside the data range is refused. The objective is inf: nothing speaks for the guess.

    >>> threat = HONEST_BUT_CURIOUS.knowing(Knows.PRIOR)
    >>> observation = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, threat, (2,), (0.0, 1.0))
    >>> prior_mean(torch.tensor([0.25, 0.75]))(observation, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.7500]])
    """
    return PriorMean(mean)


def class_mean(means: Tensor) -> ClassMean:
    r"""Guess the mean of a record's class.

    .. math:: \hat x_i = \mathrm E[X \mid y_i]

    Assumes: row c of ``means`` is what the adversary believes of class c: the threat knows the prior. Labels that the
    threat does not know are inferred from the release (:func:`reconrisk.attacks.labels.infer.labels_for`).
    Guarantee: the smallest mean squared error of all guesses that use the labels alone, where these are right.
    Edge cases: a label without a mean, and means outside the data range, are refused. The objective is inf.

    >>> threat = HONEST_BUT_CURIOUS.knowing(Knows.PRIOR)
    >>> released = {"weight": torch.zeros(2, 1), "bias": torch.tensor([0.6, -0.6])}
    >>> observation = Observation(released, lambda inputs, labels: {}, threat, (1,), (0.0, 1.0))
    >>> class_mean(torch.tensor([[0.25], [0.75]]))(observation, rng=torch.Generator()).estimates
    tensor([[0.7500]])
    """
    return ClassMean(means)


def check_knows(observation: Observation, needs: ThreatModel) -> None:
    """Refuse a threat without the side information of ``needs``; what it sees may be any part of the training."""
    observation.check_covers(replace(needs, sees=observation.threat.sees))


def check_record_shape(name: str, value: Tensor, observation: Observation, *, leading: tuple[int, ...]) -> None:
    """Refuse beliefs that are not shaped as the records, or lie beyond their range."""
    expected = (*leading, *observation.input_shape)
    if tuple(value.shape) != expected:
        raise invalid_input(f"{name}.shape", tuple(value.shape), f"to be {expected}, by the records' shape")
    low, high = observation.data_range
    slack = _ROUNDING * max(high - low, abs(low), abs(high))
    smallest, largest = (float(end) for end in value.aminmax())
    if smallest < low - slack or largest > high + slack:
        found = f"between {smallest:g} and {largest:g}"
        raise invalid_input(
            name, found, f"to lie in data_range={observation.data_range}", "Scale them as the records are."
        )


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise invalid_input(
            name, type(value).__name__, "to be a floating point tensor", f"Pass torch.as_tensor({name})."
        )
    check_not_empty(name, value.flatten())
    check_all_finite(name, value)


def _guessed(observation: Observation, guess: Tensor, attack: str, cause: str, begun: float) -> Reconstruction:
    """One guess for all records, or one for each."""
    low, high = observation.data_range
    estimates = guess.detach().expand(observation.batch_size, *observation.input_shape).clamp(low, high)
    account = Account(
        attack,
        Status(Ending.CONVERGED, f"a guess, {cause}"),
        (math.inf,) * observation.batch_size,
        Cost(time.monotonic() - begun, 0),
    )
    return Reconstruction(estimates.to(torch.get_default_dtype()).contiguous(), account)


Guess = Literal["mean", "draw"]


@dataclass(frozen=True, eq=False)
class PriorAlone:
    """The configured attack that :func:`prior_alone` returns."""

    prior: Prior
    guess: Guess = "mean"
    draws: int = 64
    steps: int = 50
    needs: ThreatModel = WITH_PRIOR

    def __post_init__(self) -> None:
        prior: object = self.prior
        if not is_prior(prior):
            raise invalid_input("prior", type(prior).__name__, "to be a prior", "Pass one of rr.priors.")
        if self.guess not in get_args(Guess):
            raise invalid_input("guess", self.guess, 'to be "mean" or "draw"')
        check_whole("draws", self.draws)
        check_whole("steps", self.steps)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The same guess for every record, or a draw for each."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        self.prior.check_fits(observation.input_shape, observation.data_range)
        if self.guess == "draw":
            drawn = draw_within_range(self.prior, observation.batch_size, rng, steps=self.steps)
            return _guessed(observation, drawn, repr(self), "every record is drawn from the prior", begun)
        mean = self.prior.mean
        if mean is None:
            mean = draw_within_range(self.prior, self.draws, rng, steps=self.steps).mean(0)
        return _guessed(observation, mean, repr(self), "every record is the prior's mean", begun)

    def __repr__(self) -> str:
        """Every setting; the prior by its name."""
        return f"prior_alone({self.prior.name}, guess={self.guess!r}, draws={self.draws}, steps={self.steps})"


def prior_alone(prior: Prior, *, guess: Guess = "mean", draws: int = 64, steps: int = 50) -> PriorAlone:
    r"""Guess records from the prior, without any look at the release.

    .. math:: \hat x = \mathrm E[X] \quad \text{or} \quad \hat x \sim X

    "mean" is the best guess in squared error, "draw" is a plausible record, as far from the target as two records are
    from each other. The mean is exact for a Gaussian prior, also where an attack has it as a denoiser; of others it is
    that of ``draws`` records, whose squared error is larger by the variance of a record, divided by ``draws``.
    ``steps`` are those of a diffusion.

    Assumes: a prior of the shape and range of the records: the threat knows the prior.
    Guarantee: of the observation it reads shape, range and number of the records, and nothing that was released: every
    threat that knows the prior covers it, whatever it sees. What this guess has as well, no attack has leaked.
    Edge cases: a prior of another shape or range is refused. The objective is inf: nothing speaks for the guess.
    Reference: the mean has the smallest mean squared error of all constants, chapter 1.5, Bishop (2006).

    >>> from reconrisk.priors.gaussian import gaussian
    >>> observation = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, WITH_PRIOR, (2,), (0.0, 1.0))
    >>> attack = prior_alone(gaussian(torch.tensor([0.25, 0.75]), 0.01 * torch.eye(2)))
    >>> attack(observation, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.7500]])
    """
    return PriorAlone(prior, guess, draws, steps)


def mean_of_public_records(knowledge: PublicKnowledge, given: Mapping[str, object]) -> dict[str, object]:
    """Return the mean of public records as a setting of :func:`prior_mean`."""
    del given
    return {"mean": _mean(knowledge.records("prior_mean").inputs)}


def class_means_of_public_records(knowledge: PublicKnowledge, given: Mapping[str, object]) -> dict[str, object]:
    """Return a mean for each class as a setting of :func:`class_mean`; that of all records for an empty class."""
    del given
    public = knowledge.records("class_mean")
    labels, every = public.class_labels, public if knowledge.candidates is None else knowledge.candidates
    classes = len(every.classes) if every.classes is not None else int(every.class_labels.max()) + 1
    sums = torch.zeros(classes, *public.shape, dtype=torch.float64).index_add_(0, labels, public.inputs.double())
    counts = torch.bincount(labels, minlength=classes).view(-1, *[1] * len(public.shape))
    means = torch.where(counts > 0, sums / counts.clamp_min(1), _mean(public.inputs).double())
    return {"means": means.to(public.inputs.dtype)}


def _mean(inputs: Tensor) -> Tensor:
    return inputs.double().mean(0).to(inputs.dtype)
