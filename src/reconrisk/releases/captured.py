"""An observation from a captured update: files of gradients, or of weights before and after, without the records."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import ForwardMap, Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import check_positive, check_whole, refuse
from reconrisk.releases.clipping import Clip
from reconrisk.releases.gradient import GradientMap, Reduction
from reconrisk.releases.local_update import LocalUpdateMap, consecutive_batches, update_rule
from reconrisk.releases.optimizers import UpdateRule
from reconrisk.releases.state import LossFunction
from reconrisk.releases.stored import read_tensors
from reconrisk.releases.training import TrainingMap

Tensors = str | Path | Mapping[str, Tensor]
"""A file of named tensors (safetensors, npz or torch), or the tensors."""

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
    ``labels`` and ``noise_std``, the standard deviation of known noise, are added to what ``threat`` knows.

    Assumes: ``model`` and ``loss_fn`` are those of the client, in the mode of its training.
    Guarantee: ``model`` stays as it is; tensors that lack, have another shape or a name the model does not have are
    refused by name, as are values that are not finite and labels that are no class of the model.
    Edge cases: buffers in files of weights, such as running statistics, set the state before and are not compared.
    ``parameters`` names a part of the model if only that was captured.

    >>> model = nn.Linear(2, 2)
    >>> observe_captured(model, input_shape=(2,), gradient={"weight": torch.ones(2, 2), "bias": torch.ones(2)})
    Observation(2 tensors, 6 values, 1 x (2,), ThreatModel(sees=one-update, knows=nothing, controls=nothing))
    """
    if (gradient is None) == (after is None):
        raise refuse("gradient and after", "both" if after is not None else "none", "to be exactly one of the two")
    check_whole("batch_size", batch_size)
    start = _with_weights(model, before)
    classes = _outputs(start, tuple(input_shape))
    known = None if labels is None else _checked_labels(labels, batch_size, classes)
    if gradient is not None:
        forward: ForwardMap = GradientMap(start, loss_fn, reduction, parameters, clip)
        template = GradientMap(start, loss_fn, reduction, parameters, clip).state(_dtype(start)).released
        released = _fitting("gradient", _tensors(gradient), template, ignore=())
    else:
        if before is None:
            raise refuse("before", None, "to be the weights before the update", "Pass both files.")
        one_step = steps is None and epochs is None
        batches = consecutive_batches(batch_size, local_batch_size, steps=1 if one_step else steps, epochs=epochs)
        training = TrainingMap(
            start, loss_fn, update_rule(optimizer, learning_rate), batches=batches, parameters=parameters
        )
        forward, template = LocalUpdateMap(training, batch_size), training.start(_dtype(start))
        buffers = tuple(name for name, _ in model.named_buffers())
        final = _fitting("after", _tensors(after), template, ignore=buffers) if after is not None else {}
        released = {name: value - template[name] for name, value in final.items()}
    powers = [Knows.LABELS] * (known is not None) + [Knows.DEFENSE] * (noise_std is not None)
    return Observation(
        released=released,
        forward=forward,
        threat=threat.knowing(*powers),
        input_shape=tuple(input_shape),
        data_range=data_range,
        batch_size=batch_size,
        labels=known,
        noise_std=None if noise_std is None else _equal_noise(released, noise_std),
    )


def _tensors(given: Tensors) -> Mapping[str, Tensor]:
    return given if isinstance(given, Mapping) else read_tensors(given, _REMEDY)


def _with_weights(model: nn.Module, weights: Tensors | None) -> nn.Module:
    """A copy of the model, with other weights if given."""
    own = copy.deepcopy(model)
    if weights is None:
        return own
    wanted = own.state_dict()
    optional = tuple(name for name in wanted if name.endswith("num_batches_tracked"))
    found = _fitting("before", _tensors(weights), wanted, ignore=optional)
    own.load_state_dict({**wanted, **found})
    return own


def _fitting(
    what: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, ignore: Sequence[str]
) -> dict[str, Tensor]:
    """The tensors under the names that are wanted, refused where they do not fit, by the name of the layer."""
    missing = [name for name in wanted if name not in found and name not in ignore]
    unknown = [name for name in found if name not in wanted and name not in ignore]
    if missing or unknown:
        raise InvalidInput(
            f"Expected {what} to have the {len(wanted)} tensors of the model, it has {len(found)}. "
            f"Missing: {_listed(missing)}; not in the model: {_listed(unknown)}. "
            "Is it of another architecture? Name a part of the model by parameters=[...]."
        )
    for name, like in wanted.items():
        if name in found and found[name].shape != like.shape:
            raise refuse(
                f"{what}[{name!r}].shape",
                tuple(found[name].shape),
                f"to be {tuple(like.shape)}, that of the model's layer",
                "Build the model with the channels and classes it was captured from.",
            )
    return {name: found[name].detach().to(like.dtype) for name, like in wanted.items() if name in found}


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4]) or "none"
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def _outputs(model: nn.Module, input_shape: tuple[int, ...]) -> int | None:
    """The number of classes, or None where outputs are not a row per record; refuses shapes the model cannot take."""
    for side in input_shape:
        check_whole("input_shape", side)
    entered: list[str] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, __, name=name: entered.append(name))
        for name, layer in model.named_modules()
        if not any(layer.children())
    ]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = copy.deepcopy(model)(torch.zeros((2, *input_shape), dtype=_dtype(model)))
    except Exception as error:  # whatever the user's model raises on a shape that does not fit
        layer = entered[-1] if entered else "its beginning"
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise refuse("input_shape", input_shape, f"to be what the model takes; it fails at {layer}", said) from error
    finally:
        for hook in hooks:
            hook.remove()
    rows = isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1
    return int(outputs.shape[1]) if rows else None


def _checked_labels(labels: Sequence[int] | Tensor, batch_size: int, classes: int | None) -> Tensor:
    values = torch.as_tensor(labels)
    if len(values) != batch_size:
        raise refuse("labels", values.tolist(), f"to have batch_size={batch_size} entries")
    if classes is not None and not values.is_floating_point():
        wrong = values[(values < 0) | (values >= classes)]
        if len(wrong):
            raise refuse("labels", int(wrong[0]), f"to be from 0 to {classes - 1}, the classes of the model")
    return values


def _dtype(model: nn.Module) -> torch.dtype:
    return next((value.dtype for value in model.parameters()), torch.get_default_dtype())


def _equal_noise(released: Mapping[str, Tensor], noise_std: float) -> dict[str, Tensor]:
    std = check_positive("noise_std", noise_std)
    return {name: torch.full_like(value, std) for name, value in released.items()}
