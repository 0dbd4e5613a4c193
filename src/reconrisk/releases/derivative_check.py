r"""Check of a derivative with respect to records against finite differences.

A detached tensor, a layer under ``no_grad``, a rounded value or a wrong ``backward`` make the derivative of a release
too small, although the release still depends on the records. Bounds from such a derivative would promise safety.

Two comparisons decide. Along a short step h in a random direction v the release f itself must satisfy
:math:`f(x + hv) - f(x) = h J v` for each released tensor, where J is the derivative that autograd gives. Along a long
step the outputs and the loss of the network must change by the integral of their derivative, which rounding violates.
Outputs of ReLU networks have kinks but no jumps, so they pass; their gradients jump, so only short steps compare them.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import ForwardMap
from reconrisk.core.validation import check_all_finite
from reconrisk.releases.derivative_layers import CUT, UNSAFE, Network, name_broken_layer
from reconrisk.releases.model_state import LossFunction, ModelState, cast_tensors, record_losses
from reconrisk.releases.observe import find_loss, find_model, remove_defense
from reconrisk.releases.release import Linearized, linearize_graph, standard_normal

_DIRECTIONS = 3  # a short step over a kink of ReLU disagrees by chance, but hardly in three random directions
_NUDGE = 1e-3  # records are moved by this share of their scale: images often lie on ties of max-pooling and ReLU
_SHORT_STEPS = {torch.float64: (1e-7, 1e-9, 1e-5), torch.float32: (3e-3, 3e-4, 3e-2)}  # in units of the records' scale
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 3e-2}  # rounding and curvature of those steps are far below
_DOUBT = 0.3  # in single precision kinks explain smaller errors than this
_ROUNDING = 64  # roundings of a released value that may add up
_LONG_STEPS = (0.05, 0.0125, 0.2)  # in units of the records' scale: rounding to 8 bits has steps of 0.004
_LONG_TOLERANCE = 0.05  # share of a change of the outputs that the average of derivatives may miss
_NODES = (8, 64)  # points on a long step at which derivatives are averaged, at first and before a refusal
_MANY = 64  # record values of which some cross a step of any rounding, so that one direction suffices

_FEW = 2  # records that show a broken derivative, if records do not interact

_CHECKED: weakref.WeakKeyDictionary[nn.Module, list[tuple[Any, tuple[Any, ...]]]] = weakref.WeakKeyDictionary()
"""Models whose derivative was compared: weak references to the loss, and the circumstances."""


@dataclass(frozen=True, eq=False)
class _Point:
    """A forward map at some records, in the precision of the check."""

    forward: ForwardMap
    inputs: Tensor
    labels: Tensor
    values: Mapping[str, Tensor]

    @property
    def scale(self) -> float:
        """Range of the records' values; their size if all are equal, and 1 for zeros."""
        low, high = float(self.inputs.min()), float(self.inputs.max())
        return (high - low) or abs(high) or 1.0

    @property
    def floors(self) -> dict[str, float]:
        """Norm of each tensor's rounding; where terms cancel, it is that of the largest tensor."""
        eps = _ROUNDING * torch.finfo(self.inputs.dtype).eps
        norms = {name: float(value.norm()) for name, value in self.values.items()}
        return {name: eps * (norm + max(norms.values())) for name, norm in norms.items()}

    def changes(self, step: Tensor) -> dict[str, Tensor]:
        """Return the change of the release if the records move by ``step``."""
        moved = _evaluate(self.forward, self.inputs + step, self.labels)
        return {name: moved[name] - value for name, value in self.values.items()}

    def linearize(self, inputs: Tensor) -> Linearized:
        """Return the derivative at ``inputs``, by the map's own method if it has one."""
        torch.manual_seed(0)
        own = getattr(self.forward, "linearize", None)  # a training pushes without the graph of all its steps
        if own is not None:
            linear: Linearized = own(inputs, self.labels)
            return linear
        leaf = inputs.detach().clone().requires_grad_()
        with torch.enable_grad():
            return linearize_graph(leaf, dict(self.forward(leaf, self.labels)))

    def directions(self, step: float) -> Iterator[Tensor]:
        """Yield random directions of values 1 and -1, along which a step stays in the range of the records."""
        rng = torch.Generator().manual_seed(0)
        x, low, high = self.inputs, self.inputs.min(), self.inputs.max()
        while True:
            signs = 2 * torch.randint(2, x.shape, generator=rng).to(x) - 1
            if 2 * step < float(high - low):
                signs = torch.where(x + step > high, -1.0, torch.where(x - step < low, 1.0, signs)).to(x)
            yield signs


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Changes of released tensors along a short step: by differences, and as the derivative predicts them."""

    found: Mapping[str, Tensor]
    predicted: Mapping[str, Tensor]
    floors: Mapping[str, float]
    step: float

    def relative_error(self, name: str) -> float:
        """Return the error beyond rounding, relative to the larger change."""
        excess = float((self.found[name] - self.predicted[name]).norm()) - self.floors[name]
        return 0.0 if excess <= 0 else excess / self.size(name)  # NaN stays NaN

    def size(self, name: str) -> float:
        """Return the larger of the two changes."""
        return max(float(self.found[name].norm()), float(self.predicted[name].norm()))

    @property
    def worst(self) -> str:
        """The tensor with the largest relative error."""
        return max(self.found, key=self.relative_error)

    @property
    def worst_error(self) -> float:
        """The largest relative error."""
        return self.relative_error(self.worst)

    @property
    def predicts_nothing(self) -> bool:
        """True if the derivative is zero up to rounding."""
        return all(float(change.norm()) <= self.floors[name] for name, change in self.predicted.items())

    @property
    def is_still(self) -> bool:
        """True if nothing changes by more than rounding, neither by differences nor by the derivative."""
        return all(self.size(name) <= self.floors[name] for name in self.found)


def check_derivative(
    forward: ForwardMap,
    inputs: Tensor,
    labels: Tensor,
    *,
    model: nn.Module | ModelState | None = None,
    loss_fn: LossFunction | None = None,
    records: int | None = None,
) -> None:
    """Refuse a forward map whose derivative with respect to the records disagrees with finite differences.

    Computations are in double precision if the map supports it. The global random state is left as it was.

    Args:
        forward: Map from records and labels to the released tensors.
        inputs: Private records, ``(n, *shape)``.
        labels: One label per record.
        model: The network in the map, or its tensors; None if there is none.
        loss_fn: Its training loss; None if there is none.
        records: Number of records to examine, if the map accepts any number; None for all.

    Raises:
        InvalidInput: If values are not finite, or the derivative is missing or wrong. The error names the first layer
            that breaks it.

    Assumes: a broken derivative shows at a few records, and in random directions.
    Guarantee: a map that is differentiable, or has kinks, passes; so does one that does not depend on the records.
    Edge cases: rounding is found in a network, and elsewhere if the release has no other derivative. A warning says
    that the check could not decide, for example because the network changes too fast.
    """
    if torch.is_inference_mode_enabled():
        raise InvalidInput(f"torch.inference_mode() switches derivatives off. Leave it first. {UNSAFE}")
    rows = torch.arange(len(inputs)) if records is None else _choose_rows(labels, records)
    dtype = inputs.dtype if inputs.dtype in _SHORT_STEPS else torch.float32
    with torch.random.fork_rng(devices=[]):
        network = None if model is None else Network.prepare(model, loss_fn)
        point = _prepare(forward, inputs[rows].detach(), labels[rows].detach(), network)
        for name, value in point.values.items():
            check_all_finite(f"release of {name!r}", value, "Check the loss, and the weights of the model.")
        undecided = _check_short_steps(point, network)
        if network is not None:
            undecided = _check_long_steps(point, network, dtype) or undecided
    if undecided:
        warnings.warn(
            f"The derivative of the release could not be verified: {undecided}. It is unknown whether results that "
            "use it are right.",
            stacklevel=2,
        )


def check_model_derivative(state: ModelState, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> None:
    """Refuse a model whose gradients have a wrong derivative; compare once for each model, loss and mode.

    Args:
        state: The model.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Records, ``(n, *shape)``, of which a few are examined.
        labels: One label per record.

    Raises:
        InvalidInput: As :func:`check_derivative`.
    """

    def forward(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        released, fixed = (cast_tensors(each, inputs.dtype) for each in (state.released, state.fixed))
        cast = ModelState(state.model, released, fixed)
        return cast.gradient(lambda values: record_losses(loss_fn, cast.outputs(inputs, values), labels).sum())

    with _once(state.model, loss_fn, (*state.released, inputs.dtype)) as is_new:
        if is_new:
            check_derivative(forward, inputs, labels, model=state, loss_fn=loss_fn, records=_FEW)


def check_attacked_model(forward: ForwardMap, inputs: Tensor, labels: Tensor) -> None:
    """Refuse a network whose update has a wrong derivative, before an attack descends along it.

    Networks are compared once for each loss and mode. Maps without a network, and the defense of a map, are not
    compared: an attack may use an approximate derivative of rounding.

    Args:
        forward: Forward map of an observation.
        inputs: Candidate records, ``(n, *shape)``.
        labels: One label per record.

    Raises:
        InvalidInput: As :func:`check_derivative`.
    """
    model, loss_fn = find_model(forward), find_loss(forward)
    if model is None or loss_fn is None:
        return
    with _once(model, loss_fn, ("attacked", inputs.dtype)) as is_new:
        if is_new:
            check_derivative(remove_defense(forward), inputs, labels, model=model, loss_fn=loss_fn)


@contextmanager
def _once(model: nn.Module, loss_fn: LossFunction, kind: tuple[Any, ...]) -> Iterator[bool]:
    """Yield True if model and loss were not yet seen in this mode; remember them if the body does not raise."""
    key = (*kind, *(layer.training for layer in model.modules()))
    is_new = not any(loss() is loss_fn and known == key for loss, known in _CHECKED.get(model, ()))
    yield is_new
    try:
        reference = weakref.ref(loss_fn)
    except TypeError:  # a callable without weak references is checked each time
        return
    if is_new:
        _CHECKED.setdefault(model, []).append((reference, key))


def _choose_rows(labels: Tensor, count: int) -> Tensor:
    """Return the first rows, of different labels if there are."""
    rows = list(range(min(count, len(labels))))
    if labels.ndim == 1:
        rows = [*(int((labels == value).nonzero()[0]) for value in labels.unique()[:count]), *rows]
    return torch.tensor(list(dict.fromkeys(rows))[:count])


def _evaluate(forward: ForwardMap, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the released tensors, with the same random numbers each time."""
    torch.manual_seed(0)
    return {name: value.detach() for name, value in forward(inputs, labels).items()}


def _prepare(forward: ForwardMap, inputs: Tensor, labels: Tensor, network: Network | None) -> _Point:
    """Return the map near the records in double precision, or in their own if the map does not support it."""
    dtypes = [torch.float64] if inputs.device.type != "mps" else []  # which has no double precision
    for dtype in (*dtypes, torch.float32):
        records, targets = inputs.to(dtype), labels.to(dtype) if labels.is_floating_point() else labels
        point = _Point(forward, records, targets, {})
        size = _NUDGE * point.scale
        share = torch.rand(records.shape, generator=torch.Generator().manual_seed(0)).to(records)
        records = records + size * share * next(point.directions(size))
        try:
            if network is not None:
                network.check_values(records, targets)
            values = _evaluate(forward, records, targets)
        except InvalidInput:
            raise
        except (RuntimeError, TypeError, ValueError):  # code with tensors in single precision
            if dtype == torch.float32:
                raise
            continue
        if all(value.dtype == dtype for value in values.values()):
            break
    return _Point(forward, records, targets, values)


def _check_short_steps(point: _Point, network: Network | None) -> str:
    """Refuse a release that moves otherwise than its derivative, and return the reason if this is undecided."""
    dtype, scale = point.inputs.dtype, point.scale
    try:
        linear = point.linearize(point.inputs)
    except RuntimeError as error:
        raise _refuse_graph(error) from error
    best: _Comparison | None = None
    was_still = False
    for direction in islice(point.directions(scale * max(_SHORT_STEPS[dtype])), _DIRECTIONS):
        slope = _Slope.compute(linear, direction, point)
        for step in _SHORT_STEPS[dtype]:
            found = slope.project(point.changes(scale * step * direction))
            predicted = {name: scale * step * change for name, change in slope.changes.items()}
            comparison = _Comparison(found, predicted, point.floors, scale * step)
            if comparison.is_still:
                was_still = True
                continue
            if comparison.worst_error <= _TOLERANCE[dtype]:
                slope.check_transpose(_TOLERANCE[dtype])
                return ""
            if best is None or comparison.worst_error < best.worst_error:
                best = comparison
    if best is None or (was_still and best.predicts_nothing):
        _check_still_release(point, network)
        return ""
    if dtype != torch.float64 and best.worst_error < _DOUBT:
        return f"single precision leaves an error of {best.worst_error:.0%} in {best.worst!r}"
    name = best.worst
    by_graph, by_difference = (float(each[name].norm()) / best.step for each in (best.predicted, best.found))
    problem = f"the change of {name!r} per unit is {by_graph:.3g} by autograd and {by_difference:.3g} by differences"
    raise _refuse(problem, point, network, direction)


def _check_still_release(point: _Point, network: Network | None) -> None:
    """Refuse a release that has no derivative, does not move along short steps, and jumps along long ones."""
    for share in _LONG_STEPS:
        step = share * point.scale
        for direction in islice(point.directions(step), _DIRECTIONS):
            found, floors = point.changes(step * direction), point.floors
            jumped = [name for name, change in found.items() if float(change.norm()) > floors[name]]
            if not jumped:
                continue
            for place in _midpoints(_NODES[0]):
                local = point.linearize(point.inputs + place * step * direction)
                slope = _Slope.compute(local, direction, point)
                if any(step * float(change.norm()) > floors[name] for name, change in slope.changes.items()):
                    return  # asleep near the records only, as a network of dead ReLU units
            problem = f"{jumped[0]!r} changes along a long step, and autograd gives the derivative 0"
            raise _refuse(problem, point, network, direction, long=step)


def _check_long_steps(point: _Point, network: Network, dtype: torch.dtype) -> str:
    """Refuse outputs that change otherwise than by the integral of their derivative; return why this is undecided."""
    # The precision of the records suffices for long steps, and costs half of double precision.
    inputs, labels = (each.to(dtype) if each.is_floating_point() else each for each in (point.inputs, point.labels))
    needed = 1 if inputs.numel() >= _MANY else 2
    agreed = broken = doubtful = 0
    for direction in islice(point.directions(max(_LONG_STEPS) * point.scale), _DIRECTIONS):
        verdict, share = _judge_direction(network, inputs, labels, point.scale * direction.to(dtype))
        agreed, broken, doubtful = agreed + (verdict == "ok"), broken + (share > 0), doubtful + (verdict == "unknown")
        if agreed >= needed:
            return ""
        if broken >= 2:  # one jump may be a branch of the code that the step happens to reach
            problem = (
                f"derivatives do not give the change of the model's outputs along a step of {share:g} of the range"
            )
            raise _refuse(problem, point, network, direction, long=share * point.scale)
    return "the outputs of the model change too fast with the records" if doubtful else ""


def _judge_direction(network: Network, inputs: Tensor, labels: Tensor, unit: Tensor) -> tuple[str, float]:
    """Return "ok", "still", "unknown" or "broken" for one direction, and the share of it that shows a broken graph."""
    verdict = "still"
    for share in _LONG_STEPS:
        for nodes in _NODES:
            found = _missed_share(network, inputs, labels, share * unit, nodes)
            if found is None:
                break
            missed, doubt = found
            if missed <= _LONG_TOLERANCE:
                return "ok", 0.0
            verdict = "unknown"
            if missed <= _LONG_TOLERANCE + 3 * doubt:
                break
        else:
            return "broken", share
    return verdict, 0.0


def _missed_share(
    network: Network, inputs: Tensor, labels: Tensor, step: Tensor, nodes: int
) -> tuple[float, float] | None:
    """Return the share of the outputs' change along ``step`` that derivatives at ``nodes`` points miss, and its error.

    The weights turn the change of outputs and loss into 1 each, so a scalar derivative per point suffices. None means
    that nothing changes.
    """
    with torch.no_grad():
        start, end = network.values(inputs, labels), network.values(inputs + step, labels)
    weights = {}
    for name, value in start.items():
        change = end[name] - value
        floor = _ROUNDING * torch.finfo(value.dtype).eps * float(value.norm())
        if float(change.norm()) > floor and bool(change.isfinite().all()):
            weights[name] = change / change.square().sum()
    if not weights:
        return None
    slopes = []
    for place in _midpoints(nodes):
        leaf = (inputs + place * step).requires_grad_()
        with torch.enable_grad():
            values = network.values(leaf, labels)
            total = torch.stack([(weight * values[name]).sum() for name, weight in weights.items()]).sum()
        gradient = torch.zeros_like(leaf)
        if total.requires_grad:
            (gradient,) = torch.autograd.grad(total, leaf, materialize_grads=True)
        slopes.append((gradient * step).sum() / len(weights))
    found = torch.stack(slopes)
    # Two rules of half the points differ by about the error of each.
    return float((1 - found.mean()).abs()), float((found[::2].mean() - found[1::2].mean()).abs() / 2)


def _midpoints(nodes: int) -> list[float]:
    return [(place + 0.5) / nodes for place in range(nodes)]


@dataclass(frozen=True, eq=False)
class _Slope:
    """The derivative of the release along a direction; if only pulls work, of one random combination per tensor."""

    changes: Mapping[str, Tensor]
    weights: Mapping[str, Tensor] | None
    direction: Tensor
    linear: Linearized
    has_transpose: bool

    @classmethod
    def compute(cls, linear: Linearized, direction: Tensor, point: _Point) -> _Slope:
        """Return the derivative along ``direction``, by a push or else by pulls."""
        try:
            pushed = {name: change.detach() for name, change in linear.push(direction).items()}
            # The graph of a whole training would not fit into memory, and its push does not use it.
            return cls(pushed, None, direction, linear, not hasattr(point.forward, "linearize"))
        except RuntimeError:  # a layer whose second derivative cannot be differentiated
            pass
        rng = torch.Generator().manual_seed(0)
        weights = {name: standard_normal(value, rng) for name, value in point.values.items()}
        zeros = {name: torch.zeros_like(value) for name, value in weights.items()}
        try:
            pulled = {name: linear.pull({**zeros, name: weight}) for name, weight in weights.items()}
        except RuntimeError as error:
            raise _refuse_graph(error) from error
        changes = {name: (change * direction).sum() for name, change in pulled.items()}
        return cls(changes, weights, direction, linear, False)

    def project(self, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return changes of the release in the form of :attr:`changes`."""
        if self.weights is None:
            return dict(changes)
        return {name: (self.weights[name] * change).sum() for name, change in changes.items()}

    def check_transpose(self, tolerance: float) -> None:
        """Refuse a derivative whose products from the two sides differ: ``<u, Jv>`` and ``<J^T u, v>``."""
        if not self.has_transpose:
            return
        weights = {
            name: change / change.norm().clamp_min(torch.finfo(change.dtype).tiny)
            for name, change in self.changes.items()
        }
        pushed = sum(float(change.norm()) for change in self.changes.values())
        other = float((self.linear.pull(weights) * self.direction).sum())
        if not abs(pushed - other) <= tolerance * pushed:
            raise InvalidInput(
                f"Expected equal products with the derivative of the release from both sides, got {pushed:.3g} and "
                f"{other:.3g}. Write the backward of autograd functions with differentiable operations. {UNSAFE}"
            )


def _refuse(
    problem: str, point: _Point, network: Network | None, direction: Tensor, *, long: float | None = None
) -> InvalidInput:
    """Return the error for a derivative that disagrees, with the layer that breaks it."""
    if network is None:
        where = f"The release is plain code without a torch module, so no layer can be named. {CUT}"
    else:
        short = point.scale * _SHORT_STEPS[point.inputs.dtype][0] * direction
        far = None if long is None else long * direction
        where = name_broken_layer(network, point.inputs, point.labels, short=short, long=far)
    return InvalidInput(f"Expected a derivative that agrees with finite differences, but {problem}. {where} {UNSAFE}")


def _refuse_graph(error: RuntimeError) -> InvalidInput:
    """Return the error for a release that torch cannot differentiate."""
    cause = str(error).strip().splitlines()[0].rstrip(".")
    return InvalidInput(
        f"Expected a release that torch can differentiate with respect to the records, got: {cause}. Use layers and a "
        f"loss that torch differentiates twice, without once_differentiable. {UNSAFE}"
    )
