"""Gradient-guided sampling (GGSS-R): every step of a diffusion is guided toward records that match the release.

:class:`GuidedTrajectory` keeps the path and chooses the step to stop at without the target: where the gradient of the
residual is no larger than noise would make it. The whole residual of a noisy release says little, since most of it
varies in ways that records cannot affect.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.attacks.labels.infer import class_labels_or_none, labels_for
from reconrisk.attacks.matching.distances import Distance, check_distance, sum_of_squares
from reconrisk.attacks.matching.loop import whiten_and_mask
from reconrisk.attacks.with_prior.latents import NEEDS
from reconrisk.attacks.with_prior.unknown_noise import count_sent_values
from reconrisk.core.observation import Observation
from reconrisk.core.progress import ProgressBar
from reconrisk.core.reconstruction import ZERO_RELEASE, AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_positive, check_probability, check_whole, invalid_input
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.gaussian import GaussianPrior
from reconrisk.releases.derivative_check import check_attacked_model
from reconrisk.releases.release import standard_normal

_AVERAGED = 5  # steps over which gradient ratios are averaged; those of one step vary like chi-square of few degrees
_OVERSHOOT = 0.05  # accepted excess over the data range, as a share of its width


@dataclass(frozen=True, eq=False)
class GuidedTrajectory:
    r"""Intermediate estimates of one guided run with their residuals.

    Attributes:
        times: Times of the prior, one per step.
        residuals: Squared residual of each step, summed over ``values`` released numbers, in units of the noise if
            ``noise_is_known``, else of the observation.
        estimates: Intermediate estimates, of shape (steps, records, \*shape).
        values: Number of released values.
        noise_is_known: True if the noise is known.
        pulls: Squared length of the gradient of half the residual with respect to each record, of shape (steps,
            records).
        noise_pulls: As ``pulls``, for noise of unit variance in place of the residual.
        overshoots: Root mean square excess over the data range before clipping, as a share of its width, of shape
            (steps, records).
    """

    times: tuple[int, ...]
    residuals: Tensor
    estimates: Tensor = field(repr=False)
    values: int
    noise_is_known: bool
    pulls: Tensor = field(repr=False)
    noise_pulls: Tensor = field(repr=False)
    overshoots: Tensor = field(repr=False)

    @property
    def stop(self) -> int:
        r"""Step at which the adversary stops: the first whose residual gradient is no larger than noise would make it.

        .. math:: |J^T r|^2 \le \sigma^2 |J^T w|^2, \qquad r = y - f(x), \quad w \sim N(0, I)

        Here y is the observed release, f(x) the release of the estimates x, J the derivative of f, and :math:`\sigma`
        the standard deviation of the noise. This is the discrepancy principle for the part of the residual that records
        can affect. Over all m released values noise alone varies by :math:`\sqrt{2 m}`, often more than all n values of
        the records can account for. At the true records both sides have the same distribution. Ratios are averaged over
        a few steps. Unknown noise is estimated from the lowest residual, so the attack stops where the residual no
        longer falls clearly.

        Two kinds of steps are excluded. First, steps whose residual exceeds the lowest by more than the residual of the
        true records would: n units of noise if all n values were fitted to the noise. Second, steps whose estimates lay
        outside the data range: means of records are inside, so a prior that leaves the range is unreliable at that
        noise level. If all steps leave the range, the attack stops at the step that leaves it least.

        If no step qualifies, as for clean releases, the stop is the last step, which Algorithm 1 returns. Residuals of
        neighbouring steps differ by chance, and later steps are closer to records.
        """
        residuals = self.residuals.nan_to_num(nan=torch.inf)
        lowest = int(residuals.argmin())
        variance = 1.0 if self.noise_is_known else float(residuals[lowest]) / self.values
        # Log-ratio of the residual gradient to that of noise: 0 at the true records, on average.
        excess = (self.pulls.double().sum(1) / (variance * self.noise_pulls.double().sum(1))).log()
        mean = torch.stack([excess[max(0, last + 1 - _AVERAGED) : last + 1].mean() for last in range(len(excess))])
        # Fitting n values lowers the residual by about n units of noise below that of the true records.
        near = residuals <= residuals[lowest] + variance * self.estimates[0].numel()
        reached = (mean <= 0) & near
        if not bool(reached.any()):
            finite = self.residuals.isfinite().nonzero()
            return int(finite[-1]) if len(finite) else lowest
        outside = self.overshoots.double().square().mean(1).sqrt().where(reached, torch.inf)
        within = (outside <= _OVERSHOOT).nonzero()
        return int(within[0]) if len(within) else int(outside.argmin())

    @property
    def estimates_at_stop(self) -> Tensor:
        """Estimates at the stop."""
        return self.estimates[self.stop]

    def oracle_peak(self, targets: Tensor) -> tuple[int, Tensor]:
        """Return the step whose estimates are nearest to the targets, with these estimates; no adversary can choose it.

        Reference: section 6.3, meng2025, whose tables report this step.
        """
        if targets.shape != self.estimates.shape[1:]:
            raise invalid_input("targets.shape", tuple(targets.shape), f"to be {tuple(self.estimates.shape[1:])}")
        errors = (self.estimates - targets).square().flatten(1).mean(1)
        best = int(errors.nan_to_num(nan=torch.inf).argmin())
        return best, self.estimates[best]

    @property
    def falls_monotonically(self) -> bool:
        """Return True if the residual never rises between steps, as Theorem 5.3 of meng2025 claims."""
        return bool((self.residuals.diff() <= 0).all())


@dataclass(frozen=True, eq=False)
class GuidedSampling:
    """Attack configured by :func:`ggss_r`."""

    prior: DiffusionPrior
    steps: int = 100
    guidance: float = 0.2
    step_size: float = 1.0
    stochasticity: float = 1.0
    distance: Distance | None = None
    seconds: float | None = None
    needs: ThreatModel = NEEDS

    def __post_init__(self) -> None:
        prior: object = self.prior
        if not isinstance(prior, DiffusionPrior):
            remedy = "Pass rr.priors.denoiser(...), rr.priors.diffusion(...) or rr.priors.gaussian(...)."
            raise invalid_input("prior", type(prior).__name__, "to be a denoiser, diffusion or Gaussian prior", remedy)
        self.prior.schedule.times(self.steps)
        check_probability("guidance", self.guidance)
        check_positive("step_size", self.step_size)
        check_positive("stochasticity", self.stochasticity)  # at 0 there is no noise to turn toward the guidance
        if self.stochasticity > 1:
            raise invalid_input("stochasticity", self.stochasticity, "<= 1")
        if self.distance is not None:
            check_distance(self.distance)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records of ``observation`` at the adversary's own stop."""
        return self.run_with_trajectory(observation, rng=rng)[0]

    def run_with_trajectory(
        self, observation: Observation, *, rng: torch.Generator
    ) -> tuple[Reconstruction, GuidedTrajectory]:
        """Return the reconstruction, and the trajectory that it was selected from."""
        begun = clock.monotonic()
        labels = labels_for(observation)
        trajectory, status = self._run(observation, labels, rng, begun)
        account = AttackReport(
            attack=repr(self),
            status=ZERO_RELEASE if observation.is_zero else status,
            objective=(float(trajectory.residuals[trajectory.stop]),) * observation.batch_size,
            cost=Cost(clock.monotonic() - begun, len(trajectory.residuals)),
            labels=class_labels_or_none(labels),
        )
        return Reconstruction(trajectory.estimates_at_stop.to(torch.get_default_dtype()), account), trajectory

    def trace(self, observation: Observation, *, rng: torch.Generator) -> GuidedTrajectory:
        """Return all intermediate estimates."""
        return self.run_with_trajectory(observation, rng=rng)[1]

    def _run(
        self, observation: Observation, labels: Tensor, rng: torch.Generator, begun: float
    ) -> tuple[GuidedTrajectory, Status]:
        """Sample with guidance, and return the trajectory and the status."""
        observation.check_covers(self.needs)
        self.prior.check_fits(observation.input_shape, observation.data_range)
        shape = (observation.batch_size, *observation.input_shape)
        noisy = torch.randn(shape, generator=rng, device=rng.device).to(observation.device)
        guide = _Guide(self.prior, observation, labels, self.distance, rng)
        times = self.prior.schedule.times(self.steps)
        found = list[_Step]()
        status = Status(Ending.CONVERGED, f"{self.steps} steps of the diffusion")
        bar = ProgressBar("guided diffusion", total=self.steps)
        try:
            for time, following in zip(times, (*times[1:], None), strict=True):
                if self.seconds is not None and found and clock.monotonic() - begun > self.seconds:
                    status = Status(
                        Ending.BUDGET_SPENT, f"{len(found)} steps in {self.seconds:g} seconds", "Raise seconds"
                    )
                    break
                step = guide.at(noisy, time)
                found.append(step)
                noisy = self._next(step, time, following, rng)
                bar.advance()
        except KeyboardInterrupt:
            status = Status(Ending.INTERRUPTED, "stopped by the user", "Run again without interruption")
            if not found:
                raise
        finally:
            bar.close()
        if not any(math.isfinite(each.residual) for each in found):
            status = Status(Ending.DIVERGED, "no step has a finite residual", "Check the forward map and the prior")
        return guide.trajectory(times, found), status

    def _next(self, step: _Step, time: int, following: int | None, rng: torch.Generator) -> Tensor:
        """Take one DDIM step, with the noise turned toward the guidance at constant length."""
        share = float(self.prior.schedule.signal[time])
        if following is None:
            return step.clean
        # Shares of signal at this and the following noise level (alpha-bar).
        left = float(self.prior.schedule.signal[following])
        # Noise of a DDIM step, equation 16 of Song et al. (2021).
        spread = self.stochasticity * math.sqrt((1 - left) / (1 - share)) * math.sqrt(1 - share / left)
        mean = left**0.5 * step.clean + math.sqrt(max(0.0, 1 - left - spread**2)) * step.noise
        radius = math.sqrt(step.clean[0].numel()) * spread  # typical length of the noise of one record
        drawn = spread * standard_normal(mean, rng)
        toward = -radius * _unit(step.gradient)
        # Interpolate between random noise and the guidance, then restore the length.
        mixed = drawn + self.guidance * (toward - drawn)
        moved: Tensor = mean + self.step_size * radius * _unit(mixed)
        return moved

    def __repr__(self) -> str:
        """Return the call with every setting; the prior is shown by name."""
        names = ("steps", "guidance", "step_size", "stochasticity", "distance", "seconds")
        given = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"ggss_r({self.prior.name}, {given})"


def ggss_r(
    prior: DiffusionPrior | GaussianPrior,
    *,
    steps: int = 100,
    guidance: float = 0.2,
    step_size: float = 1.0,
    stochasticity: float = 1.0,
    distance: Distance | None = None,
    seconds: float | None = None,
) -> GuidedSampling:
    r"""Reconstruct records by a diffusion that is guided, at every step, toward records that match the release.

    .. math:: x_{t-1} = \mu_t + r \, d / |d|, \qquad d = (1 - m) \sigma_t \epsilon
        - m \sqrt n \, \sigma_t \nabla_{x_t} |y - f(\hat x_0)| / |\nabla|, \qquad r = s \sqrt n \, \sigma_t

    Here y is the observed release, f(x) the release of records x, and n the number of values of a record.
    :math:`\hat x_0` is the prior's estimate of the clean record, :math:`\mu_t` and :math:`\sigma_t` are mean and
    standard deviation of a DDIM step, and :math:`\epsilon` is standard normal noise. Directions are normalised for each
    record of a batch. Known noise weighs each value by its standard deviation. ``trace`` returns every intermediate
    estimate.

    Args:
        prior: Diffusion or Gaussian prior, differentiable.
        steps: Sampling steps of the diffusion.
        guidance: Share m of the guidance in the direction of a step, in [0, 1] (:math:`m_r` in the paper).
        step_size: Factor s on the length of a step.
        stochasticity: Factor on :math:`\sigma_t`, in (0, 1].
        distance: Distance of releases whose gradient guides the steps, such as
            :class:`~reconrisk.attacks.matching.distances.Cosine`; None is the norm of the residual.
        seconds: Time limit in seconds; None for no limit.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If ``prior`` is not a denoiser or a setting is out of its domain; when the attack is called, if
            the prior does not fit the records.

    Assumes: a prior of the shape and range of the records, differentiable.
    Guarantee: the stop is chosen without the target (:attr:`GuidedTrajectory.stop`). The paper's tables report the step
    nearest to the target, which :meth:`GuidedTrajectory.oracle_peak` finds.
    Edge cases: on interruption, or when ``seconds`` are spent, the stop is chosen among the finished steps. A noise
    prediction without derivatives is treated as constant in the record.
    Reference: Algorithm 1 and equation 17, meng2025; its equation 10, as printed, lacks a square root, which is present
    here.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> from reconrisk.core.observation import Observation
    >>> from reconrisk.core.threat import Knows
    >>> prior = gaussian(torch.full((2,), 0.5), 0.05 * torch.eye(2))
    >>> seen = {"y": torch.tensor([0.25, 0.75])}
    >>> observation = Observation(
    ...     seen, lambda records, labels: {"y": records[0]}, NEEDS.with_knowledge(Knows.LABELS), (2,), (0.0, 1.0),
    ...     labels=torch.tensor([0]),
    ... )
    >>> found = ggss_r(prior, guidance=1.0)(observation, rng=torch.Generator().manual_seed(0))
    >>> bool((found.estimates[0] - seen["y"]).abs().max() < 0.05)
    True
    """
    wrapped = prior.diffusion if isinstance(prior, GaussianPrior) else prior
    check_whole("steps", steps)
    return GuidedSampling(wrapped, steps, guidance, step_size, stochasticity, distance, seconds)


@dataclass(frozen=True, eq=False)
class _Step:
    """State of one step: predicted noise, clean records, residual and guidance gradient."""

    noise: Tensor
    clean: Tensor
    records: Tensor
    residual: float
    gradient: Tensor
    pulls: Tensor
    noise_pulls: Tensor
    overshoots: Tensor


class _Guide:
    """Residual of the records that the prior predicts from noisy ones, and its gradient through the prior."""

    def __init__(
        self,
        prior: DiffusionPrior,
        observation: Observation,
        labels: Tensor,
        distance: Distance | None,
        rng: torch.Generator,
    ) -> None:
        self._prior, self._observation, self._labels, self._distance = prior, observation, labels, distance
        # A separate generator for probes, so that they do not change the sampling noise of the run.
        seed = int(torch.randint(2**31, (1,), generator=rng, device=rng.device))
        self._rng = torch.Generator(rng.device).manual_seed(seed)
        dtype = torch.get_default_dtype()
        self._observed = whiten_and_mask({name: t.to(dtype) for name, t in observation.released.items()}, observation)
        self._values = count_sent_values(observation)
        self._scale = (1.0 if observation.noise_std is not None else float(sum_of_squares(self._observed))) or 1.0

    def at(self, noisy: Tensor, time: int) -> _Step:
        """Evaluate the step for noisy records at a time."""
        check_attacked_model(self._observation.forward, self._prior.records(noisy.detach()), self._labels)
        with torch.enable_grad():
            leaf = noisy.detach().requires_grad_()
            noise = self._prior.noise(leaf, time)
            share = float(self._prior.schedule.signal[time])
            clean = (leaf - (1 - share) ** 0.5 * noise) / share**0.5
            records = self._prior.records(clean)
            caused = whiten_and_mask(self._observation.forward(records, self._labels), self._observation)
            residual = sum_of_squares({name: caused[name] - value for name, value in self._observed.items()})
            drawn = {name: standard_normal(value, self._rng) for name, value in caused.items()}
            # J^T w for one draw of noise w, by the gradient of the inner product.
            random = torch.stack([(drawn[name] * value).sum() for name, value in caused.items()]).sum()
            (by_noise,) = torch.autograd.grad(random, records, retain_graph=True)
            (pull,) = torch.autograd.grad(residual / 2, records, retain_graph=True)
            if self._distance is None:
                # Gradient of the norm: that of half the square divided by the norm, pulled through the prior.
                (gradient,) = torch.autograd.grad(records, leaf, pull / residual.detach().sqrt())
            else:
                (gradient,) = torch.autograd.grad(self._distance(caused, self._observed), leaf)
        low, high = self._observation.data_range
        within = records.detach().clamp(low, high)
        return _Step(
            noise.detach(),
            clean.detach(),
            within,
            float(residual.detach()) / self._scale,
            # Without a usable gradient the step is unguided.
            gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0),
            pull.flatten(1).square().sum(1) / self._scale,
            by_noise.flatten(1).square().sum(1),
            (records.detach() - within).flatten(1).square().mean(1).sqrt() / (high - low),
        )

    def trajectory(self, times: Sequence[int], steps: Sequence[_Step]) -> GuidedTrajectory:
        """Collect the steps into a trajectory."""
        return GuidedTrajectory(
            tuple(times[: len(steps)]),
            torch.tensor([step.residual for step in steps], dtype=torch.float64),
            torch.stack([step.records for step in steps]),
            self._values,
            self._observation.noise_std is not None,
            torch.stack([step.pulls for step in steps]).cpu(),
            torch.stack([step.noise_pulls for step in steps]).cpu(),
            torch.stack([step.overshoots for step in steps]).cpu(),
        )


def _unit(vectors: Tensor) -> Tensor:
    """Normalise each record's direction; a zero direction stays zero."""
    norms = vectors.flatten(1).norm(dim=1).clamp_min(torch.finfo(vectors.dtype).tiny)
    unit: Tensor = vectors / norms.reshape(-1, *([1] * (vectors.ndim - 1)))
    return unit
