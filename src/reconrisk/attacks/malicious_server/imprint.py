"""Robbing the Fed: a planted layer sorts records into bins, and a record that is alone in its bin is revealed."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from scipy.special import betaln
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from reconrisk.attacks.malicious_server.planting import (
    PlantedModel,
    SentModel,
    check_has_model,
    check_input_shape,
    planted_reconstruction,
    planted_rows,
    random_direction,
    read_records,
)
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.threat import MALICIOUS_SERVER, ThreatModel
from reconrisk.core.validation import check_all_finite, check_positive, check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.release import directions_rng

if TYPE_CHECKING:
    from reconrisk.attacks.knowledge import PublicKnowledge

Measurement = Literal["mean", "random"]
NATURAL_BRIGHTNESS = Normal(0.45, 0.12)
"""Law of the mean value of a photograph with values in [0, 1]; the default law of the measurement."""

_ROUNDINGS = 16  # units in the last place of a sum below which a difference of neighbours is rounding
_TAIL = 10.0  # standard deviations that the outer bins reach beyond the inner quantiles


@dataclass(frozen=True, eq=False, repr=False)
class Imprint:
    """Attack configured by :func:`imprint`: call ``plant`` first, then the attack itself."""

    bins: int = 256
    public: Tensor | Distribution = NATURAL_BRIGHTNESS
    measurement: Measurement = "mean"
    isolated: bool = True
    strength: float = 0.1
    tolerance: float = 1e-5
    needs: ThreatModel = MALICIOUS_SERVER

    def __post_init__(self) -> None:
        check_whole("bins", self.bins)
        check_positive("strength", self.strength)
        check_positive("tolerance", self.tolerance)
        if self.measurement not in ("mean", "random"):
            raise invalid_input("measurement", self.measurement, 'to be "mean" or "random"')
        _check_law(self.public, self.bins)

    def sent_model(self, model: nn.Module | None, loss_fn: LossFunction, input_shape: Sequence[int]) -> SentModel:
        """Return the model behind the planted layer."""
        return SentModel(self.plant(check_has_model(model), input_shape), loss_fn)

    def plant(
        self, model: nn.Module, input_shape: Sequence[int], *, rng: torch.Generator | None = None
    ) -> PlantedModel:
        """Return a new model that measures each record in a planted layer, then runs a copy of ``model``.

        Args:
            model: The model of the user; it is not changed.
            input_shape: Shape of one record.
            rng: Draws the direction in which the layer moves records, and the random measurement. Without it both are
                fixed.

        Returns:
            The planted model. It has the precision and device of ``model``, and the same outputs until it is trained.
        """
        shape, rng = check_input_shape(input_shape), directions_rng(rng)
        features = math.prod(shape)
        measure = torch.full((features,), 1 / features, dtype=torch.float64)
        if self.measurement == "random":
            measure = torch.randn(features, generator=rng, dtype=torch.float64) / math.sqrt(features)
        edges, spread = self._edges(measure, shape)
        lower = edges[:-1]
        # Isolated neurons rise from 0 to 1 within their bin; others rise slowly over the whole range.
        slopes = 1 / edges.diff() if self.isolated else torch.full_like(lower, 1 / (2 * _TAIL * spread))
        direction = random_direction(features, self.strength, rng)
        weight, bias = slopes[:, None] * measure, -slopes * lower
        return PlantedModel(model, shape, weight=weight, bias=bias, direction=direction, isolated=self.isolated)

    def _edges(self, measure: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, float]:
        """Return the edges of equally likely bins, and the standard deviation of the measurement."""
        levels = torch.arange(1, self.bins, dtype=torch.float64) / self.bins
        if isinstance(self.public, Tensor):
            if tuple(self.public.shape[1:]) != shape:
                raise invalid_input(
                    "public.shape",
                    tuple(self.public.shape),
                    f"to be {(len(self.public), *shape)}, since records are {shape}",
                )
            measured = (self.public.flatten(1).double() @ measure).cpu()
            # order statistics at i (N + 1) / k: the probability of a bin is then Beta((N + 1) / k, ...), of mean 1 / k
            inner = torch.from_numpy(np.quantile(measured.numpy(), levels.numpy(), method="weibull"))
            middle, spread = float(measured.mean()), float(measured.std())
        else:
            inner = self.public.icdf(levels).double().flatten()
            middle, spread = float(self.public.mean), float(self.public.stddev)
        reach = _TAIL * spread
        # The outer bins are finite but far out, so that practically no record lies beyond them.
        low = min([middle, *inner[:1].tolist()]) - reach
        high = max([middle, *inner[-1:].tolist()]) + reach
        edges = torch.cat([torch.tensor([low]), inner, torch.tensor([high])]).double()
        if not bool((edges.diff() > 0).all()):  # also catches NaN
            remedy = 'Use fewer bins, more public records, or measurement="random".'
            raise invalid_input("bins", self.bins, "to have distinct edges, but public measurements are equal", remedy)
        return edges, spread

    def expected_recovered(self, batch_size: int) -> float:
        """Return the expected number of records of a batch that are alone in their bin, as in :func:`imprint`."""
        size = check_whole("batch_size", batch_size)
        if not isinstance(self.public, Tensor) or self.bins == 1:
            # Equally likely bins: a record is alone if the other n - 1 miss its bin.
            return size * (1 - 1 / self.bins) ** (size - 1)
        whole = len(self.public) + 1
        # The probability of a bin is Beta(share, whole - share); average p (1 - p)^(n-1) over it.
        share = whole / self.bins
        return float(
            size * self.bins * np.exp(betaln(share + 1, whole - share + size - 1) - betaln(share, whole - share))
        )

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Read the records that are alone in their bin; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        features = math.prod(observation.input_shape)
        rows, rounding, variances = planted_rows(observation.released, features, self.bins), None, None
        if observation.noise_std is not None:
            variances = planted_rows(observation.noise_std, features, self.bins).square()
        if not self.isolated:  # a neuron is active in its own bin and in all bins above
            rounding = _ROUNDINGS * torch.finfo(observation.released["planted.weight"].dtype).eps * rows[:, -1].abs()
            rows = rows - _next(rows)
            variances = None if variances is None else variances + _next(variances)
        return planted_reconstruction(
            observation,
            read_records(observation, rows, tolerance=self.tolerance, rounding=rounding, variances=variances),
            attack=repr(self),
            expected=f"; expected {self.expected_recovered(observation.batch_size):.1f}",
            remedy="Plant more bins, or pass public records for bins that are equally likely",
            begun=begun,
        )

    def __repr__(self) -> str:
        """Return the call with every setting; public records are shown by shape."""
        public = f"{tuple(self.public.shape)} records" if isinstance(self.public, Tensor) else self.public
        return (
            f"imprint(bins={self.bins}, public={public}, measurement={self.measurement!r}, isolated={self.isolated}, "
            f"strength={self.strength:g}, tolerance={self.tolerance:g})"
        )


def imprint(
    *,
    bins: int = 256,
    public: Tensor | Distribution = NATURAL_BRIGHTNESS,
    measurement: Measurement = "mean",
    isolated: bool = True,
    strength: float = 0.1,
    tolerance: float = 1e-5,
) -> Imprint:
    r"""Read the records of a batch of any size off a layer that a malicious server planted.

    .. math:: \hat x = \frac{\nabla_{w_i} \ell - \nabla_{w_{i+1}} \ell}{\partial_{b_i} \ell - \partial_{b_{i+1}} \ell},
              \qquad \mathrm E[\text{recovered}] = n (1 - 1/k)^{n-1}

    Here :math:`w_i` and :math:`b_i` are weight and bias of planted neuron i, :math:`\ell` is the training loss, and n
    the number of records in the batch. All neurons measure the same number of a record, its mean or a random
    projection. The i-th neuron is active above the i-th of k = ``bins`` quantiles, so neighbouring neurons differ by
    the records of one bin. The layer is put before the model and adds nothing to its outputs; a constant input takes
    the place of its bias.

    Args:
        bins: Number k of bins, which is the number of planted neurons.
        public: Source of the quantiles: the distribution of the measurement, or N records like the attacked ones. With
            N records the bins are unequal and E[recovered] = n k B(m + 1, N - m + n) / B(m, N + 1 - m), where m = (N +
            1)/k and B is the Beta function; exact for integer m.
        measurement: "mean" measures the mean of a record, "random" a random projection.
        isolated: True for neurons that are flat above their bin too. A record is then read off one neuron without
            differences. Records with a small share of the gradient, and updates of several local steps, are then read
            as exactly as others.
        strength: Size of the move that an active neuron makes to each value of a record. Larger values raise the
            gradient above noise.
        tolerance: Largest relative mismatch of the witnesses at which a row of the layer counts as a single record.
            Witnesses are means of squared values of a record, which the planted layer also reveals.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If a setting is invalid; in ``plant``, if public measurements are equal; when the attack is
            called, if the planted layer was not released.

    Assumes: the client trains the model it is sent, ``attack.plant(model, input_shape)``, and sends the gradient of the
    planted layer, or the result of plain SGD steps on it. The expectation holds for n independent records from the
    public distribution with distinct measurements, none of which the rest of the model ignores.
    Guarantee: labels, loss and the rest of the model do not matter, including batch norm in either mode. A record
    counts as recovered only if its witnesses, which the layer reveals, agree with the record to ``tolerance``; the
    witnesses of a mixture of records do not agree.
    Edge cases: rows that are not recovered hold the middle of the range, with objective inf. Bins without gradient are
    skipped. Equal records count once. If the threat model knows the noise, the attack accepts a mismatch that the noise
    can cause; mixtures hidden by the noise then count as records. The attack does not account for pruning.
    Reference: the imprint module of `Fowl et al. (2022) <https://arxiv.org/abs/2110.13057>`_.

    >>> from reconrisk.releases.updates.gradient import GradientRelease
    >>> from reconrisk.releases.observe import observe
    >>> attack = imprint(bins=16, public=torch.linspace(0, 1, 100)[:, None].expand(-1, 4))
    >>> planted = attack.plant(nn.Linear(4, 2), input_shape=(4,))
    >>> records, labels = torch.tensor([[0.1, 0.2, 0.3, 0.2], [0.9, 0.8, 0.6, 0.9]]), torch.tensor([0, 0])
    >>> release = GradientRelease(planted, nn.functional.cross_entropy, records, labels)
    >>> result = attack(observe(release, threat=attack.needs), rng=torch.Generator())
    >>> print(result.status)
    exact: recovered 2 of 2; expected 1.9.
    """
    return Imprint(bins, public, measurement, isolated, strength, tolerance)


def _next(rows: Tensor) -> Tensor:
    """Return the row after each; zeros after the last."""
    return torch.cat([rows[1:], torch.zeros_like(rows[:1])])


def _check_law(public: object, bins: int) -> None:
    """Raise InvalidInput if no quantiles can be taken from ``public``."""
    remedy = "Pass records like those attacked, or torch.distributions.Normal(mean, std) of the measurement."
    if isinstance(public, Tensor):
        if public.ndim < 2 or len(public) < max(bins, 2):
            raise invalid_input(
                "public.shape",
                tuple(public.shape),
                f"to be (records, ...) with records >= {max(bins, 2)}, the number of bins",
                remedy,
            )
        check_all_finite("public", public)
    elif not isinstance(public, Distribution):
        raise invalid_input("public", type(public).__name__, "to be a tensor or a distribution", remedy)
    elif public.batch_shape.numel() != 1 or public.event_shape or not _has_quantiles(public):
        raise invalid_input("public", public, "to be the distribution of one number, with icdf", remedy)


def _has_quantiles(law: Distribution) -> bool:
    """Return True if torch implements the quantile function of the law."""
    try:
        return bool(law.icdf(torch.tensor(0.5)).isfinite())
    except NotImplementedError:
        return False


def settings_from_knowledge(knowledge: PublicKnowledge, given: Mapping[str, object]) -> dict[str, object]:
    """Return public records, or a normal law with their moments, as the setting ``public`` of :func:`imprint`.

    Bins are quantiles of the public records if there are enough and they differ, else of a normal law with their
    moments.

    Args:
        knowledge: Public knowledge with the public records.
        given: Settings stated by the user.

    Returns:
        The setting ``public``; empty if it is stated or cannot be derived.
    """
    default = inspect.signature(imprint).parameters
    bins, measurement = (given.get(key, default[key].default) for key in ("bins", "measurement"))
    if knowledge.public is None or "public" in given or not isinstance(bins, int):
        return {}
    inputs = knowledge.public.inputs
    if measurement != "mean":
        return {"public": inputs} if len(inputs) >= bins else {}
    measured = inputs.flatten(1).double().mean(1)
    ends = np.quantile(measured.numpy(), np.arange(1, bins) / bins, method="weibull")
    if len(inputs) >= bins and bool((np.diff(ends) > 0).all()):
        return {"public": inputs}
    spread = float(measured.std(correction=0))
    return {"public": Normal(float(measured.mean()), spread)} if spread > 0 else {}
