"""Randomised releases as values: what noise was added, how records were sampled, how often it was repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from reconrisk.core.serialization import serializable
from reconrisk.core.validation import check_positive, check_probability, check_whole, refuse


@serializable
@dataclass(frozen=True)
class Gaussian:
    """One release of a sum of clipped contributions plus Gaussian noise.

    Each record contributes a vector of norm at most ``clip_norm``; the noise has standard deviation
    ``noise_multiplier * clip_norm`` in every coordinate.

    >>> Gaussian(noise_multiplier=1.1, clip_norm=2.0).noise_std
    2.2
    """

    noise_multiplier: float
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier, "Without noise there is no guarantee to compute.")
        check_positive("clip_norm", self.clip_norm, "Pass the norm used in training.")

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in each coordinate."""
        return self.noise_multiplier * self.clip_norm


@serializable
@dataclass(frozen=True)
class PoissonSampled:
    """A mechanism applied to a subset into which each record enters independently with ``sampling_probability``.

    Fixed-size batches and shuffled epochs are other mechanisms: their guarantees differ.
    """

    mechanism: Gaussian
    sampling_probability: float

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Gaussian):
            raise refuse(
                "mechanism",
                self.mechanism,
                "to be Gaussian",
                "Sample first, then repeat: Repeated(PoissonSampled(Gaussian)).",
            )
        check_probability("sampling_probability", self.sampling_probability)
        check_positive(
            "sampling_probability", self.sampling_probability, "A record that is never sampled is not released."
        )


@serializable
@dataclass(frozen=True)
class Repeated:
    """``steps`` adaptive repetitions of one mechanism on the same data with fresh noise."""

    mechanism: Gaussian | PoissonSampled
    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, (Gaussian, PoissonSampled)):
            raise refuse(
                "mechanism",
                self.mechanism,
                "to be Gaussian or PoissonSampled",
                "Multiply the steps instead of nesting Repeated.",
            )
        object.__setattr__(self, "steps", check_whole("steps", self.steps))


Mechanism: TypeAlias = Gaussian | PoissonSampled | Repeated


def dp_sgd(
    *, noise_multiplier: float, clip_norm: float = 1.0, sampling_probability: float = 1.0, steps: int = 1
) -> Mechanism:
    """The mechanism of a DP-SGD run, in the fewest layers that describe it.

    Assumes: Poisson sampling of records, noise on the sum of clipped gradients, all updates released.
    Edge cases: ``sampling_probability = 1`` is full-batch and drops that layer; ``steps = 1`` drops the repetition.
    Reference: Algorithm 1, `Abadi et al. (2016) <https://arxiv.org/abs/1607.00133>`_.

    >>> dp_sgd(noise_multiplier=1.1, steps=500)
    Repeated(mechanism=Gaussian(noise_multiplier=1.1, clip_norm=1.0), steps=500)
    >>> dp_sgd(noise_multiplier=2.0)
    Gaussian(noise_multiplier=2.0, clip_norm=1.0)
    """
    gaussian = Gaussian(noise_multiplier=noise_multiplier, clip_norm=clip_norm)
    sampled = PoissonSampled(gaussian, sampling_probability)
    one_step = gaussian if sampling_probability == 1 else sampled
    repeated = Repeated(one_step, steps)
    return one_step if repeated.steps == 1 else repeated
