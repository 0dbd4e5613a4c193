"""Observations of captured updates: files of gradients, or of weights before and after training, without records."""

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
from reconrisk.releases.model_state import check_mode
from reconrisk.releases.tensor_files import read_tensors
from reconrisk.releases.training.optimizers import OptimizerState, StochasticGradientDescent
from reconrisk.releases.training.trained_model import TrainingMap
from reconrisk.releases.updates.clipping import Clip
from reconrisk.releases.updates.gradient import ONE_GRADIENT, GradientMap, Reduction, UpdateRecipe, check_recipe
from reconrisk.releases.updates.local_update import LocalTraining, LocalUpdateMap

Tensors = str | Path | Mapping[str, Tensor] | Sequence[Tensor]
"""A file of named tensors (safetensors, npz or torch), named tensors, or a list in the order of the model."""

_REMEDY = "Pass tensors saved under the names of model.named_parameters()."
_WRAPPER_PREFIXES = ("module.", "_module.", "_orig_mod.", "model.")  # DataParallel, Opacus, torch.compile, Lightning
_NAMES_SHOWN = 4  # names of tensors that an error lists before it only counts the rest


def observe_captured(
    model: nn.Module,
    *,
    input_shape: Sequence[int],
    gradient: Tensors | None = None,
    before: Tensors | None = None,
    after: Tensors | None = None,
    update: UpdateRecipe = ONE_GRADIENT,
    training: LocalTraining | None = None,
    labels: Sequence[int] | Tensor | None = None,
    noise_std: float | None = None,
    reduction: Reduction | None = None,
    clip: Clip | None = None,
    parameters: Sequence[str] | None = None,
    threat: ThreatModel = HONEST_BUT_CURIOUS,
    data_range: tuple[float, float] = (0.0, 1.0),
) -> Observation:
    r"""Return the observation of an adversary who captured an update; the records are not needed.

    .. math:: y = \nabla_\theta \ell(\theta; x) \quad\text{or}\quad y = \theta_{\text{after}} - \theta_{\text{before}}

    Here y is the update, :math:`\theta` the weights, :math:`\ell` the training loss and x the records. Pass either
    ``gradient``, or ``before`` and ``after``.

    Args:
        model: The client's network, in the mode of its training. It is not changed.
        input_shape: Shape of one record, without the batch dimension.
        gradient: Captured gradient, taken at the weights of ``model`` or of ``before``.
        before: Weights before local training, or the weights at which ``gradient`` was taken.
        after: Weights after local training.
        update: Training of the client: number of records (``batch_size``), loss (default:
            cross-entropy), and the local SGD steps between ``before`` and ``after``.
        training: Local training with another optimizer, in epochs or in mini-batches; replaces the local settings of
            ``update``.
        labels: Labels of the records, if the adversary knows them; ``threat`` then knows them too.
        noise_std: Standard deviation of the noise on every value that was sent, if the adversary knows it.
        reduction: Combination of the records' training losses in a captured gradient: "mean", "sum", or None if
            ``loss_fn`` itself combines them.
        clip: Clipping of each record's gradient before they are combined.
        parameters: Names of the captured parameters or layers, if only a part of the model was captured.
        threat: Other abilities of the adversary.
        data_range: Smallest and largest value of a record, which are public.

    Returns:
        The observation that an attack takes.

    Raises:
        InvalidInput: If both or neither kind of update is given, if settings belong to the other kind, if tensors do
            not fit the model or are not finite, or if a label is not a class of the model.
        InvalidFile: If a file cannot be read.

    Assumes: ``model`` and the loss are the ones that the client uses.
    Guarantee: errors about tensors name the tensor.
    Edge cases: one step of gradient descent on all records is converted to its gradient. Buffers in files of weights,
    such as running statistics, set the state before training and may be missing.

    >>> model = nn.Linear(2, 2)
    >>> observe_captured(model, input_shape=(2,), gradient={"weight": torch.ones(2, 2), "bias": torch.ones(2)})
    Observation(2 tensors, 6 values, 1 x (2,), ThreatModel(sees=one-update, knows=nothing, controls=nothing))
    """
    check_recipe(update)
    shape = tuple(check_whole("input_shape", side) for side in input_shape)
    _check_one_kind(gradient, before, after, (reduction, clip))
    start = copy.deepcopy(model)
    if before is not None:
        wanted, buffers = start.state_dict(), tuple(name for name, _ in start.named_buffers())
        start.load_state_dict({**wanted, **_match_tensors("before", before, wanted, optional=buffers)})
    classes = _count_classes(start, shape)
    known = None if labels is None else _check_labels(labels, update.batch_size, classes)
    loss_fn = update.loss_fn or nn.functional.cross_entropy
    gradients = GradientMap(start, loss_fn, reduction, parameters, clip)
    if after is None:
        _check_no_local_training(update, training)
        check_mode(start, batch_norm=clip is None)
        wanted = gradients.state(_dtype(start)).released
        captured = _CapturedTensors(gradients, _match_tensors("gradient", gradient, wanted))
    else:
        local = _local_training(update, training)
        batches = local.batches(update.batch_size)
        trained = TrainingMap(start, loss_fn, local.rule, batches=batches, parameters=parameters)
        captured = _from_weights(LocalUpdateMap(trained, update.batch_size), gradients, after)
    powers = [Knows.LABELS] * (known is not None) + [Knows.DEFENSE] * (noise_std is not None)
    return Observation(
        released=captured.released,
        forward=captured.forward,
        threat=threat.with_knowledge(*powers),
        input_shape=shape,
        data_range=data_range,
        batch_size=update.batch_size,
        labels=known,
        noise_std=None if noise_std is None else captured.noise(noise_std),
    )


@dataclass(frozen=True, eq=False)
class _CapturedTensors:
    """Captured tensors, multiplied by ``factor``, and the forward map that produces such tensors."""

    forward: ForwardMap
    released: dict[str, Tensor]
    factor: float = 1.0

    def noise(self, noise_std: float) -> dict[str, Tensor]:
        """Return the standard deviation of the noise on each value, given the one on the tensors as sent."""
        std = abs(self.factor) * check_positive("noise_std", noise_std)
        return {name: torch.full_like(value, std) for name, value in self.released.items()}


def _from_weights(updates: LocalUpdateMap, gradients: GradientMap, after: Tensors) -> _CapturedTensors:
    """Return the weight change of local training, or the gradient if that was one step of SGD on all records."""
    training, batches = updates.training, updates.training.batches or ()
    begun = training.start(_dtype(gradients.model))
    buffers = tuple(name for name, _ in gradients.model.named_buffers())
    ended = _match_tensors("after", after, begun, optional=buffers)
    if all(torch.equal(value, begun[name]) for name, value in ended.items()):
        raise InvalidInput("Expected after to differ from before. Capture the weights of another round.")
    one_step = len(batches) == 1 and len(batches[0]) == updates.records and not set(ended) & set(buffers)
    if not (one_step and isinstance(training.optimizer, StochasticGradientDescent)):
        return _CapturedTensors(updates, {name: value - begun[name] for name, value in ended.items()})
    # One step of SGD is affine in the gradient: after = still + g / factor. A zero gradient gives `still` (weight
    # decay alone moves the weights), and a unit gradient at weight zero gives the slope, with Nesterov's factor.
    zeros = {name: torch.zeros_like(value) for name, value in ended.items()}
    still, _ = training.optimizer.step({name: begun[name] for name in ended}, zeros, OptimizerState())
    one = torch.ones((), dtype=torch.float64)
    moved, _ = training.optimizer.step({"": 0 * one}, {"": one}, OptimizerState())
    factor = 1 / float(moved[""])
    released = {name: factor * (value - still[name]) for name, value in ended.items()}
    return _CapturedTensors(gradients, released, factor)


def _check_one_kind(
    gradient: Tensors | None,
    before: Tensors | None,
    after: Tensors | None,
    gradient_settings: tuple[Reduction | None, Clip | None],
) -> None:
    """Refuse both kinds of update or neither, and settings of a gradient that would be ignored with ``after``."""
    if (gradient is None) == (after is None):
        raise InvalidInput(
            f"Expected exactly one of gradient and after, got {'both' if after is not None else 'none'}. Pass "
            "one of the two."
        )
    if after is not None and before is None:
        raise invalid_input("before", None, "to be the weights before the update", "Pass both before= and after=.")
    if after is not None and gradient_settings != (None, None):
        remedy = "Remove them: they describe a captured gradient. Let loss_fn add or average."
        raise invalid_input("(reduction, clip)", gradient_settings, "to be left out if after is given", remedy)


def _check_no_local_training(update: UpdateRecipe, training: LocalTraining | None) -> None:
    """Refuse settings of local training, which would be ignored with a gradient."""
    local = (update.local_steps, update.local_learning_rate)
    remedy = "Remove it: it describes weights before and after local training."
    if local != (None, None):
        raise invalid_input("(local_steps, local_learning_rate)", local, "to be left out if gradient is given", remedy)
    if training is not None:
        raise invalid_input("training", training, "to be left out if gradient is given", remedy)


def _local_training(update: UpdateRecipe, training: LocalTraining | None) -> LocalTraining:
    """Return the local training between ``before`` and ``after``, which must be stated exactly once."""
    if training is None and update.local_steps is None:
        remedy = "Pass update=rr.UpdateRecipe(local_steps=1, local_learning_rate=0.1) with the client's values."
        raise invalid_input("update.local_steps", None, "to be stated if after is given", remedy)
    if training is None:
        return LocalTraining(learning_rate=update.local_learning_rate, steps=update.local_steps)
    if update.local_steps is not None:
        remedy = "Pass only one of update.local_steps and training."
        raise invalid_input("update.local_steps", update.local_steps, "to be left out if training is given", remedy)
    return training


def _match_tensors(
    what: str, given: Tensors | None, wanted: Mapping[str, Tensor], *, optional: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Return the given tensors under the wanted names; refuse tensors that do not fit, naming the layer."""
    found = _read_captured(what, given, wanted)
    missing = [name for name in wanted if name not in found and name not in optional]
    unknown = [name for name in found if name not in wanted and name not in optional]
    if missing or unknown:
        raise InvalidInput(
            f"Expected {what} to have the {len(wanted)} tensors of the model, it has {len(found)}. "
            f"Missing: {_join_names(missing)}; not in the model: {_join_names(unknown)}. {_suggest_fix(found, wanted)}"
        )
    for name, like in wanted.items():
        if name in found and found[name].shape != like.shape:
            raise invalid_input(
                f"{what}[{name!r}].shape",
                tuple(found[name].shape),
                f"to be {tuple(like.shape)}, the shape in the model",
                "Build the model with the channels and classes of the captured one.",
            )
        if name in found:
            check_all_finite(f"{what}[{name!r}]", found[name], "Capture another update.")
    return {name: found[name].detach().to(like.dtype) for name, like in wanted.items() if name in found}


def _read_captured(what: str, given: Tensors | None, wanted: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return named tensors from a file, a mapping, or a list in the order of the model."""
    if isinstance(given, (str, Path)):
        return read_tensors(given, _REMEDY)
    named = dict(zip(wanted, given, strict=False)) if isinstance(given, (list, tuple)) else given
    if isinstance(given, (list, tuple)) and len(given) != len(wanted):
        remedy = f"In order: {_join_names(list(wanted))}."
        raise invalid_input(f"len({what})", len(given), f"to be {len(wanted)}, the tensors of the model", remedy)
    if not isinstance(named, Mapping) or not all(isinstance(value, Tensor) for value in named.values()):
        raise invalid_input(
            f"type({what})", type(given).__name__, "to be a file of named tensors or the tensors", _REMEDY
        )
    return named


def _suggest_fix(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Return the remedy for names that do not fit: strip the prefix of a wrapper, or name a part of the model."""
    for prefix in _WRAPPER_PREFIXES:
        if {name.removeprefix(prefix) for name in found} == set(wanted):
            return f"Strip {prefix!r} from the names."
    return "Check the architecture, or name the captured part of the model with parameters=[...]."


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN]) or "none"
    return f"{shown} and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else shown


def _count_classes(model: nn.Module, input_shape: tuple[int, ...]) -> int | None:
    """Return the number of classes, or None if the model does not output one row per record; refuse wrong shapes."""
    tried = copy.deepcopy(model)  # batch norm in training mode moves its statistics
    entered: list[str] = []
    for name, layer in tried.named_modules():
        if not any(layer.children()):
            layer.register_forward_pre_hook(lambda _, __, name=name: entered.append(name))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            # two records, since batch norm in training mode refuses one
            outputs = tried(torch.zeros((2, *input_shape), dtype=_dtype(model)))
    except Exception as error:  # whatever the user's model raises on a shape that does not fit
        layer = (entered[-1] or "its only layer") if entered else "its beginning"
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise invalid_input(
            "input_shape", input_shape, f"to be a shape that the model takes; it fails at {layer}", cause
        ) from error
    rows = isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1
    return int(outputs.shape[1]) if rows else None


def _check_labels(labels: Sequence[int] | Tensor, batch_size: int, classes: int | None) -> Tensor:
    values = torch.as_tensor(labels)
    if values.ndim == 0 or len(values) != batch_size:
        raise invalid_input(
            "labels", values.tolist(), f"to have batch_size={batch_size} entries", "Pass one label per record."
        )
    if classes is not None and not values.is_floating_point():
        wrong = values[(values < 0) | (values >= classes)]
        if len(wrong):
            raise invalid_input(
                f"{'min' if wrong[0] < 0 else 'max'}(labels)",
                int(values.min() if wrong[0] < 0 else values.max()),
                f"to be from 0 to {classes - 1}, the classes of the model",
            )
    return values


def _dtype(model: nn.Module) -> torch.dtype:
    return next((value.dtype for value in model.parameters()), torch.get_default_dtype())
