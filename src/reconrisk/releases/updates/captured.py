"""An observation from a captured update: files of gradients, or of weights before and after, without the records."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import ForwardMap, Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import check_all_finite, check_positive, check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction, check_mode
from reconrisk.releases.tensor_files import read_tensors
from reconrisk.releases.training.optimizers import OptimizerState, StochasticGradientDescent, UpdateRule
from reconrisk.releases.training.trained_model import TrainingMap
from reconrisk.releases.updates.clipping import Clip
from reconrisk.releases.updates.gradient import GradientMap, Reduction
from reconrisk.releases.updates.local_update import LocalUpdateMap, consecutive_batches, update_rule

Tensors = str | Path | Mapping[str, Tensor] | Sequence[Tensor]
"""A file of named tensors (safetensors, npz or torch), named tensors, or a list in the order of the model."""

_REMEDY = "Pass tensors saved under the names of model.named_parameters()."


def observe_captured(
    model: nn.Module,
    loss_fn: LossFunction = nn.functional.cross_entropy,
    *,
    input_shape: Sequence[int],
    gradient: Tensors | None = None,
    before: Tensors | None = None,
    after: Tensors | None = None,
    learning_rate: float | None = None,
    optimizer: UpdateRule | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    local_batch_size: int | None = None,
    batch_size: int = 1,
    labels: Sequence[int] | Tensor | None = None,
    noise_std: float | None = None,
    reduction: Reduction | None = None,
    clip: Clip | None = None,
    parameters: Sequence[str] | None = None,
    threat: ThreatModel = HONEST_BUT_CURIOUS,
    data_range: tuple[float, float] = (0.0, 1.0),
) -> Observation:
    r"""What an adversary holds who captured an update: no record is needed to attack it.

    .. math:: y = \nabla_\theta \ell(\theta; x) \quad\text{or}\quad y = \theta_{\text{after}} - \theta_{\text{before}}

    Either ``gradient``, taken at the weights of ``model`` or of ``before``; or ``before`` and ``after`` with the
    ``learning_rate`` or ``optimizer`` of the local training, which lasted ``steps`` (one if nothing is said) or
    ``epochs`` in batches of ``local_batch_size``. ``batch_size`` is the number of records behind the update.
    ``labels`` and ``noise_std``, the standard deviation of known noise on what was sent, are added to what ``threat``
    knows.

    Assumes: ``model`` and ``loss_fn`` are those of the client, in the mode of its training.
    Guarantee: ``model`` stays as it is; tensors that lack, have another shape or a name the model does not have are
    refused by name, as are values that are not finite and labels that are no class of the model.
    Edge cases: one step of gradient descent on all records is turned into its gradient. Buffers in files of weights,
    such as running statistics, set the state before and may lack. ``parameters`` names a part of the model if only that
    was captured.

    >>> model = nn.Linear(2, 2)
    >>> observe_captured(model, input_shape=(2,), gradient={"weight": torch.ones(2, 2), "bias": torch.ones(2)})
    Observation(2 tensors, 6 values, 1 x (2,), ThreatModel(sees=one-update, knows=nothing, controls=nothing))
    """
    check_whole("batch_size", batch_size)
    shape = tuple(check_whole("input_shape", side) for side in input_shape)
    training = {"learning_rate": learning_rate, "optimizer": optimizer, "steps": steps, "epochs": epochs}
    _check_one_kind(gradient, before, after, {**training, "local_batch_size": local_batch_size}, (reduction, clip))
    start = copy.deepcopy(model)
    if before is not None:
        wanted, buffers = start.state_dict(), tuple(name for name, _ in start.named_buffers())
        start.load_state_dict({**wanted, **_fitting("before", before, wanted, optional=buffers)})
    classes = _classes(start, shape)
    known = None if labels is None else _checked_labels(labels, batch_size, classes)
    gradients = GradientMap(start, loss_fn, reduction, parameters, clip)
    if after is None:
        check_mode(start, batch_norm=clip is None)
        captured = _Captured(gradients, _fitting("gradient", gradient, gradients.state(_dtype(start)).released))
    else:
        steps = 1 if steps is None and epochs is None else steps
        batches = consecutive_batches(batch_size, local_batch_size, steps=steps, epochs=epochs)
        rule = update_rule(optimizer, learning_rate)
        trained = TrainingMap(start, loss_fn, rule, batches=batches, parameters=parameters)
        captured = _from_weights(LocalUpdateMap(trained, batch_size), gradients, after)
    powers = [Knows.LABELS] * (known is not None) + [Knows.DEFENSE] * (noise_std is not None)
    return Observation(
        released=captured.released,
        forward=captured.forward,
        threat=threat.knowing(*powers),
        input_shape=shape,
        data_range=data_range,
        batch_size=batch_size,
        labels=known,
        noise_std=None if noise_std is None else captured.noise(noise_std),
    )


@dataclass(frozen=True, eq=False)
class _Captured:
    """What was sent times ``factor``, and the map that makes such."""

    forward: ForwardMap
    released: dict[str, Tensor]
    factor: float = 1.0

    def noise(self, noise_std: float) -> dict[str, Tensor]:
        """The standard deviation of noise on each value, if it is ``noise_std`` on what was sent."""
        std = abs(self.factor) * check_positive("noise_std", noise_std)
        return {name: torch.full_like(value, std) for name, value in self.released.items()}


def _from_weights(updates: LocalUpdateMap, gradients: GradientMap, after: Tensors) -> _Captured:
    """The change that local training made, or its gradient where that was one step on all records."""
    training, batches = updates.training, updates.training.batches or ()
    begun = training.start(_dtype(gradients.model))
    buffers = tuple(name for name, _ in gradients.model.named_buffers())
    ended = _fitting("after", after, begun, optional=buffers)
    if all(torch.equal(value, begun[name]) for name, value in ended.items()):
        raise InvalidInput("Expected after to differ from before. Capture the weights of another round.")
    one_step = len(batches) == 1 and len(batches[0]) == updates.records and not set(ended) & set(buffers)
    if not (one_step and isinstance(training.optimizer, StochasticGradientDescent)):
        return _Captured(updates, {name: value - begun[name] for name, value in ended.items()})
    zeros = {name: torch.zeros_like(value) for name, value in ended.items()}
    still, _ = training.optimizer.step({name: begun[name] for name in ended}, zeros, OptimizerState())
    one = torch.ones((), dtype=torch.float64)
    moved, _ = training.optimizer.step({"": 0 * one}, {"": one}, OptimizerState())
    factor = 1 / float(moved[""])
    return _Captured(gradients, {name: factor * (value - still[name]) for name, value in ended.items()}, factor)


def _check_one_kind(
    gradient: Tensors | None,
    before: Tensors | None,
    after: Tensors | None,
    training: Mapping[str, object],
    of_records: tuple[Reduction | None, Clip | None],
) -> None:
    """Refuse settings of one kind of update for the other, which would not be heard."""
    if (gradient is None) == (after is None):
        raise invalid_input(
            "gradient and after", "both" if after is not None else "none", "to be exactly one of the two"
        )
    if after is not None and before is None:
        raise invalid_input("before", None, "to be the weights before the update", "Pass both files.")
    if after is not None and of_records != (None, None):
        remedy = "They belong to a captured gradient; let loss_fn add or average."
        raise invalid_input("(reduction, clip)", of_records, "to be left out with after", remedy)
    stated = [name for name, value in training.items() if value is not None]
    if after is None and stated:
        raise invalid_input(
            stated[0], training[stated[0]], "to be left out with gradient", "It says how after came about."
        )


def _fitting(
    what: str, given: Tensors | None, wanted: Mapping[str, Tensor], *, optional: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The tensors under the names that are wanted, refused where they do not fit, by the name of the layer."""
    found = _tensors(what, given, wanted)
    missing = [name for name in wanted if name not in found and name not in optional]
    unknown = [name for name in found if name not in wanted and name not in optional]
    if missing or unknown:
        raise InvalidInput(
            f"Expected {what} to have the {len(wanted)} tensors of the model, it has {len(found)}. "
            f"Missing: {_listed(missing)}; not in the model: {_listed(unknown)}. {_way_out(found, wanted)}"
        )
    for name, like in wanted.items():
        if name in found and found[name].shape != like.shape:
            raise invalid_input(
                f"{what}[{name!r}].shape",
                tuple(found[name].shape),
                f"to be {tuple(like.shape)}, that of the model's layer",
                "Build the model with the channels and classes it was captured from.",
            )
        if name in found:
            check_all_finite(f"{what}[{name!r}]", found[name], "Capture another update.")
    return {name: found[name].detach().to(like.dtype) for name, like in wanted.items() if name in found}


def _tensors(what: str, given: Tensors | None, wanted: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if isinstance(given, (str, Path)):
        return read_tensors(given, _REMEDY)
    named = dict(zip(wanted, given, strict=False)) if isinstance(given, (list, tuple)) else given
    if isinstance(given, (list, tuple)) and len(given) != len(wanted):
        remedy = f"In order: {_listed(list(wanted))}."
        raise invalid_input(f"len({what})", len(given), f"to be {len(wanted)}, the tensors of the model", remedy)
    if not isinstance(named, Mapping) or not all(isinstance(value, Tensor) for value in named.values()):
        raise invalid_input(what, type(given).__name__, "to be a file of named tensors or the tensors", _REMEDY)
    return named


def _way_out(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """What to do about names that do not fit: wrappers of a model put a word before them all."""
    for prefix in ("module.", "_module.", "_orig_mod.", "model."):
        if {name.removeprefix(prefix) for name in found} == set(wanted):
            return f"Strip {prefix!r} from the names."
    return "Is it of another architecture? Name a part of the model by parameters=[...]."


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4]) or "none"
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def _classes(model: nn.Module, input_shape: tuple[int, ...]) -> int | None:
    """The number of classes, or None where outputs are not a row per record; refuses shapes the model cannot take."""
    tried = copy.deepcopy(model)  # batch norm in training mode moves its statistics
    entered: list[str] = []
    for name, layer in tried.named_modules():
        if not any(layer.children()):
            layer.register_forward_pre_hook(lambda _, __, name=name: entered.append(name))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = tried(torch.zeros((2, *input_shape), dtype=_dtype(model)))
    except Exception as error:  # whatever the user's model raises on a shape that does not fit
        layer = (entered[-1] or "its only layer") if entered else "its beginning"
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise invalid_input(
            "input_shape", input_shape, f"to be what the model takes; it fails at {layer}", said
        ) from error
    rows = isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1
    return int(outputs.shape[1]) if rows else None


def _checked_labels(labels: Sequence[int] | Tensor, batch_size: int, classes: int | None) -> Tensor:
    values = torch.as_tensor(labels)
    if values.ndim == 0 or len(values) != batch_size:
        raise invalid_input("labels", values.tolist(), f"to have batch_size={batch_size} entries")
    if classes is not None and not values.is_floating_point():
        wrong = values[(values < 0) | (values >= classes)]
        if len(wrong):
            raise invalid_input("labels", int(wrong[0]), f"to be from 0 to {classes - 1}, the classes of the model")
    return values


def _dtype(model: nn.Module) -> torch.dtype:
    return next((value.dtype for value in model.parameters()), torch.get_default_dtype())
