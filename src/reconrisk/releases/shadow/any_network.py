"""Shadow models of any architecture: trained in a loop, or vectorised over models.

They are vectorised if a step is small and the gradients of two models agree with plain autograd. For convolutions
vectorising gains nothing on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.float_safe_noise import add_noise, clip_rows
from reconrisk.releases.model_state import LossFunction, call_module
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.optimizers import is_elementwise, make_updater
from reconrisk.releases.training.optimizers import UpdateRule
from reconrisk.releases.training.trained_model import TrainingMap
from reconrisk.releases.training.unrolled import Named, recorded_gradient, treats_records_apart
from reconrisk.releases.updates.clipping import HardClip

_SMALL_STEP = 2e6  # records times parameters below which most of a step is overhead, which vectorising shares
_STACKED = 32  # models that are vectorised together, which limits memory
_RECORDS = 64  # records whose gradients are held at once for clipping


@dataclass(frozen=True, eq=False)
class ShadowRecipe:
    """The settings that all shadow models share.

    Attributes:
        model: The network.
        loss_fn: Loss of the outputs and labels of a batch.
        optimizer: Update rule.
        steps: Number of steps.
        fixed_inputs: Records that all models are trained on.
        fixed_labels: Their labels.
        batches: Rows of each step, the target counted last; None for all records.
        private: Gaussian mechanism on clipped gradients; None for plain training.
    """

    model: nn.Module
    loss_fn: LossFunction
    optimizer: UpdateRule
    steps: int
    fixed_inputs: Tensor
    fixed_labels: Tensor
    batches: Sequence[Tensor] | RandomBatches | None
    private: Gaussian | None

    def orders(self, streams: Sequence[torch.Generator]) -> Iterator[Tensor | None]:
        """Return the rows of each step: None for all, (count,) if the models share them, else (n, count)."""
        if isinstance(self.batches, RandomBatches):
            return islice(self.batches.orders(len(self.fixed_inputs) + 1, streams), self.steps)
        return iter([None] * self.steps if self.batches is None else self.batches)


def train_one(recipe: ShadowRecipe, start: Named, record: Tensor, label: Tensor, stream: torch.Generator) -> Named:
    """Train one model on the fixed records and one target, by :class:`TrainingMap` or with clipping and noise.

    Args:
        recipe: Shared settings.
        start: Initial parameters by name.
        record: The target.
        label: Its label.
        stream: Generator of this model's batches and noise.

    Returns:
        Trained parameters by name.
    """
    if recipe.private is not None:
        stacked = {name: value[None] for name, value in start.items()}
        trained = _train_clipped(recipe, recipe.private, stacked, record[None], label[None], stream)
        return {name: value[0] for name, value in trained.items()}
    model = copy.deepcopy(recipe.model).to(record.dtype)
    model.load_state_dict(start, strict=False)  # buffers stay those of the recipe's model
    rows = [order if order is None or order.ndim == 1 else order[0] for order in recipe.orders([stream])]
    batches = None if recipe.batches is None else [row for row in rows if row is not None]
    fixed = (recipe.fixed_inputs, recipe.fixed_labels)
    plain = TrainingMap(model, recipe.loss_fn, recipe.optimizer, recipe.steps, *fixed, batches)
    return plain(record[None], label[None])


@torch.no_grad()
def can_stack(recipe: ShadowRecipe, start: Named) -> bool:
    """Return True if models can be vectorised: small steps, no buffers, and gradients that agree with plain autograd.

    The gradients of two models are verified, since torch differentiates some vectorised layers wrongly without an
    error.

    Args:
        recipe: Shared settings.
        start: Initial parameters by name.

    Returns:
        True if :func:`train_stacked` is correct and worth it.
    """
    size = sum(value.numel() for value in start.values())
    if size * len(recipe.fixed_inputs) > _SMALL_STEP or any(True for _ in recipe.model.buffers()):
        return False
    whole = all(value.requires_grad for value in recipe.model.parameters())
    plain = recipe.private is None and is_elementwise(recipe.optimizer) and len(recipe.fixed_inputs) > 1
    if not (plain and whole and treats_records_apart(recipe.model, recipe.fixed_inputs)):
        return False
    # Two models that differ by one percent, so that a mix-up of models shows.
    pair = {name: torch.stack([value, 1.01 * value]) for name, value in start.items()}
    records, labels = recipe.fixed_inputs[:2], recipe.fixed_labels[:2]
    try:
        found = _gradients_vectorised(recipe, pair, records, labels, None)
    except (RuntimeError, ValueError):  # a layer that vmap cannot trace
        return False
    for model in (0, 1):
        one = {name: value[model] for name, value in pair.items()}
        plainly = _gradients_plain(recipe, one, records[model], labels[model])
        if not all(_is_close(found[name][model], value) for name, value in plainly.items()):
            return False
    return True


def train_stacked(
    recipe: ShadowRecipe, starts: Named, records: Tensor, labels: Tensor, streams: Sequence[torch.Generator]
) -> Named:
    """Train all models with ``torch.func.vmap``, some at a time.

    Args:
        recipe: Shared settings.
        starts: Initial parameters by name, stacked over models.
        records: One target per model.
        labels: Their labels.
        streams: One generator per model.

    Returns:
        Trained parameters by name, stacked over models.
    """
    parts = []
    for models in torch.arange(len(records)).split(_STACKED):
        begin, end = int(models[0]), int(models[-1]) + 1
        values = {name: value[begin:end].clone() for name, value in starts.items()}
        update = make_updater(recipe.optimizer, list(values.values()))
        for rows in recipe.orders(streams[begin:end]):
            gradients = _gradients_vectorised(recipe, values, records[begin:end], labels[begin:end], rows)
            update([gradients[name].contiguous() for name in values])
        parts.append(values)
    return {name: torch.cat([part[name] for part in parts]) for name in starts}


def _gradients_vectorised(
    recipe: ShadowRecipe, values: Named, records: Tensor, labels: Tensor, rows: Tensor | None
) -> Named:
    """Return the gradients of all models at once."""
    own = 0 if rows is not None and rows.ndim == 2 else None  # one order per model, or one for all
    gradient = torch.func.grad(partial(_loss, recipe))
    gradients: Named = torch.func.vmap(gradient, in_dims=(0, 0, 0, own))(values, records, labels, rows)
    return gradients


def _gradients_plain(recipe: ShadowRecipe, values: Named, record: Tensor, label: Tensor) -> Named:
    """Return the gradient of one model by plain autograd."""
    gradients, _ = recorded_gradient(lambda one: (_loss(recipe, one, record, label, None), {}), values)
    return gradients


def _loss(recipe: ShadowRecipe, values: Named, record: Tensor, label: Tensor, rows: Tensor | None) -> Tensor:
    """Return the loss of one model; the shared records are not copied for each."""
    fixed, fixed_labels = recipe.fixed_inputs.to(record.dtype), recipe.fixed_labels
    fixed_labels = fixed_labels.to(label.dtype)
    labels = torch.cat([fixed_labels, label[None]])
    if rows is None:  # the fixed records enter vmap unbatched, without a copy per model
        outputs = torch.cat([call_module(recipe.model, values, fixed), call_module(recipe.model, values, record[None])])
        return recipe.loss_fn(outputs, labels)
    batch = torch.cat([fixed, record[None]])[rows]
    return recipe.loss_fn(call_module(recipe.model, values, batch), labels[rows])


def _train_clipped(
    recipe: ShadowRecipe, private: Gaussian, values: Named, record: Tensor, label: Tensor, stream: torch.Generator
) -> Named:
    """Train one model with gradients that are clipped per record, with noise: exactly rounded in float64."""
    inputs = torch.cat([recipe.fixed_inputs.to(record.dtype), record])
    labels = torch.cat([recipe.fixed_labels.to(label.dtype), label])
    values = {name: value.clone() for name, value in values.items()}
    update, size = (
        make_updater(recipe.optimizer, list(values.values())),
        sum(value.numel() for value in values.values()),
    )
    for rows in recipe.orders([stream]):
        chosen = torch.arange(len(inputs)) if rows is None else rows.flatten()
        total = torch.zeros(size, dtype=record.dtype)
        one = {name: value[0] for name, value in values.items()}
        for part in chosen.split(_RECORDS):
            gradients = _record_gradients(recipe, one, inputs[part], labels[part])
            total += _clipped_sum(gradients, private.clip_norm, len(chosen))
        mean, std = total / len(chosen), private.noise_std / len(chosen)
        if mean.dtype == torch.float64:
            mean = add_noise(mean, std, stream)
        else:
            mean += std * torch.randn(size, generator=stream, dtype=mean.dtype)
        pieces = mean.split([value.numel() for value in values.values()])
        update([piece.view_as(value).clone() for piece, value in zip(pieces, values.values(), strict=True)])
    return values


def _record_gradients(recipe: ShadowRecipe, values: Named, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return one gradient per record, vectorised over records if that agrees with plain autograd on the first."""

    def loss(one: Named, record: Tensor, label: Tensor) -> Tensor:
        return recipe.loss_fn(call_module(recipe.model, one, record[None]), label[None])

    def plain(record: Tensor, label: Tensor) -> Tensor:
        found, _ = recorded_gradient(lambda one: (loss(one, record, label), {}), values)
        return torch.cat([value.flatten() for value in found.values()])

    try:
        stacked = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(values, inputs, labels)
        gradients = torch.cat([value.flatten(1) for value in stacked.values()], 1)
    except (RuntimeError, ValueError):  # a layer that vmap cannot trace
        gradients = torch.zeros(0, 0)
    if not len(gradients) or not _is_close(gradients[0], plain(inputs[0], labels[0])):
        gradients = torch.stack([plain(*one) for one in zip(inputs, labels, strict=True)])
    return gradients


def _clipped_sum(gradients: Tensor, clip_norm: float, records: int) -> Tensor:
    """Return the sum of clipped gradients; those that are not finite count as zero. In float64 it has a margin."""
    if gradients.dtype == torch.float64:
        return clip_rows(gradients, clip_norm, records=records).sum(0)
    norms = gradients.norm(dim=1)
    if not bool((finite := norms.isfinite()).all()):
        gradients, norms = gradients[finite], norms[finite]
    return HardClip(clip_norm).factor(norms) @ gradients


def _is_close(found: Tensor, plain: Tensor) -> bool:
    """Return True if two gradients are equal up to the rounding of a sum in another order."""
    slack = torch.finfo(plain.dtype).eps ** 0.5 * float(plain.abs().max())  # half the digits of the largest entry
    return bool(((found - plain).abs() <= slack).all())
