"""Calibration of DP-SGD: the least restrictive setting at which all stated risks are met."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from reconrisk.accounting.calibration import largest_sampling_probability, largest_steps, smallest_noise_multiplier
from reconrisk.accounting.solver import largest_safe, largest_safe_count, smallest_safe
from reconrisk.accounting.subsampled import epsilon_of_training
from reconrisk.bounds.risks import RISKS, FromScratch, Identification, KnownNorm, Risk, risk_level
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import CoveredRelease, Guarantee, format_rounded_down, format_rounded_up
from reconrisk.core.mechanism import Composed, NoiseMechanism, NoisePhase, PoissonSampled, Repeated, dp_sgd
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_not_empty, check_probability, invalid_input

_NOISE_RANGE = (1e-2, 1e8)  # searched noise multipliers; below 0.01 a release is as good as noiseless
_RATE_RANGE = (1e-12, 1.0)  # searched sampling probabilities
_MOST_STEPS = 10**9  # a risk that is met after that many steps counts as met by any number
_NUDGES = 40  # 2^40 times 1e-9 is far beyond the accuracy of the solvers


_ONE_RELEASE = (
    "Expected the release of every record to be x/|x| plus noise: the guarantee of risks.from_scratch covers no other "
    "release, such as the gradient of a network. Pass risks.known_norm(...), which covers every release."
)


class Adjust(Enum):
    """Setting of the training run that calibration may change."""

    # The values are the names of the parameters of dp_sgd.
    NOISE_MULTIPLIER = "noise_multiplier"
    STEPS = "steps"
    SAMPLING_PROBABILITY = "sampling_probability"


@serializable("calibration")
@dataclass(frozen=True)
class Calibration(Result):
    """A mechanism that meets every stated risk, with the guarantees that show it.

    Attributes:
        mechanism: Mechanism of the training run with the adjusted setting.
        adjusted: The setting that was adjusted.
        value: Value of that setting. For a schedule it is the value of the first phase; later phases keep their ratio
            to it.
        risks: The stated risks.
        guarantees: One guarantee for each risk, computed at ``mechanism``.
        epsilon: Differential privacy of ``mechanism`` at ``delta``.
        delta: Probability at which ``epsilon`` is reported.
    """

    mechanism: NoiseMechanism
    adjusted: Adjust
    value: float
    risks: tuple[Risk, ...]
    guarantees: tuple[Guarantee, ...]
    epsilon: float
    delta: float

    @property
    def extreme(self) -> str:
        """Word for the direction of the search: smallest noise multiplier, largest steps or sampling probability."""
        return "smallest" if self.adjusted is Adjust.NOISE_MULTIPLIER else "largest"

    @property
    def value_text(self) -> str:
        """Adjusted setting as text, rounded to the safe side; a user can type it as the setting of a training run."""
        if self.adjusted is Adjust.STEPS:
            return f"{int(self.value)}" + (" or more" if self.value >= _MOST_STEPS else "")
        if self.adjusted is Adjust.NOISE_MULTIPLIER:
            return format_rounded_up(self.value, 6) + (" or less" if self.value <= _NOISE_RANGE[0] else "")
        return format_rounded_down(self.value, 6)

    @property
    def sentence(self) -> str:
        """Adjusted setting, the differential privacy that it implies, and limits of the guarantees, as sentences."""
        first = (
            f"The {self.extreme} {self.adjusted.value} is {self.value_text}: "
            f"({format_rounded_up(self.epsilon)}, {self.delta:g})-differentially private."
        )
        narrow = [each.release.value for each in self.guarantees if each.release is not CoveredRelease.ANY]
        return f"{first} A guarantee covers {narrow[0]}." if narrow else first

    def table(self) -> str:
        """Return each risk with the guarantee that meets it."""
        pairs = zip(self.risks, self.guarantees, strict=True)
        return "\n".join(f"{risk}: {guarantee}" for risk, guarantee in pairs)

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each risk."""
        pairs = zip(self.risks, self.guarantees, strict=True)
        setting = self.adjusted.value
        return tuple(
            {
                "risk": str(risk),
                "quantity": guarantee.quantity.value,
                "attained": guarantee.value,
                "scope": guarantee.scope.value,
                "reference": str(guarantee.reference),
                setting: self.value,
                "epsilon": self.epsilon,
                "delta": self.delta,
            }
            for risk, guarantee in pairs
        )

    @property
    def is_private(self) -> bool:
        """False, because a calibration follows from public settings alone."""
        return False


def calibrate(
    mechanism: NoiseMechanism,
    *,
    risks: Sequence[Risk],
    adjust: Adjust | str = Adjust.NOISE_MULTIPLIER,
    delta: float = 1e-5,
) -> Calibration:
    """Find the smallest noise multiplier, or largest steps or sampling probability, that meets every risk.

    Args:
        mechanism: Mechanism of the training run. Its value of the adjusted setting is ignored, the others stay fixed.
        risks: Risks to meet, from :mod:`reconrisk.bounds.risks`.
        adjust: Setting to change: ``"noise_multiplier"``, ``"steps"`` or ``"sampling_probability"``.
        delta: Probability at which the resulting epsilon is reported; it does not affect the calibration.

    Returns:
        The adjusted training, with one guarantee for each risk.

    Raises:
        InvalidInput: If an argument is invalid, or if no value of the setting meets a risk; the message then gives the
            closest value that can be met.

    Assumes: the assumptions of the guarantees behind the risks; each guarantee lists its own.
    Guarantee: every guarantee in the result was computed at the returned mechanism and meets its risk.
    Edge cases: several risks give the strictest of their settings. A risk of
    :func:`reconrisk.bounds.risks.from_scratch` gives a warning, because its guarantee covers one release only.
    Reference: ours; calibration to reconstruction risk is the use that riess2025 and balle2022 propose.

    >>> from reconrisk.bounds import risks
    >>> from reconrisk.core.mechanism import dp_sgd
    >>> training = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=10_000)
    >>> answer = calibrate(training, risks=[risks.identification(prior_success=0.1, at_most=0.2)])
    >>> 2.3794 < answer.value < 2.3796, round(answer.guarantees[0].value, 4)
    (True, 0.2)
    """
    try:
        setting = Adjust(adjust)
    except ValueError as error:
        raise invalid_input("adjust", adjust, f"to be one of {', '.join(item.value for item in Adjust)}") from error
    remedy = "Pass a list, such as [rr.bounds.risks.identification(candidates=1000, at_most=0.01)]."
    if not isinstance(risks, (list, tuple)) or not all(isinstance(risk, RISKS) for risk in risks):
        raise invalid_input("risks", risks, "to be a list of risks", remedy)
    check_not_empty("risks", risks, remedy)
    if not 0 < check_probability("delta", delta) < 1:
        raise invalid_input("delta", delta, "in (0, 1)", "Pass 1e-5, for example.")
    if any(isinstance(risk, FromScratch) for risk in risks):
        warnings.warn(_ONE_RELEASE, stacklevel=2)
    adjustable = _Adjustable.from_mechanism(mechanism, setting)
    values = [adjustable.solve(risk) for risk in risks]
    # Every risk falls with more noise, fewer steps and rarer sampling, so the strictest value meets all of them.
    strictest = max(values) if setting is Adjust.NOISE_MULTIPLIER else min(values)
    value, guarantees = adjustable.verify(strictest, risks)
    calibrated = adjustable.at(value)
    return Calibration(
        mechanism=calibrated,
        adjusted=setting,
        value=value,
        risks=tuple(risks),
        guarantees=guarantees,
        epsilon=epsilon_of_training(calibrated, delta),
        delta=delta,
    )


@dataclass(frozen=True)
class _Settings:
    """Settings of a training with one phase."""

    noise_multiplier: float
    clip_norm: float
    sampling_probability: float
    steps: int

    @classmethod
    def from_phase(cls, part: NoisePhase) -> _Settings:
        steps, rate = 1, 1.0  # a bare Gaussian mechanism is one step on the full batch
        if isinstance(part, Repeated):
            steps, part = part.steps, part.mechanism
        if isinstance(part, PoissonSampled):
            rate, part = part.sampling_probability, part.mechanism
        return cls(part.noise_multiplier, part.clip_norm, rate, steps)


@dataclass(frozen=True)
class _Adjustable:
    """A training as a function of one of its settings."""

    setting: Adjust
    phases: tuple[_Settings, ...]

    @classmethod
    def from_mechanism(cls, mechanism: NoiseMechanism, setting: Adjust) -> _Adjustable:
        parts = mechanism.mechanisms if isinstance(mechanism, Composed) else (mechanism,)
        phases = [part for part in parts if isinstance(part, NoisePhase)]
        if len(phases) < len(parts):
            remedy = "Pass dp_sgd(...), or Composed((dp_sgd(...), dp_sgd(...)))."
            raise invalid_input("mechanism", mechanism, "to describe a training run with Gaussian noise", remedy)
        if len(phases) > 1 and setting is not Adjust.NOISE_MULTIPLIER:
            raise invalid_input("adjust", setting.value, "to be 'noise_multiplier' for a mechanism of several phases")
        return cls(setting, tuple(map(_Settings.from_phase, phases)))

    @property
    def start(self) -> float:
        return float(getattr(self.phases[0], self.setting.value))

    def at(self, value: float) -> NoiseMechanism:
        """Return the training with the setting at ``value``; noise multipliers of later phases keep their ratio."""
        if len(self.phases) == 1:
            setting = {self.setting.value: int(value) if self.setting is Adjust.STEPS else value}
            return dp_sgd(**{**vars(self.phases[0]), **setting})
        factor = value / self.start  # value is the setting of the first phase
        scaled = (replace(phase, noise_multiplier=phase.noise_multiplier * factor) for phase in self.phases)
        return Composed(tuple(dp_sgd(**vars(phase)) for phase in scaled))

    def solve(self, risk: Risk) -> float:
        """Return the least restrictive value at which ``risk`` is met."""
        if isinstance(risk, (Identification, KnownNorm)) and len(self.phases) == 1:
            named = risk.identification() if isinstance(risk, KnownNorm) else risk
            return self._solve_identification(named, self.phases[0])  # faster than the general search below

        def measure(value: float) -> float:
            return risk_level(risk.guarantee(self.at(value)))

        # The value that reveals least; if the risk is not met there, it is met nowhere.
        safest = {Adjust.NOISE_MULTIPLIER: _NOISE_RANGE[1], Adjust.STEPS: 1.0}.get(self.setting, _RATE_RANGE[0])
        if measure(safest) > risk.limit:
            best = risk.guarantee(self.at(safest)).value
            raise InvalidInput(
                f"Expected the risk '{risk}' to be attainable: at {self.setting.value}={safest:g}, the safest value, "
                f"the guarantee is {best:.6g}. Relax the risk to that, or change another setting."
            )
        if self.setting is Adjust.STEPS:
            return largest_safe_count(
                lambda steps: measure(steps), target=risk.limit, start=max(1, int(self.start)), high=_MOST_STEPS
            ).value
        search, (low, high) = (
            (smallest_safe, _NOISE_RANGE) if self.setting is Adjust.NOISE_MULTIPLIER else (largest_safe, _RATE_RANGE)
        )
        start = min(max(self.start, low), high)  # the caller's own value only speeds up the search
        return search(measure, target=risk.limit, start=start, low=low, high=high, name=self.setting.value).value

    def _solve_identification(self, risk: Identification, phase: _Settings) -> float:
        """Solve by the one-phase solvers of the accountant, which start on a coarse grid."""
        noise, rate, steps = phase.noise_multiplier, phase.sampling_probability, phase.steps
        prior, target = risk.log_prior_success, risk.limit
        if self.setting is Adjust.NOISE_MULTIPLIER:
            return smallest_noise_multiplier(
                sampling_probability=rate, steps=steps, log_prior=prior, log_target=target
            ).value
        if self.setting is Adjust.STEPS:
            return largest_steps(
                noise_multiplier=noise, sampling_probability=rate, log_prior=prior, log_target=target
            ).value
        return largest_sampling_probability(
            noise_multiplier=noise, steps=steps, log_prior=prior, log_target=target
        ).value

    def verify(self, value: float, risks: Sequence[Risk]) -> tuple[float, tuple[Guarantee, ...]]:
        """Return ``value``, or a slightly safer one, at which every guarantee was computed and meets its risk."""
        step = 1e-9  # relative; doubled on every failure, because solver and guarantee differ by rounding only
        for _ in range(_NUDGES):
            guarantees = tuple(risk.guarantee(self.at(value)) for risk in risks)
            if all(risk_level(item) <= risk.limit for item, risk in zip(guarantees, risks, strict=True)):
                return value, guarantees
            if self.setting is Adjust.STEPS:
                value = max(1.0, value - 1)
            else:
                value *= 1 + step if self.setting is Adjust.NOISE_MULTIPLIER else 1 - step
            step *= 2
        raise InvalidInput(f"Expected {self.setting.value}={value!r} to meet every risk. Please report this as a bug.")
