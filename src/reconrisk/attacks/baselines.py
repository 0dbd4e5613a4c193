"""Baselines: guesses that ignore the release, or use its labels only. Every attack must beat them.

:func:`constant_guess`, :func:`prior_mean` and :func:`class_mean` need little knowledge. :func:`prior_alone` guesses
from a generative prior without any update. It separates leakage from plausibility: a plausible record is not a leaked
one.
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
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import check_all_finite, check_finite, check_not_empty, check_whole, invalid_input
from reconrisk.priors.prior import Prior, draw_within_range, is_prior

if TYPE_CHECKING:
    from reconrisk.attacks.knowledge import PublicKnowledge

WITH_PRIOR = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR)
"""Weakest threat model of an adversary with a prior over the records."""

_ROUNDING = 1e-5  # relative slack: a float32 mean of values at the end of the range may round beyond it


@dataclass(frozen=True)
class ConstantGuess:
    """Attack configured by :func:`constant_guess`."""

    value: float | None = None
    needs: ThreatModel = HONEST_BUT_CURIOUS

    def __post_init__(self) -> None:
        if self.value is not None:
            check_finite("value", self.value)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Guess the same value everywhere; ``rng`` is not used."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        # The middle of the range minimises the worst-case squared error.
        value = sum(observation.data_range) / 2 if self.value is None else self.value
        guess = torch.full((1, *observation.input_shape), value, dtype=torch.float64)
        check_record_shape("value", guess, observation, leading=(1,))
        return _build_guess(observation, guess, repr(self), f"every value is {value:g}", begun)

    def __repr__(self) -> str:
        """Return the call with every setting."""
        return f"constant_guess(value={self.value})"


@dataclass(frozen=True, eq=False)
class PriorMean:
    """Attack configured by :func:`prior_mean`."""

    mean: Tensor
    needs: ThreatModel = WITH_PRIOR

    def __post_init__(self) -> None:
        _check_tensor("mean", self.mean)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Guess the mean for every record; ``rng`` is not used."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        check_record_shape("mean", self.mean, observation, leading=())
        return _build_guess(observation, self.mean[None].double(), repr(self), "every record is the prior mean", begun)

    def __repr__(self) -> str:
        """Return the call with every setting; tensors are shown by shape."""
        return f"prior_mean(tensor of shape {tuple(self.mean.shape)})"


@dataclass(frozen=True, eq=False)
class ClassMean:
    """Attack configured by :func:`class_mean`."""

    means: Tensor
    needs: ThreatModel = WITH_PRIOR

    def __post_init__(self) -> None:
        _check_tensor("means", self.means)
        if self.means.ndim < 2:
            raise invalid_input(
                "means.shape",
                tuple(self.means.shape),
                "to be (classes, *shape of a record)",
                "Pass one mean per class.",
            )

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Guess the mean of each record's class, known or inferred; ``rng`` is not used."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        classes = len(self.means)
        check_record_shape("means", self.means, observation, leading=(classes,))
        labels = labels_for(observation)
        if labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise invalid_input(
                "labels",
                labels.tolist(),
                f"to be classes with a mean, 0 to {classes - 1}",
                "Pass the means of all classes.",
            )
        guess = self.means.double()[labels.to(self.means.device)]
        made = _build_guess(observation, guess, repr(self), "every record is the mean of its class", begun)
        return replace(made, account=replace(made.account, labels=tuple(int(label) for label in labels)))

    def __repr__(self) -> str:
        """Return the call with every setting; tensors are shown by shape."""
        return f"class_mean(tensor of shape {tuple(self.means.shape)})"


def constant_guess(value: float | None = None) -> ConstantGuess:
    r"""Configure a baseline that guesses one value for every coordinate of every record.

    .. math:: \hat x_i = (\mathrm{low} + \mathrm{high}) / 2

    Here low and high are the ends of the data range. This is the guess if ``value`` is None.

    Args:
        value: The guess for every coordinate; None takes the middle of the data range.

    Returns:
        The configured baseline.

    Raises:
        InvalidInput: If ``value`` is not finite; when the baseline is called, if it is outside the data range.

    Assumes: nothing.
    Guarantee: the release is never read, so every threat model covers this baseline. The middle of the range has the
    smallest worst-case squared error over the range, (high - low)^2/4.
    Edge cases: a value outside the data range is refused. The objective is inf, since no evidence supports the guess.

    >>> observation = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, HONEST_BUT_CURIOUS, (2,), (0.0, 1.0))
    >>> constant_guess()(observation, rng=torch.Generator()).estimates
    tensor([[0.5000, 0.5000]])
    """
    return ConstantGuess(value)


def prior_mean(mean: Tensor) -> PriorMean:
    r"""Configure a baseline that guesses the mean of the prior for every record.

    .. math:: \hat x = \mathrm E[X]

    Args:
        mean: Mean of the adversary's prior, shaped as one record.

    Returns:
        The configured baseline.

    Raises:
        InvalidInput: If ``mean`` is not a finite floating point tensor; when the baseline is called, if its shape or
            range differs from the records.

    Assumes: ``mean`` is the mean of the adversary's prior; the threat model includes knowledge of the prior.
    Guarantee: no guess that ignores the release has a smaller mean squared error; it equals the variance of the prior.
    Edge cases: a mean outside the data range is refused. The objective is inf, since no evidence supports the guess.

    >>> threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR)
    >>> observation = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, threat, (2,), (0.0, 1.0))
    >>> prior_mean(torch.tensor([0.25, 0.75]))(observation, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.7500]])
    """
    return PriorMean(mean)


def class_mean(means: Tensor) -> ClassMean:
    r"""Configure a baseline that guesses the mean of each record's class.

    .. math:: \hat x_i = \mathrm E[X \mid y_i]

    Args:
        means: Mean of the records of each class, of shape (classes, \*shape of a record).

    Returns:
        The configured baseline.

    Raises:
        InvalidInput: If ``means`` is not a finite floating point tensor with at least two axes; when the baseline is
            called, if a label has no mean or the shape or range differs from the records.

    Assumes: row c of ``means`` is the prior mean of class c; the threat model includes knowledge of the prior. Unknown
    labels are inferred from the release (:func:`reconrisk.attacks.labels.infer.labels_for`).
    Guarantee: no guess from correct labels alone has a smaller mean squared error.
    Edge cases: a label without a mean, and means outside the data range, are refused. The objective is inf.

    >>> threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.PRIOR)
    >>> released = {"weight": torch.zeros(2, 1), "bias": torch.tensor([0.6, -0.6])}
    >>> observation = Observation(released, lambda inputs, labels: {}, threat, (1,), (0.0, 1.0))
    >>> class_mean(torch.tensor([[0.25], [0.75]]))(observation, rng=torch.Generator()).estimates
    tensor([[0.7500]])
    """
    return ClassMean(means)


def check_knows(observation: Observation, needs: ThreatModel) -> None:
    """Check that the threat model of an observation grants the side information that an attack needs.

    Args:
        observation: The observation that the attack receives.
        needs: The weakest threat model that allows the attack. Its ``sees`` is ignored.

    Raises:
        InvalidInput: If the threat model of the observation lacks some of the knowledge.
    """
    observation.check_covers(replace(needs, sees=observation.threat.sees))


def check_record_shape(name: str, value: Tensor, observation: Observation, *, leading: tuple[int, ...]) -> None:
    """Check that a tensor has the shape of the records and lies in their data range.

    Args:
        name: Name of the argument, for the error message.
        value: The tensor to check.
        observation: The observation with the expected shape and range.
        leading: Sizes of the axes before the axes of a record.

    Raises:
        InvalidInput: If the shape differs, or values exceed the data range by more than rounding.
    """
    expected = (*leading, *observation.input_shape)
    if tuple(value.shape) != expected:
        raise invalid_input(
            f"{name}.shape", tuple(value.shape), f"to be {expected}, since records are {observation.input_shape}"
        )
    low, high = observation.data_range
    # Rounding scales with the magnitude of the values, not only with the width of the range.
    slack = _ROUNDING * max(high - low, abs(low), abs(high))
    smallest, largest = (float(end) for end in value.aminmax())
    if smallest < low - slack or largest > high + slack:
        found = f"between {smallest:g} and {largest:g}"
        raise invalid_input(
            name, found, f"to lie in data_range={observation.data_range}", "Scale the values as the records are scaled."
        )


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise invalid_input(
            name, type(value).__name__, "to be a floating point tensor", f"Pass torch.as_tensor({name}).float()."
        )
    check_not_empty(name, value.flatten())
    check_all_finite(name, value)


def _build_guess(observation: Observation, guess: Tensor, attack: str, cause: str, begun: float) -> Reconstruction:
    """Build the reconstruction from one guess for all records, or from one guess per record."""
    low, high = observation.data_range
    # A single guess broadcasts over the batch; a guess per record passes unchanged.
    estimates = guess.detach().expand(observation.batch_size, *observation.input_shape).clamp(low, high)
    account = AttackReport(
        attack,
        Status(Ending.CONVERGED, f"a guess, {cause}"),
        (math.inf,) * observation.batch_size,
        Cost(time.monotonic() - begun, 0),
    )
    return Reconstruction(estimates.to(torch.get_default_dtype()).contiguous(), account)


Guess = Literal["mean", "draw"]


@dataclass(frozen=True, eq=False)
class PriorAlone:
    """Attack configured by :func:`prior_alone`."""

    prior: Prior
    guess: Guess = "mean"
    draws: int = 64
    steps: int = 50
    needs: ThreatModel = WITH_PRIOR

    def __post_init__(self) -> None:
        prior: object = self.prior
        if not is_prior(prior):
            raise invalid_input(
                "prior", type(prior).__name__, "to be a prior", "Pass rr.priors.fit_gaussian(records), for instance."
            )
        if self.guess not in get_args(Guess):
            raise invalid_input("guess", self.guess, 'to be "mean" or "draw"')
        check_whole("draws", self.draws)
        check_whole("steps", self.steps)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Guess the prior mean for every record, or draw one record for each; see ``guess``."""
        begun = time.monotonic()
        check_knows(observation, self.needs)
        self.prior.check_fits(observation.input_shape, observation.data_range)
        if self.guess == "draw":
            drawn = draw_within_range(self.prior, observation.batch_size, rng, steps=self.steps)
            return _build_guess(observation, drawn, repr(self), "every record is drawn from the prior", begun)
        mean = self.prior.mean
        if mean is None:
            # No closed form: a Monte Carlo mean.
            mean = draw_within_range(self.prior, self.draws, rng, steps=self.steps).mean(0)
        return _build_guess(observation, mean, repr(self), "every record is the prior's mean", begun)

    def __repr__(self) -> str:
        """Return the call with every setting; the prior is shown by name."""
        return f"prior_alone({self.prior.name}, guess={self.guess!r}, draws={self.draws}, steps={self.steps})"


def prior_alone(prior: Prior, *, guess: Guess = "mean", draws: int = 64, steps: int = 50) -> PriorAlone:
    r"""Configure a baseline that guesses records from a generative prior and ignores the release.

    .. math:: \hat x = \mathrm E[X] \quad \text{or} \quad \hat x \sim X

    The mean is exact for a Gaussian prior, also in its form as a denoiser. For other priors it is the mean of ``draws``
    samples, which adds the variance of a record divided by ``draws`` to the squared error.

    Args:
        prior: Generative prior over records.
        guess: "mean" is the best guess in squared error. "draw" is one plausible record, as far from the target as two
            records of the prior are from each other.
        draws: Number of samples that estimate the mean, where the prior has no exact one.
        steps: Sampling steps per draw, for a diffusion.

    Returns:
        The configured baseline.

    Raises:
        InvalidInput: If a setting is invalid; when the baseline is called, if the prior does not fit the records.

    Assumes: a prior of the shape and range of the records; the threat model includes knowledge of the prior.
    Guarantee: only the shape, range and number of the records are read, never a released value, so every threat model
    that includes the prior covers this baseline. A record that this baseline also guesses is no evidence of leakage.
    Edge cases: a prior of another shape or range is refused. The objective is inf, since no evidence supports the
    guess.
    Reference: the mean has the smallest mean squared error of all constants, chapter 1.5, Bishop (2006).

    >>> from reconrisk.priors.gaussian import gaussian
    >>> observation = Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, WITH_PRIOR, (2,), (0.0, 1.0))
    >>> attack = prior_alone(gaussian(torch.tensor([0.25, 0.75]), 0.01 * torch.eye(2)))
    >>> attack(observation, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.7500]])
    """
    return PriorAlone(prior, guess, draws, steps)


def mean_of_public_records(knowledge: PublicKnowledge, given: Mapping[str, object]) -> dict[str, object]:
    """Return the mean of the public records as a setting of :func:`prior_mean`.

    Args:
        knowledge: Public knowledge with the public records.
        given: Settings stated by the user; not used.

    Returns:
        The setting ``mean``.

    Raises:
        InvalidInput: If there are no public records.
    """
    del given
    return {"mean": _mean(knowledge.records("prior_mean").inputs)}


def class_means_of_public_records(knowledge: PublicKnowledge, given: Mapping[str, object]) -> dict[str, object]:
    """Return the mean of each class of the public records as a setting of :func:`class_mean`.

    Args:
        knowledge: Public knowledge with labelled public records.
        given: Settings stated by the user; not used.

    Returns:
        The setting ``means``. A class without records has the mean of all records.

    Raises:
        InvalidInput: If there are no public records, or their labels are not classes.
    """
    del given
    public = knowledge.records("class_mean")
    labels, every = public.class_labels, public if knowledge.candidates is None else knowledge.candidates
    classes = len(every.classes) if every.classes is not None else int(every.class_labels.max()) + 1
    sums = torch.zeros(classes, *public.shape, dtype=torch.float64).index_add_(0, labels, public.inputs.double())
    # Double precision: float32 sums over many records lose digits.
    counts = torch.bincount(labels, minlength=classes).view(-1, *[1] * len(public.shape))
    means = torch.where(counts > 0, sums / counts.clamp_min(1), _mean(public.inputs).double())
    return {"means": means.to(public.inputs.dtype)}


def _mean(inputs: Tensor) -> Tensor:
    return inputs.double().mean(0).to(inputs.dtype)
