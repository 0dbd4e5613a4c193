"""Maximum likelihood by damped Gauss-Newton: the records whose release fits the observed one best."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.attacks import gauss_newton_laplace
from reconrisk.attacks.gauss_newton_likelihood import GaussianPrior
from reconrisk.attacks.gauss_newton_search import Search, Settings
from reconrisk.attacks.labels import labels_for, stated_labels
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Account, Cost, Reconstruction
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import (
    check_all_finite,
    check_callable,
    check_nonnegative,
    check_positive,
    check_whole,
    refuse,
)


@dataclass(frozen=True, eq=False)
class GaussNewton:
    """The configured attack that :func:`gauss_newton` returns."""

    iterations: int = 50
    inner_iterations: int = 150
    restarts: int = 3
    seconds: float | None = None
    tolerance: float = 1e-4
    prior_mean: Tensor | float | None = None
    prior_std: Tensor | float | None = None
    warm_start: Attack | None = None

    def __post_init__(self) -> None:
        for name in ("iterations", "inner_iterations", "restarts"):
            check_whole(name, getattr(self, name))
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if self.warm_start is not None:
            check_callable("warm_start", self.warm_start, "Pass an attack, such as rr.attacks.inverting_gradients().")
        check_nonnegative("tolerance", self.tolerance)
        if (self.prior_mean is None) != (self.prior_std is None):
            raise refuse("prior_mean", self.prior_mean, "and prior_std to be given together")
        if self.prior_mean is not None:
            check_all_finite("prior_mean", torch.as_tensor(self.prior_mean))
            check_all_finite("prior_std", torch.as_tensor(self.prior_std))
            if not bool((torch.as_tensor(self.prior_std) > 0).all()):
                raise refuse("prior_std", self.prior_std, "> 0")

    @property
    def needs(self) -> ThreatModel:
        """One update; the prior if there is one, and what the warm start needs."""
        weakest = HONEST_BUT_CURIOUS if self.warm_start is None else self.warm_start.needs
        return weakest if self.prior_mean is None else weakest.knowing(Knows.PRIOR)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``, from noise around the middle of the range or the warm start."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        labels = labels_for(observation)
        settings = Settings(self.iterations, self.inner_iterations, self.restarts, self.seconds, self.tolerance)
        search = Search(settings, observation, labels, self._prior(observation), self.warm_start, rng)
        status = search.run(begun)
        estimates, objective, evaluations = search.estimates, search.objective, search.evaluations
        if gauss_newton_laplace.applies(observation) and not status.is_failure:

            def solve(weighted: Observation, start: Attack) -> Tensor:
                nonlocal evaluations
                again = Search(replace(settings, restarts=1), weighted, labels, self._prior(observation), start, rng)
                again.run(begun)
                evaluations += again.evaluations
                return again.estimates

            estimates, objective = gauss_newton_laplace.refined(observation, labels, estimates, solve)
        account = Account(
            attack=repr(self),
            status=status,
            objective=(objective,) * observation.batch_size,
            cost=Cost(time.monotonic() - begun, evaluations),
            labels=stated_labels(labels),
        )
        return Reconstruction(estimates.to(torch.get_default_dtype()), account)

    def _prior(self, observation: Observation) -> GaussianPrior | None:
        if self.prior_mean is None or self.prior_std is None:
            return None
        shape = (observation.batch_size, *observation.input_shape)
        both = [torch.as_tensor(value, dtype=torch.float64) for value in (self.prior_mean, self.prior_std)]
        try:
            mean, std = (value.expand(shape) for value in both)
        except RuntimeError as error:
            shapes = tuple(tuple(value.shape) for value in both)
            remedy = "Pass numbers or tensors shaped as a record."
            raise refuse("prior_mean and prior_std", shapes, f"to expand to the records, {shape}", remedy) from error
        return GaussianPrior(mean, std)

    def __repr__(self) -> str:
        """Every setting; tensors by their shape."""
        given = {
            "iterations": self.iterations,
            "inner_iterations": self.inner_iterations,
            "restarts": self.restarts,
            "seconds": self.seconds,
            "tolerance": self.tolerance,
            "prior_mean": _shown(self.prior_mean),
            "prior_std": _shown(self.prior_std),
            "warm_start": self.warm_start,
        }
        return f"gauss_newton({', '.join(f'{name}={value}' for name, value in given.items())})"


def gauss_newton(
    *,
    iterations: int = 50,
    inner_iterations: int = 150,
    restarts: int = 3,
    seconds: float | None = None,
    tolerance: float = 1e-4,
    prior_mean: Tensor | float | None = None,
    prior_std: Tensor | float | None = None,
    warm_start: Attack | None = None,
) -> GaussNewton:
    r"""Rebuild records from any smooth release by maximum likelihood, in damped Gauss-Newton steps.

    .. math:: \hat x = \arg\min_x \; (y - f(x))^T \Sigma^{-1} (y - f(x)) \; [+ (x - m)^T S^{-1} (x - m)]

    Where the threat knows the defense, Sigma is the variance of its noise and values that were not sent do not count;
    otherwise what is released is taken as exact up to rounding, and if no record fits it so, as carrying equal noise.
    Noise that is known to be Laplacian is fitted by least absolute values. ``prior_mean`` m and ``prior_std``, of each
    coordinate, make it the maximum a posteriori. The minimum is that within the data range.

    Assumes: a forward map that is differentiable twice in the records. Networks that are piecewise linear need a
    ``warm_start``, an attack whose estimates are the first start, such as ``inverting_gradients()``.
    Notation: each of at most ``iterations`` steps takes up to ``inner_iterations`` of conjugate gradients, and all
    together at most ``seconds``. Without noise it ends once steps are below ``tolerance`` of the data range, root mean
    square. A start that does not fit the release is followed by another, ``restarts`` in all. The lowest objective
    wins: the negative log posterior up to a constant, or without known noise the squared residual relative to the
    release.
    Guarantee: no step raises the misfit. At small noise, where the Fisher information I is nonsingular and the record
    inside the data range, the mean squared error is the Cramer-Rao bound tr(I^-1)/d.
    Edge cases: interrupted, it returns the best records so far; a start whose release is not finite cannot win; without
    known noise a prior decides only what the release leaves open.
    Reference: Chapter 10.3, Nocedal and Wright (2006), Numerical Optimization; `Nielsen (1999)
    <https://orbit.dtu.dk/en/publications/damping-parameter-in-marquardts-method>`_ for the damping.

    >>> forward = lambda inputs, labels: {"y": inputs[0].exp()}
    >>> threat = HONEST_BUT_CURIOUS.knowing(Knows.LABELS)
    >>> released = {"y": torch.tensor([0.25, 0.5]).exp()}
    >>> observation = Observation(released, forward, threat, (2,), (0.0, 1.0), labels=torch.tensor([0]))
    >>> gauss_newton()(observation, rng=torch.Generator().manual_seed(0)).estimates.round(decimals=3)
    tensor([[0.2500, 0.5000]])
    """
    return GaussNewton(iterations, inner_iterations, restarts, seconds, tolerance, prior_mean, prior_std, warm_start)


def _shown(value: Tensor | float | None) -> object:
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
