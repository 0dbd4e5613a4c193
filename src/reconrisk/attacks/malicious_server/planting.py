"""A layer that a malicious server puts before a model, and the extraction of single records from its gradient.

The layer reads a record x, witnesses r(x), which are means of its squared values, and the constant 1. The gradient of a
neuron is a sum over the records that activate it. Divided by its last entry, it is a weighted mean of (x, r(x), 1). For
a single record the witnesses agree with the estimate. For a mixture they do not, since r is strictly convex. The
adversary can therefore tell single records from mixtures without further knowledge.
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
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction

_WITNESSES = 4  # several, since a mixture of three or more records may match a single witness by chance
_NOISE_LIMIT = 0.1  # error as a share of the range (20 dB) above which a record does not count as recovered
_NOISE_MARGIN = 5.0  # standard deviations of noise by which a reading may deviate
_PLANTED = "planted.weight"


class PlantedModel(nn.Module):
    """A copy of a model behind a planted layer, whose activations are added to the record along one direction.

    A frozen layer decides which records activate a neuron. The planted layer, which reads :func:`layer_inputs`, begins
    at zero. Only its change of the activations is added, so the outputs equal the outputs of the original model until
    training, and the update loses no digits to rounding. The direction is fixed, so every neuron passes the derivative
    of a record on with the same factor. If ``isolated``, the activation is flat outside (0, 1), else below 0.

    Args:
        model: The model of the user, which is copied.
        input_shape: Shape of one record.
        weight: Frozen weight of the neurons on the values of a record.
        bias: Frozen bias of the neurons.
        direction: Direction along which activations are added to the record.
        isolated: True for an activation that is flat outside (0, 1), False for one that is flat below 0.
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
        super().__init__()
        module: object = model
        if not isinstance(module, nn.Module):
            raise invalid_input(
                "model", type(module).__name__, "to be a torch.nn.Module", "Pass the network that clients train."
            )
        self.input_shape = tuple(input_shape)
        self.isolated = isolated
        # Match precision and device of the model.
        like = next((value for value in model.parameters() if value.is_floating_point()), direction)
        neurons, features = weight.shape
        # skip_init does not touch the global random state
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
        """Return the outputs of the model; the planted layer adds nothing to the records until it is trained."""
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise invalid_input(
                "inputs.shape",
                tuple(inputs.shape),
                f"to be {(*inputs.shape[:1], *self.input_shape)}",
                f"Pass records of the shape {self.input_shape} that the layer was planted for.",
            )
        flat = inputs.flatten(1)
        level = self.frozen(flat)
        # A difference of activations: exactly zero until the planted layer is trained.
        change = self._active(level + self.planted(layer_inputs(flat))) - self._active(level)
        moved = flat + change.sum(1, keepdim=True) * self.direction
        outputs: Tensor = self.model(moved.view_as(inputs))
        return outputs

    def _active(self, level: Tensor) -> Tensor:
        return level.clamp(0, 1) if self.isolated else level.relu()


def witnesses(records: Tensor) -> Tensor:
    """Return means of squares over interleaved parts of each record, which a mixture of records cannot reproduce.

    Args:
        records: Records along the first axis.

    Returns:
        Up to four witnesses per record.

    >>> witnesses(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]))
    tensor([[13., 20.,  9., 16.]])
    """
    # Interleaved parts, so that each witness sees the whole record and not one region.
    squares = records.flatten(1).square()
    count = min(_WITNESSES, squares.shape[1])
    return torch.stack([squares[:, first::count].mean(1) for first in range(count)], 1)


def layer_inputs(records: Tensor) -> Tensor:
    """Return the inputs of the planted layer: records, their witnesses and a constant.

    Args:
        records: Flat records along the first axis.

    Returns:
        One row per record. Witnesses and constant are amplified, to make them robust to noise.
    """
    ones = torch.ones_like(records[:, :1])
    return torch.cat([records, _gain(records.shape[1]) * torch.cat([witnesses(records), ones], 1)], 1)


def _gain(features: int) -> float:
    """Amplification of witnesses and constant: large, but small relative to the norm of a record."""
    return max(1.0, math.sqrt(features) / 8)


def _width(features: int) -> int:
    """Number of inputs of the planted layer."""
    return features + min(_WITNESSES, features) + 1


def check_input_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """Check the shape of one record.

    Args:
        input_shape: Shape without the batch axis.

    Returns:
        The shape as a tuple of integers.

    Raises:
        InvalidInput: If it is not a nonempty tuple or list of positive integers.
    """
    if not isinstance(input_shape, (tuple, list)) or not input_shape:
        raise invalid_input(
            "input_shape",
            input_shape,
            "to be the shape of one record",
            "Pass (1, 28, 28), for instance, without the batch axis.",
        )
    return tuple(check_whole("input_shape", side) for side in input_shape)


def random_direction(features: int, strength: float, rng: torch.Generator) -> Tensor:
    """Draw a direction that moves each value of a record up or down by ``strength``.

    Args:
        features: Number of values of a record.
        strength: Size of the move per value.
        rng: Source of randomness.

    Returns:
        The direction. No model that uses its input is blind to all such directions.
    """
    return strength * (2.0 * torch.randint(2, (features,), generator=rng, device=rng.device) - 1)


def planted_rows(tensors: Mapping[str, Tensor], features: int, neurons: int) -> Tensor:
    """Return the rows of the planted layer, one per neuron: entries for x, r(x) and 1.

    Args:
        tensors: Released tensors, or their noise, by name.
        features: Number of values of a record.
        neurons: Number of planted neurons.

    Returns:
        The rows in double precision, without the amplification of witnesses and constant.

    Raises:
        InvalidInput: If the planted layer is missing or has another shape.
    """
    remedy = "Release an update of attack.plant(model, input_shape), planted by the same attack."
    if _PLANTED not in tensors:
        raise invalid_input("released", sorted(tensors), f"to contain {_PLANTED}", remedy)
    expected, found = (neurons, _width(features)), tuple(tensors[_PLANTED].shape)
    if found != expected:
        raise invalid_input(f"released[{_PLANTED!r}].shape", found, f"to be {expected}", remedy)
    rows = tensors[_PLANTED].double()
    return torch.cat([rows[:, :features], rows[:, features:] / _gain(features)], 1)


@dataclass(frozen=True, eq=False)
class Readings:
    """Records read off single neurons or bins, best first.

    Attributes:
        records: Flat records, one per row.
        doubts: Relative mismatch between each record and its witnesses, which the adversary can compute; 0 for an exact
            record.
    """

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
    r"""Read the records that have a row of the planted layer to themselves.

    .. math:: (\hat x, \hat r) = \text{row} / \text{last entry}, \quad
              \text{doubt} = \max_j |r_j(\hat x) - \hat r_j| / s^2

    Here :math:`\hat r` are the released witnesses (means of squared values of the record), :math:`r(\hat x)` the
    witnesses of the estimate, and s is the largest size of a value. Values outside the data range count as doubt too.

    Args:
        observation: The observation that the attack received.
        rows: Rows of :func:`planted_rows`, or differences of them.
        tolerance: Largest accepted doubt; the function adds the mismatch that known noise can cause.
        rounding: Rounding error of the last entry of each row. Rows whose last entry does not exceed it are skipped.
        variances: Variance of the noise on each entry; None without known noise.

    Returns:
        The accepted records, each once.
    """
    features = math.prod(observation.input_shape)
    low, high = observation.data_range
    size = max(high - low, abs(low), abs(high))
    tiny = torch.finfo(torch.float64).tiny
    # A row is divided by its last entry, which must exceed rounding.
    readable = rows[:, -1].abs() > (tiny if rounding is None else rounding.clamp_min(tiny))
    rows, variances = rows[readable], (torch.zeros_like(rows) if variances is None else variances)[readable]
    sums = rows[:, -1:]
    records, claimed = (rows / sums)[:, :features], (rows / sums)[:, features:-1]
    # First-order error of a ratio, where the noise of the denominator is neglected.
    stds = (variances / sums.square()).sqrt()
    errors, witness_errors = stds[:, :features].square().mean(1).sqrt() / size, stds[:, features:].amax(1)
    # First-order error of a witness mismatch: noise on the record (2 x dx) and on the witness itself.
    spread = (
        2 * errors * math.sqrt(claimed.shape[1] / features) + witness_errors * (1 + claimed.abs().amax(1)) / size**2
    )
    # Squares of noisy values are biased upward by the noise variance, which is subtracted.
    off = (witnesses(records) - (errors * size).square()[:, None] - claimed).abs().amax(1) / size**2
    # A mixture with weights of both signs may leave the data range.
    outside = (records - records.clamp(low, high)).abs().amax(1) / size
    fits = (off <= tolerance + _NOISE_MARGIN * spread) & (outside <= tolerance + _NOISE_MARGIN * errors)
    accepted = fits & (errors <= _NOISE_LIMIT)  # comparisons with NaN are False
    doubts = torch.maximum(off, outside)
    order = (doubts + errors)[accepted].argsort(stable=True)
    records, doubts, errors = (each[accepted][order] for each in (records, doubts, errors))
    # The same record read twice differs by the tolerance of the test and three standard deviations of noise.
    once = _drop_duplicates(records / size, 10 * tolerance + 3 * errors, observation.batch_size)
    return Readings(records[once].clamp(low, high), doubts[once])


def _drop_duplicates(records: Tensor, radii: Tensor, most: int) -> list[int]:
    """Return positions of at most ``most`` records, none within the radius (root mean square) of an earlier one."""
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
    """Build a reconstruction from the records that were read; the other rows are the middle of the data range.

    Args:
        observation: The observation that the attack received.
        readings: Records read off the planted layer.
        attack: ``repr`` of the attack, for the report.
        expected: Text about the expected number of records, appended to the status.
        remedy: Advice if records are missing.
        begun: Start time of the attack (``time.monotonic``).

    Returns:
        The reconstruction, with the number of recovered records in its status.
    """
    count, batch_size = len(readings.records), observation.batch_size
    estimates = torch.full((batch_size, *observation.input_shape), sum(observation.data_range) / 2, dtype=torch.float64)
    estimates[:count] = readings.records.view(count, *observation.input_shape)
    objective = (*readings.doubts.tolist(), *(math.inf,) * (batch_size - count))
    # All zero: no record activated any neuron, or the rest of the model passed no gradient back.
    silent = not bool(observation.released[_PLANTED].any())
    noisy = observation.noise_std is not None
    counted = f"{count} of {batch_size} fit within the noise" if noisy else f"recovered {count} of {batch_size}"
    cause = counted + expected
    if silent:
        status = Status(
            Ending.NOT_APPLICABLE,
            "no neuron of the planted layer is active",
            "Plant the layer in front of another model",
        )
    elif count == batch_size and not noisy:
        status = Status(Ending.EXACT, cause)
    else:
        status = Status(Ending.CONVERGED, cause, "" if count == batch_size else remedy)
    account = AttackReport(attack, status, objective, Cost(time.monotonic() - begun, 0))
    return Reconstruction(estimates.to(torch.get_default_dtype()), account)


@dataclass(frozen=True, eq=False)
class SentModel:
    """The model that the server sends to clients, and the loss they train it with.

    Attributes:
        model: The model to train.
        loss_fn: The training loss of the model.
    """

    model: nn.Module
    loss_fn: LossFunction


@runtime_checkable
class PlantsLayer(Protocol):
    """Protocol of an attack by a malicious server, which changes the model before clients train it."""

    def sent_model(self, model: nn.Module | None, loss_fn: LossFunction, input_shape: Sequence[int]) -> SentModel:
        """Return the model that is sent to clients.

        Args:
            model: The server's own model, or None if it has none.
            loss_fn: The training loss of that model.
            input_shape: Shape of one record.

        Returns:
            The model with the planted layer, and the loss that clients train it with.
        """
        ...


def check_has_model(model: nn.Module | None) -> nn.Module:
    """Check that there is a model to plant a layer into.

    Args:
        model: The model, or None.

    Returns:
        The model.

    Raises:
        InvalidInput: If ``model`` is None.
    """
    if model is None:
        raise invalid_input(
            "model", None, "to be a network", "Pass the network, or use optimal_analytic(), which plants a whole model."
        )
    return model
