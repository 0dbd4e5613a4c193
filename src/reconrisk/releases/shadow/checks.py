"""Checks of shadow trainings, and the order of their batches.

:class:`RandomBatches` gives each model an order of its own; otherwise every step uses all records, or the order is
known.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.validation import check_all_finite, check_not_empty, check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction, check_mode, check_records_independent, model_state
from reconrisk.releases.shadow.optimizers import is_elementwise
from reconrisk.releases.training.optimizers import UpdateRule
from reconrisk.releases.training.trained_model import TrainingMap, check_tensor


@dataclass(frozen=True)
class RandomBatches:
    """Random batches in a separate order for each model, reshuffled in every epoch.

    An adversary who does not know the order of the batches trains shadow models this way.

    Attributes:
        size: Records per batch.

    Edge cases: the last batch of an epoch may be smaller; a ``size`` beyond the number of records means all.
    Reference: section VI-C, balle2022.

    >>> orders = RandomBatches(2).orders(3, [torch.Generator().manual_seed(0)])
    >>> [next(orders).shape[1] for _ in range(3)]
    [2, 1, 2]
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_whole("size", self.size))

    def orders(self, records: int, streams: Sequence[torch.Generator]) -> Iterator[Tensor]:
        """Yield the rows (n, size) of each step without end.

        Args:
            records: Number of records.
            streams: One generator per model.

        Yields:
            Indices of the records of one step, one row per model.
        """
        while True:
            shuffled = torch.stack([torch.randperm(records, generator=stream) for stream in streams])
            yield from shuffled.split(self.size, dim=1)


_SUM_SLACK = 1e-4  # float32 probabilities of thousands of classes sum to one within it


def check_model_reads(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> None:
    """Refuse fixed records that the model cannot take, and labels that the loss cannot take.

    Args:
        model: The network.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Fixed records.
        labels: Fixed labels.

    Raises:
        InvalidInput: If one of them fails; the error quotes the cause.
    """
    check_tensor("fixed_inputs", inputs)
    check_tensor("fixed_labels", labels)
    if not inputs.is_floating_point() or not inputs.ndim:
        raise invalid_input(
            "fixed_inputs.dtype", inputs.dtype, "to be floating point", "Convert with fixed_inputs.float()."
        )
    check_all_finite("fixed_inputs", inputs, "Remove or impute missing values.")
    # Two records, since batch norm in training mode refuses one.
    some = inputs[:2] if len(inputs) > 1 else inputs.new_zeros(2, *inputs.shape[1:])
    wanted = labels[:2].to(inputs.dtype) if labels.is_floating_point() else labels[:2]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            outputs = copy.deepcopy(model).to(inputs.dtype)(some)
        except (RuntimeError, ValueError, IndexError) as error:
            shape, cause = tuple(inputs.shape), f"It raises: {str(error).splitlines()[0]}"
            raise invalid_input("fixed_inputs.shape", shape, "to be records that the model takes", cause) from error
        try:
            loss_fn(outputs[: len(wanted)], wanted) if len(wanted) else None
        except (RuntimeError, ValueError, IndexError) as error:
            shape, cause = tuple(labels.shape), f"It raises: {str(error).splitlines()[0]}"
            raise invalid_input("fixed_labels.shape", shape, "to be labels that loss_fn takes", cause) from error


def check_private(
    private: object, model: nn.Module, loss_fn: LossFunction, optimizer: UpdateRule, inputs: Tensor, labels: Tensor
) -> None:
    """Refuse noise that is not a Gaussian mechanism, and models or losses that do not allow clipping per record.

    Args:
        private: The mechanism, or None.
        model: The network.
        loss_fn: Loss of the outputs and labels of a batch.
        optimizer: Update rule.
        inputs: Fixed records.
        labels: Fixed labels.

    Raises:
        InvalidInput: If one of them does not fit.
    """
    if private is None:
        return
    if not isinstance(private, Gaussian):
        remedy = "Pass rr.mechanisms.Gaussian(noise_multiplier=..., clip_norm=1.0), and the sampling as batches=."
        raise invalid_input("private", private, "to be a Gaussian mechanism or None", remedy)
    check_mode(model)
    if not is_elementwise(optimizer):
        raise invalid_input(
            "optimizer", optimizer, "to be rr.releases.sgd(...) or rr.releases.adam(...) if private is given"
        )
    if len(inputs) > 1:
        check_records_independent(model_state(model, inputs.dtype), loss_fn, inputs, labels)


def check_targets(training: TrainingMap, inputs: Tensor, labels: Tensor, classes: int | None) -> None:
    """Refuse targets that are empty, not finite, of another shape than the fixed records, or of an unknown class.

    Args:
        training: The plain training of one model.
        inputs: Targets, one per model.
        labels: Their labels.
        classes: Number of classes; None if unknown.

    Raises:
        InvalidInput: If one of these conditions fails.
    """
    check_not_empty("inputs", inputs, "Pass at least one target.")
    if inputs.dtype not in (torch.float32, torch.float64):
        raise invalid_input("inputs.dtype", inputs.dtype, "to be float32 or float64", "Convert with inputs.float().")
    check_all_finite("inputs", inputs, "Remove or impute missing values.")
    if len(inputs) != len(labels):
        raise InvalidInput(f"Expected one label per target, got {len(inputs)} targets with {len(labels)} labels.")
    check_labels("labels", labels, classes)
    training.check(inputs[:1], labels[:1])


def check_labels(name: str, labels: Tensor, classes: int | None) -> None:
    """Refuse class numbers out of range, and probabilities that do not sum to one.

    Args:
        name: Name of the argument, for the error.
        labels: Class numbers, or probabilities of classes.
        classes: Number of classes; None if labels are not classes.

    Raises:
        InvalidInput: If a label is not valid.
    """
    if labels.is_floating_point():
        check_all_finite(name, labels)
        if classes is not None and (labels.ndim != 2 or bool(((labels.sum(1) - 1).abs() > _SUM_SLACK).any())):
            raise InvalidInput(
                f"Expected floating-point {name} to be class probabilities that sum to 1. Pass class indices as "
                "integers."
            )
    elif classes is not None and len(labels):
        worst = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        if not 0 <= worst < classes:
            raise invalid_input(
                f"{'min' if worst < 0 else 'max'}({name})",
                worst,
                f"to be a class from 0 to {classes - 1}",
                "Pass classes that are outputs of the model.",
            )


def check_starts(starts: Tensor | None, models: int, size: int, *, drawn: bool) -> None:
    """Refuse initial parameters of a wrong shape, or together with ``draw_start``.

    Args:
        starts: Rows of parameters, or None.
        models: Number of models.
        size: Number of parameters of a model.
        drawn: True if the initial parameters are drawn.

    Raises:
        InvalidInput: If they do not fit.
    """
    if starts is None:
        return
    if drawn:
        raise invalid_input(
            "starts",
            f"tensor of shape {tuple(starts.shape)}",
            "to be None if draw_start is given",
            "Pass only one of the two.",
        )
    if tuple(starts.shape) not in ((size,), (1, size), (models, size)):
        expected = f"to be ({size},) for all or ({models}, {size}), one row per target"
        raise invalid_input(
            "starts.shape", tuple(starts.shape), expected, "Build rows with training.flatten(parameters)."
        )
    check_all_finite("starts", starts)


def check_can_push(private: Gaussian | None, batches: object, inputs: Tensor, tangents: Tensor) -> None:
    """Refuse derivatives of random or clipped trainings, of several targets, and tangents of another shape.

    Args:
        private: Mechanism of the training.
        batches: Batches of the training.
        inputs: The target, ``(1, *shape)``.
        tangents: Directions, ``(k, *shape)``.

    Raises:
        InvalidInput: If the derivative does not exist or shapes differ.
    """
    if private is not None or isinstance(batches, RandomBatches):
        given = private if private is not None else batches
        raise invalid_input(
            "training.private" if private is not None else "training.batches",
            given,
            "to be None for push" if private is not None else "to be fixed for push",
            "Call push on a training with private=None and fixed batches.",
        )
    if len(inputs) != 1:
        raise invalid_input("len(inputs)", len(inputs), "to be 1", "Call push for one target at a time.")
    check_not_empty("tangents", tangents)
    if tangents.shape[1:] != inputs.shape[1:]:
        raise invalid_input(
            "tangents.shape", tuple(tangents.shape), f"to be (k, *{tuple(inputs.shape[1:])}), like the target"
        )
