"""Randomised mechanisms as values: noise, sampling and repetitions.

A mechanism is described by its operations (:class:`Gaussian`, :class:`PoissonSampled`, :class:`Repeated`,
:class:`Composed`) or, if only that is known, by its privacy guarantee (:class:`PureDP`, :class:`ApproximateDP`,
:class:`PrivacyCurve`, :class:`RenyiDP`, :class:`ZeroConcentratedDP`, :class:`GaussianDP`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_nonnegative, check_positive, check_probability, check_whole, invalid_input


class Neighbouring(Enum):
    """Neighbouring relation: the pairs of data sets that a privacy guarantee compares."""

    ADD_OR_REMOVE = "one record added or removed"
    REPLACE_ONE = "one record replaced"


@serializable("gaussian")
@dataclass(frozen=True)
class Gaussian:
    """One release of a sum of clipped contributions plus Gaussian noise.

    Each record contributes a vector of norm at most ``clip_norm``. The noise has standard deviation
    ``noise_multiplier * clip_norm`` in every coordinate.

    Attributes:
        noise_multiplier: Standard deviation of the noise in units of ``clip_norm``.
        clip_norm: Largest Euclidean norm of one contribution.

    >>> Gaussian(noise_multiplier=1.1, clip_norm=2.0).noise_std
    2.2
    """

    noise_multiplier: float
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        noise = check_positive(
            "noise_multiplier", self.noise_multiplier, "Without noise there is no guarantee to compute."
        )
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(
            self, "clip_norm", check_positive("clip_norm", self.clip_norm, "Pass the norm used in training.")
        )

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in each coordinate."""
        return self.noise_multiplier * self.clip_norm


@serializable("poisson-sampled")
@dataclass(frozen=True)
class PoissonSampled:
    """A Gaussian release of a random subset of the records.

    Each record enters the subset independently. Fixed-size batches and shuffled epochs are different mechanisms with
    different guarantees.

    Attributes:
        mechanism: The mechanism that is applied to the subset.
        sampling_probability: Probability with which a record enters the subset.

    >>> PoissonSampled(Gaussian(noise_multiplier=1.0), sampling_probability=0.01).sampling_probability
    0.01
    """

    mechanism: Gaussian
    sampling_probability: float

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Gaussian):
            raise invalid_input(
                "mechanism",
                self.mechanism,
                "to be Gaussian",
                "Pass Repeated(PoissonSampled(Gaussian(...), rate), steps): sample first, then repeat.",
            )
        rate = check_probability("sampling_probability", self.sampling_probability)
        check_positive("sampling_probability", rate, "A record that is never sampled is not released.")
        object.__setattr__(self, "sampling_probability", rate)


@serializable("repeated")
@dataclass(frozen=True)
class Repeated:
    """Adaptive repetitions of one mechanism on the same data, with fresh noise each time.

    Attributes:
        mechanism: The mechanism that is repeated.
        steps: Number of repetitions.

    >>> Repeated(Gaussian(noise_multiplier=1.1), steps=500).steps
    500
    """

    mechanism: Gaussian | PoissonSampled
    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, (Gaussian, PoissonSampled)):
            raise invalid_input(
                "mechanism",
                self.mechanism,
                "to be Gaussian or PoissonSampled",
                "Multiply the steps instead of nesting Repeated.",
            )
        object.__setattr__(self, "steps", check_whole("steps", self.steps))


@serializable("composed")
@dataclass(frozen=True)
class Composed:
    """Composition of the phases of one training run on the same data.

    Each phase has its own noise, sampling probability and number of steps, and may be chosen adaptively.

    Attributes:
        mechanisms: The phases, at least one.

    >>> warm_up = dp_sgd(noise_multiplier=2.0, sampling_probability=0.02, steps=100)
    >>> main = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=900)
    >>> len(Composed((warm_up, main)).mechanisms)
    2
    """

    mechanisms: tuple[Gaussian | PoissonSampled | Repeated, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanisms", tuple(self.mechanisms))
        if not self.mechanisms:
            raise invalid_input(
                "mechanisms", self.mechanisms, "to contain at least one phase", "Pass dp_sgd(...) for each phase."
            )
        for phase in self.mechanisms:
            if not isinstance(phase, (Gaussian, PoissonSampled, Repeated)):
                raise invalid_input(
                    "mechanisms",
                    phase,
                    "to contain only Gaussian, PoissonSampled and Repeated",
                    "List the phases flat; compose privacy guarantees before passing them.",
                )


@serializable("pure-dp")
@dataclass(frozen=True)
class PureDP:
    """Any mechanism that satisfies pure differential privacy.

    Attributes:
        epsilon: Privacy parameter: the largest absolute log likelihood ratio of a release, at least 0.
        neighbouring: Neighbouring relation of the guarantee: a member of :class:`Neighbouring`, or ``"add_or_remove"``
            or ``"replace_one"``. It has no default, because the success bounds of the two relations differ.

    >>> PureDP(epsilon=1.0, neighbouring="replace_one").neighbouring
    <Neighbouring.REPLACE_ONE: 'one record replaced'>
    """

    epsilon: float
    neighbouring: Neighbouring

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_nonnegative("epsilon", self.epsilon))
        object.__setattr__(self, "neighbouring", _parse_relation(self.neighbouring))


@serializable("approximate-dp")
@dataclass(frozen=True)
class ApproximateDP:
    """Any mechanism that satisfies approximate differential privacy.

    Attributes:
        epsilon: Privacy parameter, at least 0.
        delta: Probability with which the guarantee may fail, in [0, 1].
        neighbouring: Neighbouring relation of the guarantee; by default a record is added or removed.

    >>> ApproximateDP(epsilon=2, delta=1e-5).epsilon
    2.0
    """

    epsilon: float
    delta: float
    neighbouring: Neighbouring = Neighbouring.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_nonnegative("epsilon", self.epsilon))
        object.__setattr__(self, "delta", check_probability("delta", self.delta))
        object.__setattr__(self, "neighbouring", _parse_relation(self.neighbouring))


@serializable("privacy-curve")
@dataclass(frozen=True)
class PrivacyCurve:
    """Any mechanism that is (``epsilons[i]``, ``deltas[i]``)-differentially private for every i.

    Attributes:
        epsilons: Privacy parameters, at least 0.
        deltas: The delta of each epsilon, in [0, 1].
        neighbouring: Neighbouring relation of the guarantee; by default a record is added or removed.
        renyi: Renyi curve of the same mechanism, or None. Bounds use the smaller of both.

    >>> PrivacyCurve(epsilons=(0.0, 1.0), deltas=(0.4, 0.1)).neighbouring
    <Neighbouring.ADD_OR_REMOVE: 'one record added or removed'>
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    neighbouring: Neighbouring = Neighbouring.ADD_OR_REMOVE
    renyi: RenyiDP | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilons", tuple(check_nonnegative("epsilons", each) for each in self.epsilons))
        object.__setattr__(self, "deltas", tuple(check_probability("deltas", each) for each in self.deltas))
        object.__setattr__(self, "neighbouring", _parse_relation(self.neighbouring))
        if not self.epsilons or len(self.epsilons) != len(self.deltas):
            raise invalid_input(
                "deltas",
                self.deltas,
                f"to have one value for each of the {len(self.epsilons)} epsilons, and at least one",
            )
        if self.renyi is not None and self.renyi.neighbouring is not self.neighbouring:
            raise invalid_input("renyi.neighbouring", self.renyi.neighbouring.value, f"to be {self.neighbouring.value}")


@serializable("renyi-dp")
@dataclass(frozen=True)
class RenyiDP:
    """Any mechanism that satisfies (``orders[i]``, ``epsilons[i]``)-Renyi differential privacy for every i.

    Attributes:
        orders: Orders of the divergence, above 1.
        epsilons: Upper bound on the divergence at each order, in nats.
        neighbouring: Neighbouring relation of the guarantee; by default a record is added or removed.

    >>> RenyiDP(orders=(2.0, 8.0), epsilons=(0.5, 2.0)).neighbouring
    <Neighbouring.ADD_OR_REMOVE: 'one record added or removed'>
    """

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    neighbouring: Neighbouring = Neighbouring.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", tuple(float(order) for order in self.orders))
        object.__setattr__(self, "epsilons", tuple(float(epsilon) for epsilon in self.epsilons))
        object.__setattr__(self, "neighbouring", _parse_relation(self.neighbouring))
        if not self.orders or len(self.orders) != len(self.epsilons):
            raise invalid_input(
                "epsilons",
                self.epsilons,
                f"to have one value for each of the {len(self.orders)} orders, and at least one",
            )
        for order in self.orders:
            if check_positive("orders", order) <= 1:
                raise invalid_input("orders", order, "> 1", "Leave out order 1, the Kullback-Leibler divergence.")
        for epsilon in self.epsilons:
            check_nonnegative("epsilons", epsilon, "Leave out orders at which the divergence is infinite.")


@serializable("zero-concentrated-dp")
@dataclass(frozen=True)
class ZeroConcentratedDP:
    """Any mechanism that satisfies zero-concentrated DP: (a, rho a)-Renyi DP at every order a > 1.

    Attributes:
        rho: Privacy parameter, at least 0.
        neighbouring: Neighbouring relation of the guarantee; by default a record is added or removed.

    >>> ZeroConcentratedDP(rho=0.5).rho
    0.5
    """

    rho: float
    neighbouring: Neighbouring = Neighbouring.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", check_nonnegative("rho", self.rho))
        object.__setattr__(self, "neighbouring", _parse_relation(self.neighbouring))


@serializable("gaussian-dp")
@dataclass(frozen=True)
class GaussianDP:
    """Any mechanism that reveals at most as much as one unit-variance Gaussian shifted by ``mu``.

    Attributes:
        mu: Shift of the Gaussian in standard deviations, at least 0.
        neighbouring: Neighbouring relation of the guarantee; by default a record is added or removed.

    >>> GaussianDP(mu=1.0).mu
    1.0
    """

    mu: float
    neighbouring: Neighbouring = Neighbouring.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check_nonnegative("mu", self.mu))
        object.__setattr__(self, "neighbouring", _parse_relation(self.neighbouring))


NoisePhase: TypeAlias = Gaussian | PoissonSampled | Repeated
"""Phases of DP-SGD: the mechanisms that :func:`dp_sgd` returns."""

NoiseMechanism: TypeAlias = NoisePhase | Composed
"""Mechanisms described by their operations. No other list exists: accountants have a table of those they support."""

StatedPrivacy: TypeAlias = PureDP | ApproximateDP | PrivacyCurve | RenyiDP | ZeroConcentratedDP | GaussianDP
"""Mechanisms described by their privacy guarantee."""

Mechanism: TypeAlias = NoiseMechanism | StatedPrivacy


def _parse_relation(neighbouring: object) -> Neighbouring:
    for relation in Neighbouring:
        if neighbouring in (relation, relation.value, relation.name.lower()):
            return relation
    raise invalid_input("neighbouring", neighbouring, "to be 'add_or_remove' or 'replace_one'")


def dp_sgd(
    *, noise_multiplier: float, clip_norm: float = 1.0, sampling_probability: float = 1.0, steps: int = 1
) -> NoisePhase:
    """Return the mechanism of a DP-SGD run: Gaussian noise, with sampling and repetition where the run has them.

    Args:
        noise_multiplier: Standard deviation of the noise in units of ``clip_norm``.
        clip_norm: Largest Euclidean norm of the gradient of one record.
        sampling_probability: Probability with which a record enters a batch.
        steps: Number of steps.

    Returns:
        A :class:`Gaussian`, :class:`PoissonSampled` or :class:`Repeated` mechanism.

    Raises:
        InvalidInput: If an argument is outside its domain, for example without noise.

    Assumes: Poisson sampling of records, noise on the sum of clipped gradients, all updates released.
    Edge cases: ``sampling_probability = 1`` gives no :class:`PoissonSampled`, ``steps = 1`` gives no :class:`Repeated`.
    Reference: Algorithm 1, `Abadi et al. (2016) <https://arxiv.org/abs/1607.00133>`_.

    >>> dp_sgd(noise_multiplier=1.1, steps=500)
    Repeated(mechanism=Gaussian(noise_multiplier=1.1, clip_norm=1.0), steps=500)
    >>> dp_sgd(noise_multiplier=2.0)
    Gaussian(noise_multiplier=2.0, clip_norm=1.0)
    """
    gaussian = Gaussian(noise_multiplier=noise_multiplier, clip_norm=clip_norm)
    sampled = PoissonSampled(gaussian, sampling_probability)  # built in any case, because it checks the probability
    one_step = gaussian if sampling_probability == 1 else sampled
    repeated = Repeated(one_step, steps)
    return one_step if repeated.steps == 1 else repeated


def output_perturbation(*, noise_std: float, records: int, regularization: float, record_norm: float = 1.0) -> Gaussian:
    r"""Return the mechanism that releases a regularised linear classifier with Gaussian noise on its coefficients.

    .. math:: \arg\min_w \frac1n\sum_i \ell(y_i\langle w,x_i\rangle) + \frac\lambda2|w|^2, \qquad
              \text{sensitivity} = \frac{R}{n\lambda}

    Args:
        noise_std: Standard deviation of the noise on each coefficient.
        records: Number of training records, :math:`n`.
        regularization: Strength of the penalty, :math:`\lambda`.
        record_norm: Largest Euclidean norm of any record, :math:`R`.

    Returns:
        The mechanism; its ``clip_norm`` is the sensitivity.

    Raises:
        InvalidInput: If an argument is not positive.

    Assumes: the training loss :math:`\ell` is convex with slope at most 1 (logistic, hinge), every coefficient is
    penalised, and the release is the exact minimiser plus noise. The neighbouring data set lacks the record and has the
    same :math:`n\lambda`.
    Reference: section 7.1, guo2022 (its sensitivity under replacement is twice this one).

    >>> output_perturbation(noise_std=0.01, records=1000, regularization=0.1).noise_multiplier
    1.0
    """
    check_positive("noise_std", noise_std, "Without noise there is no guarantee to compute.")
    check_positive("regularization", regularization)
    check_positive("record_norm", record_norm)
    sensitivity = record_norm / (check_whole("records", records) * regularization)
    return Gaussian(noise_multiplier=noise_std / sensitivity, clip_norm=sensitivity)
