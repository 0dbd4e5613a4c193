"""A layer that a malicious server puts before a model, and what its gradient gives away of single records.

The layer reads a record x, witnesses r(x), which are means of its squared values, and the constant 1. A neuron's
gradient is a sum over the records that activate it, so divided by its last entry it is a weighted mean of (x, r(x), 1).
For one record the witnesses are those of the estimate; for a mixture they are not, since r is convex: the adversary
tells the two apart without any other knowledge.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction

_WITNESSES = 4  # more than one, since a mixture of three or more records may meet a single one by chance
_NOISE_LIMIT = 0.1  # an error of a tenth of the range, 20 dB: what is noisier does not count as recovered
_NOISE_MARGIN = 5.0  # standard deviations of noise that what is read may be off
_PLANTED = "planted.weight"


class PlantedModel(nn.Module):
    """A copy of ``model`` behind a planted layer, whose activations are added to the record along one direction.

    A frozen layer decides who activates a neuron; the planted one, which reads what :func:`read_by_layer` says, begins
    at zero. Only the change it makes to the activations is added, so the outputs are those of ``model`` until it is
    trained, and its update loses nothing to rounding. The direction is fixed, so every neuron passes a record's
    derivative on with the same factor. With ``isolated`` the activation is flat outside (0, 1), else below 0.
    """

    direction: Tensor

    def __init__(
        self,
        model: nn.Module,
        input_shape: Sequence[int],
        *,
        weight: Tensor,
        bias: Tensor,
        direction: Tensor,
        isolated: bool,
    ) -> None:
        """Plant neurons of the given frozen ``weight`` on the values of a record and ``bias``."""
        super().__init__()
        module: object = model
        if not isinstance(module, nn.Module):
            raise invalid_input("model", type(module).__name__, "to be a torch.nn.Module")
        self.input_shape = tuple(input_shape)
        self.isolated = isolated
        like = next((value for value in model.parameters() if value.is_floating_point()), direction)
        neurons, features = weight.shape
        # skip_init leaves the global random numbers alone
        kind = {"dtype": like.dtype, "device": like.device}
        self.frozen = nn.utils.skip_init(nn.Linear, features, neurons, **kind).requires_grad_(False)
        self.planted = nn.utils.skip_init(nn.Linear, _width(features), neurons, bias=False, **kind)
        with torch.no_grad():
            self.frozen.weight.copy_(weight)
            self.frozen.bias.copy_(bias)
            self.planted.weight.zero_()
        self.register_buffer("direction", direction.to(like))
        self.model = copy.deepcopy(model)
        self.training = model.training

    def forward(self, inputs: Tensor) -> Tensor:
        """What the model makes of the records and of what the planted layer has learnt to add to them: nothing yet."""
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise invalid_input(
                "inputs.shape", tuple(inputs.shape), f"to be (records, *{self.input_shape}), as planted for"
            )
        flat = inputs.flatten(1)
        level = self.frozen(flat)
        change = self._active(level + self.planted(read_by_layer(flat))) - self._active(level)
        moved = flat + change.sum(1, keepdim=True) * self.direction
        outputs: Tensor = self.model(moved.view_as(inputs))
        return outputs

    def _active(self, level: Tensor) -> Tensor:
        return level.clamp(0, 1) if self.isolated else level.relu()


def witnesses(records: Tensor) -> Tensor:
    """Means of squares over interleaved parts of each record: what a mixture of records cannot get right.

    >>> witnesses(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]))
    tensor([[13., 20.,  9., 16.]])
    """
    squares = records.flatten(1).square()
    count = min(_WITNESSES, squares.shape[1])
    return torch.stack([squares[:, first::count].mean(1) for first in range(count)], 1)


def read_by_layer(records: Tensor) -> Tensor:
    """Flat records, their witnesses and a constant, the latter two amplified, so that noise harms them less."""
    ones = torch.ones_like(records[:, :1])
    return torch.cat([records, _gain(records.shape[1]) * torch.cat([witnesses(records), ones], 1)], 1)


def _gain(features: int) -> float:
    """Large, but small beside the norm of a record, of whose share of a clipped gradient it takes."""
    return max(1.0, math.sqrt(features) / 8)


def _width(features: int) -> int:
    return features + min(_WITNESSES, features) + 1


def check_input_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of one record, as whole numbers."""
    if not isinstance(input_shape, (tuple, list)) or not input_shape:
        raise invalid_input(
            "input_shape", input_shape, "to be the shape of one record", "Write (1, 28, 28), without the batch."
        )
    return tuple(check_whole("input_shape", side) for side in input_shape)


def random_direction(features: int, strength: float, rng: torch.Generator) -> Tensor:
    """Each value of a record up or down by ``strength``: no model that uses its input is blind to all such moves."""
    return strength * (2.0 * torch.randint(2, (features,), generator=rng, device=rng.device) - 1)


def planted_rows(tensors: Mapping[str, Tensor], features: int, neurons: int) -> Tensor:
    """What ``tensors`` hold for the planted layer, one row per neuron: for x, r(x) and 1."""
    remedy = "Release the update of attack.plant(model, input_shape), by the attack that planted it."
    if _PLANTED not in tensors:
        raise invalid_input("released", sorted(tensors), f"to hold {_PLANTED}", remedy)
    expected, found = (neurons, _width(features)), tuple(tensors[_PLANTED].shape)
    if found != expected:
        raise invalid_input(f"released[{_PLANTED!r}].shape", found, f"to be {expected}", remedy)
    rows = tensors[_PLANTED].double()
    return torch.cat([rows[:, :features], rows[:, features:] / _gain(features)], 1)


@dataclass(frozen=True, eq=False)
class Readings:
    """Records that single neurons or bins give away, best first, and the attacker's own doubt in each."""

    records: Tensor
    doubts: Tensor


def read_records(
    observation: Observation,
    rows: Tensor,
    *,
    tolerance: float,
    rounding: Tensor | None = None,
    variances: Tensor | None,
) -> Readings:
    r"""The records that have a row of ``rows`` to themselves.

    .. math:: (\hat x, \hat r) = \text{row} / \text{last entry}, \quad
              \text{doubt} = \max_j |r_j(\hat x) - \hat r_j| / s^2

    where s is the largest size of a value, and values out of range count as doubt too. Accepted are doubts up to
    ``tolerance``, more if noise of known ``variances`` explains them, each record once. Rows whose last entry is at
    most its ``rounding`` tell nothing.
    """
    features = math.prod(observation.input_shape)
    low, high = observation.data_range
    size = max(high - low, abs(low), abs(high))
    tiny = torch.finfo(torch.float64).tiny
    readable = rows[:, -1].abs() > (tiny if rounding is None else rounding.clamp_min(tiny))
    rows, variances = rows[readable], (torch.zeros_like(rows) if variances is None else variances)[readable]
    sums = rows[:, -1:]
    records, claimed = (rows / sums)[:, :features], (rows / sums)[:, features:-1]
    stds = (variances / sums.square()).sqrt()
    errors, witness_errors = stds[:, :features].square().mean(1).sqrt() / size, stds[:, features:].amax(1)
    spread = (
        2 * errors * math.sqrt(claimed.shape[1] / features) + witness_errors * (1 + claimed.abs().amax(1)) / size**2
    )
    off = (witnesses(records) - (errors * size).square()[:, None] - claimed).abs().amax(1) / size**2
    outside = (records - records.clamp(low, high)).abs().amax(1) / size
    fits = (off <= tolerance + _NOISE_MARGIN * spread) & (outside <= tolerance + _NOISE_MARGIN * errors)
    accepted = fits & (errors <= _NOISE_LIMIT)  # NaN fits nowhere
    doubts = torch.maximum(off, outside)
    order = (doubts + errors)[accepted].argsort(stable=True)
    records, doubts, errors = (each[accepted][order] for each in (records, doubts, errors))
    once = _first_of_each(records / size, 10 * tolerance + 3 * errors, observation.batch_size)
    return Readings(records[once].clamp(low, high), doubts[once])


def _first_of_each(records: Tensor, radii: Tensor, most: int) -> list[int]:
    """Positions of at most ``most`` records, none within the radius (root mean square) of one before it."""
    chosen: list[int] = []
    left = torch.ones(len(records), dtype=torch.bool, device=records.device)
    while len(chosen) < most and bool(left.any()):
        first = int(left.nonzero()[0])
        chosen.append(first)
        distances = (records - records[first]).square().mean(1).sqrt()
        left &= distances > torch.maximum(radii, radii[first])
        left[first] = False
    return chosen


def planted_reconstruction(
    observation: Observation, readings: Readings, *, attack: str, expected: str, remedy: str, begun: float
) -> Reconstruction:
    """The records read, then the middle of the range for the rest; the status counts them."""
    count, batch_size = len(readings.records), observation.batch_size
    estimates = torch.full((batch_size, *observation.input_shape), sum(observation.data_range) / 2, dtype=torch.float64)
    estimates[:count] = readings.records.view(count, *observation.input_shape)
    objective = (*readings.doubts.tolist(), *(math.inf,) * (batch_size - count))
    silent = not bool(observation.released[_PLANTED].any())
    noisy = observation.noise_std is not None
    counted = f"{count} of {batch_size} fit within the noise" if noisy else f"recovered {count} of {batch_size}"
    cause = counted + expected
    if silent:
        status = Status(
            Ending.NOT_APPLICABLE, "no neuron of the planted layer is active", "Plant it before another model"
        )
    elif count == batch_size and not noisy:
        status = Status(Ending.EXACT, cause)
    else:
        status = Status(Ending.CONVERGED, cause, "" if count == batch_size else remedy)
    account = Account(attack, status, objective, Cost(time.monotonic() - begun, 0))
    return Reconstruction(estimates.to(torch.get_default_dtype()), account)


@dataclass(frozen=True, eq=False)
class SentModel:
    """The model that clients train, and the loss they train it with."""

    model: nn.Module
    loss_fn: LossFunction


@runtime_checkable
class PlantsLayer(Protocol):
    """An attack by a malicious server, which changes the model before clients train it."""

    def sent_model(self, model: nn.Module | None, loss_fn: LossFunction, input_shape: Sequence[int]) -> SentModel:
        """Return the model that clients are sent; ``model`` is None if the server has none of its own."""
        ...


def check_has_model(model: nn.Module | None) -> nn.Module:
    """Refuse None in place of a network."""
    if model is None:
        raise invalid_input(
            "model", None, "to be a network", "Only optimal_analytic() plants a whole model of its own."
        )
    return model
