"""The cheapest setting of DP-SGD at which stated risks hold: always on the safe side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from reconrisk.accounting.calibration import largest_sampling_probability, largest_steps, smallest_noise_multiplier
from reconrisk.accounting.solver import largest_safe, largest_safe_count, smallest_safe
from reconrisk.accounting.subsampled import epsilon_of_training
from reconrisk.bounds.risks import RISKS, Identification, Risk, attained
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Guarantee, rounded_down, rounded_up
from reconrisk.core.mechanism import Composed, NoiseMechanism, NoisePhase, PoissonSampled, Repeated, dp_sgd
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_not_empty, check_probability, invalid_input

_NOISE_RANGE = (1e-2, 1e8)
_RATE_RANGE = (1e-12, 1.0)
_MOST_STEPS = 10**9
_NUDGES = 40


class Adjust(Enum):
    """Which setting of the training may be changed."""

    NOISE_MULTIPLIER = "noise_multiplier"
    STEPS = "steps"
    SAMPLING_PROBABILITY = "sampling_probability"


@serializable("calibration")
@dataclass(frozen=True)
class Calibration(Result):
    """A mechanism at which every stated risk holds, with the guarantees that say so and the epsilon it implies.

    ``value`` is the adjusted setting; for a schedule it is that of the first phase, the others keep their proportion.
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
        """Which end was looked for."""
        return "smallest" if self.adjusted is Adjust.NOISE_MULTIPLIER else "largest"

    @property
    def shown_value(self) -> str:
        """The setting for reading and for typing in again: rounded to the safe side, whole steps."""
        if self.adjusted is Adjust.STEPS:
            return f"{int(self.value)}" + (" or more" if self.value >= _MOST_STEPS else "")
        if self.adjusted is Adjust.NOISE_MULTIPLIER:
            return rounded_up(self.value, 6) + (" or less" if self.value <= _NOISE_RANGE[0] else "")
        return rounded_down(self.value, 6)

    @property
    def sentence(self) -> str:
        """The setting that was found, and the differential privacy that it implies."""
        return (
            f"The {self.extreme} {self.adjusted.value} is {self.shown_value}: "
            f"({rounded_up(self.epsilon)}, {self.delta:g})-differentially private."
        )

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
        """False: it follows from stated settings."""
        return False


def calibrate(
    mechanism: NoiseMechanism,
    *,
    risks: Sequence[Risk],
    adjust: Adjust | str = Adjust.NOISE_MULTIPLIER,
    delta: float = 1e-5,
) -> Calibration:
    """The smallest noise multiplier (or largest steps, or sampling probability) at which every one of ``risks`` holds.

    ``mechanism`` says what stays as it is; its own value of the adjusted setting does not matter.

    Assumes: what the guarantees behind the risks assume; they are listed in each.
    Guarantee: every guarantee in the result was computed at the mechanism returned and meets its risk.
    Edge cases: a risk that no value meets is an error that names the nearest one; several risks give the strictest
    setting; ``delta`` only serves to state the epsilon implied.
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
    remedy = "Pass a list, such as [risks.identification(candidates=1000, at_most=0.01)]."
    if not isinstance(risks, (list, tuple)) or not all(isinstance(risk, RISKS) for risk in risks):
        raise invalid_input("risks", risks, "to be a list of risks", remedy)
    check_not_empty("risks", risks, remedy)
    if not 0 < check_probability("delta", delta) < 1:
        raise invalid_input("delta", delta, "in (0, 1)")
    adjustable = _Adjustable.of(mechanism, setting)
    values = [adjustable.solve(risk) for risk in risks]
    strictest = max(values) if setting is Adjust.NOISE_MULTIPLIER else min(values)
    value, guarantees = adjustable.verified(strictest, risks)
    answer = adjustable.at(value)
    return Calibration(
        mechanism=answer,
        adjusted=setting,
        value=value,
        risks=tuple(risks),
        guarantees=guarantees,
        epsilon=epsilon_of_training(answer, delta),
        delta=delta,
    )


@dataclass(frozen=True)
class _Settings:
    """A training of one phase, by its settings."""

    noise_multiplier: float
    clip_norm: float
    sampling_probability: float
    steps: int

    @classmethod
    def of(cls, part: NoisePhase) -> _Settings:
        steps, rate = 1, 1.0
        if isinstance(part, Repeated):
            steps, part = part.steps, part.mechanism
        if isinstance(part, PoissonSampled):
            rate, part = part.sampling_probability, part.mechanism
        return cls(part.noise_multiplier, part.clip_norm, rate, steps)


@dataclass(frozen=True)
class _Adjustable:
    """A training, phase by phase, as a function of one of its settings."""

    setting: Adjust
    phases: tuple[_Settings, ...]

    @classmethod
    def of(cls, mechanism: NoiseMechanism, setting: Adjust) -> _Adjustable:
        parts = mechanism.mechanisms if isinstance(mechanism, Composed) else (mechanism,)
        phases = [part for part in parts if isinstance(part, NoisePhase)]
        if len(phases) < len(parts):
            raise invalid_input("mechanism", mechanism, "to be a training", "Pass dp_sgd(...) or Composed of several.")
        if len(phases) > 1 and setting is not Adjust.NOISE_MULTIPLIER:
            raise invalid_input("adjust", setting.value, "to be noise_multiplier for a schedule of several phases")
        return cls(setting, tuple(map(_Settings.of, phases)))

    @property
    def start(self) -> float:
        return float(getattr(self.phases[0], self.setting.value))

    def at(self, value: float) -> NoiseMechanism:
        """The training with the setting at ``value``; noise multipliers of later phases keep their proportion."""
        if len(self.phases) == 1:
            setting = {self.setting.value: int(value) if self.setting is Adjust.STEPS else value}
            return dp_sgd(**{**vars(self.phases[0]), **setting})
        factor = value / self.start
        scaled = (replace(phase, noise_multiplier=phase.noise_multiplier * factor) for phase in self.phases)
        return Composed(tuple(dp_sgd(**vars(phase)) for phase in scaled))

    def solve(self, risk: Risk) -> float:
        """The least private value at which ``risk`` holds."""
        if isinstance(risk, Identification) and len(self.phases) == 1:
            return self._solve_identification(risk, self.phases[0])

        def measure(value: float) -> float:
            return attained(risk.guarantee(self.at(value)))

        safest = {Adjust.NOISE_MULTIPLIER: _NOISE_RANGE[1], Adjust.STEPS: 1.0}.get(self.setting, _RATE_RANGE[0])
        if measure(safest) > risk.limit:
            nearest = risk.guarantee(self.at(safest)).value
            raise InvalidInput(
                f"Expected the risk '{risk}' to be within reach: at {self.setting.value}={safest:g} it is still "
                f"{nearest:.6g}. Ask for that, or change another setting."
            )
        if self.setting is Adjust.STEPS:
            return largest_safe_count(
                lambda steps: measure(steps), target=risk.limit, start=max(1, int(self.start)), high=_MOST_STEPS
            ).value
        search, (low, high) = (
            (smallest_safe, _NOISE_RANGE) if self.setting is Adjust.NOISE_MULTIPLIER else (largest_safe, _RATE_RANGE)
        )
        start = min(max(self.start, low), high)
        return search(measure, target=risk.limit, start=start, low=low, high=high, name=self.setting.value).value

    def _solve_identification(self, risk: Identification, phase: _Settings) -> float:
        """By the solvers for one training, which look at a coarse lattice first."""
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

    def verified(self, value: float, risks: Sequence[Risk]) -> tuple[float, tuple[Guarantee, ...]]:
        """A value at or just on the safe side of ``value`` at which every guarantee was computed and holds."""
        step = 1e-9
        for _ in range(_NUDGES):
            guarantees = tuple(risk.guarantee(self.at(value)) for risk in risks)
            if all(attained(item) <= risk.limit for item, risk in zip(guarantees, risks, strict=True)):
                return value, guarantees
            if self.setting is Adjust.STEPS:
                value = max(1.0, value - 1)
            else:
                value *= 1 + step if self.setting is Adjust.NOISE_MULTIPLIER else 1 - step
            step *= 2
        raise InvalidInput(f"Expected {self.setting.value}={value!r} to meet every risk. Report this: it should.")
