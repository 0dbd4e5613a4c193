"""Shadow models of any architecture: one after the other, or vectorised over models.

They are vectorised if a step is small and the gradient of two models agrees with plain autograd. For convolutions
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
from reconrisk.releases.model_state import LossFunction, called
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.optimizers import is_elementwise, updater
from reconrisk.releases.training.optimizers import UpdateRule
from reconrisk.releases.training.trained_model import TrainingMap
from reconrisk.releases.training.unrolled import Named, recorded_gradient, treats_records_apart
from reconrisk.releases.updates.clipping import HardClip

_SMALL_STEP = 2e6  # records times parameters below which the overhead of a step is most of it
_STACKED = 32
_RECORDS = 64


@dataclass(frozen=True, eq=False)
class Recipe:
    """How one model is trained: all that shadow models share. ``batches`` are rows by step, the target's last."""

    model: nn.Module
    loss_fn: LossFunction
    optimizer: UpdateRule
    steps: int
    fixed_inputs: Tensor
    fixed_labels: Tensor
    batches: Sequence[Tensor] | RandomBatches | None
    private: Gaussian | None

    def orders(self, streams: Sequence[torch.Generator]) -> Iterator[Tensor | None]:
        """The rows of each step: None for all, (count,) where the models share them, else (n, count)."""
        if isinstance(self.batches, RandomBatches):
            return islice(self.batches.orders(len(self.fixed_inputs) + 1, streams), self.steps)
        return iter([None] * self.steps if self.batches is None else self.batches)


def train_one(recipe: Recipe, start: Named, record: Tensor, label: Tensor, stream: torch.Generator) -> Named:
    """The model trained on the fixed records and one target, by plain autograd or as ``TrainingMap`` does."""
    if recipe.private is not None:
        stacked = {name: value[None] for name, value in start.items()}
        trained = _train_clipped(recipe, recipe.private, stacked, record[None], label[None], stream)
        return {name: value[0] for name, value in trained.items()}
    model = copy.deepcopy(recipe.model).to(record.dtype)
    model.load_state_dict(start, strict=False)
    rows = [order if order is None or order.ndim == 1 else order[0] for order in recipe.orders([stream])]
    batches = None if recipe.batches is None else [row for row in rows if row is not None]
    fixed = (recipe.fixed_inputs, recipe.fixed_labels)
    plain = TrainingMap(model, recipe.loss_fn, recipe.optimizer, recipe.steps, *fixed, batches)
    return plain(record[None], label[None])


@torch.no_grad()
def can_stack(recipe: Recipe, start: Named) -> bool:
    """Whether models can be vectorised: small steps, no buffers, and one step of two models as by plain autograd.

    Verified, since torch differentiates some vectorised layers wrongly without an error.
    """
    size = sum(value.numel() for value in start.values())
    if size * len(recipe.fixed_inputs) > _SMALL_STEP or any(True for _ in recipe.model.buffers()):
        return False
    whole = all(value.requires_grad for value in recipe.model.parameters())
    plain = recipe.private is None and is_elementwise(recipe.optimizer) and len(recipe.fixed_inputs) > 1
    if not (plain and whole and treats_records_apart(recipe.model, recipe.fixed_inputs)):
        return False
    pair = {name: torch.stack([value, 1.01 * value]) for name, value in start.items()}
    records, labels = recipe.fixed_inputs[:2], recipe.fixed_labels[:2]
    try:
        found = _vectorised(recipe, pair, records, labels, None)
    except (RuntimeError, ValueError):  # a layer that vmap cannot trace
        return False
    for model in (0, 1):
        one = {name: value[model] for name, value in pair.items()}
        plainly = _plain(recipe, one, records[model], labels[model])
        if not all(_close(found[name][model], value) for name, value in plainly.items()):
            return False
    return True


def train_stacked(
    recipe: Recipe, starts: Named, records: Tensor, labels: Tensor, streams: Sequence[torch.Generator]
) -> Named:
    """All models at once by ``torch.func.vmap``, so many at a time as memory is used well."""
    parts = []
    for models in torch.arange(len(records)).split(_STACKED):
        begin, end = int(models[0]), int(models[-1]) + 1
        values = {name: value[begin:end].clone() for name, value in starts.items()}
        update = updater(recipe.optimizer, list(values.values()))
        for rows in recipe.orders(streams[begin:end]):
            gradients = _vectorised(recipe, values, records[begin:end], labels[begin:end], rows)
            update([gradients[name].contiguous() for name in values])
        parts.append(values)
    return {name: torch.cat([part[name] for part in parts]) for name in starts}


def _vectorised(recipe: Recipe, values: Named, records: Tensor, labels: Tensor, rows: Tensor | None) -> Named:
    own = 0 if rows is not None and rows.ndim == 2 else None
    gradient = torch.func.grad(partial(_loss, recipe))
    gradients: Named = torch.func.vmap(gradient, in_dims=(0, 0, 0, own))(values, records, labels, rows)
    return gradients


def _plain(recipe: Recipe, values: Named, record: Tensor, label: Tensor) -> Named:
    gradients, _ = recorded_gradient(lambda one: (_loss(recipe, one, record, label, None), {}), values)
    return gradients


def _loss(recipe: Recipe, values: Named, record: Tensor, label: Tensor, rows: Tensor | None) -> Tensor:
    """The loss of one model; the records that models share are not copied for each."""
    fixed, fixed_labels = recipe.fixed_inputs.to(record.dtype), recipe.fixed_labels
    fixed_labels = fixed_labels.to(label.dtype)
    labels = torch.cat([fixed_labels, label[None]])
    if rows is None:
        outputs = torch.cat([called(recipe.model, values, fixed), called(recipe.model, values, record[None])])
        return recipe.loss_fn(outputs, labels)
    batch = torch.cat([fixed, record[None]])[rows]
    return recipe.loss_fn(called(recipe.model, values, batch), labels[rows])


def _train_clipped(
    recipe: Recipe, private: Gaussian, values: Named, record: Tensor, label: Tensor, stream: torch.Generator
) -> Named:
    """One model by gradients that are clipped record by record, with noise."""
    inputs = torch.cat([recipe.fixed_inputs.to(record.dtype), record])
    labels = torch.cat([recipe.fixed_labels.to(label.dtype), label])
    values = {name: value.clone() for name, value in values.items()}
    update, size = updater(recipe.optimizer, list(values.values())), sum(value.numel() for value in values.values())
    for rows in recipe.orders([stream]):
        chosen = torch.arange(len(inputs)) if rows is None else rows.flatten()
        total = torch.zeros(size, dtype=record.dtype)
        for part in chosen.split(_RECORDS):
            one = {name: value[0] for name, value in values.items()}
            total += _clipped_sum(recipe, HardClip(private.clip_norm), one, inputs[part], labels[part])
        total += private.noise_std * torch.randn(size, generator=stream, dtype=record.dtype)
        pieces = (total / len(chosen)).split([value.numel() for value in values.values()])
        update([piece.view_as(value).clone() for piece, value in zip(pieces, values.values(), strict=True)])
    return values


def _clipped_sum(recipe: Recipe, clip: HardClip, values: Named, inputs: Tensor, labels: Tensor) -> Tensor:
    """The sum of clipped gradients, vectorised over records where that agrees with plain autograd on the first."""

    def loss(one: Named, record: Tensor, label: Tensor) -> Tensor:
        return recipe.loss_fn(called(recipe.model, one, record[None]), label[None])

    def plain(record: Tensor, label: Tensor) -> Tensor:
        found, _ = recorded_gradient(lambda one: (loss(one, record, label), {}), values)
        return torch.cat([value.flatten() for value in found.values()])

    try:
        stacked = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(values, inputs, labels)
        gradients = torch.cat([value.flatten(1) for value in stacked.values()], 1)
    except (RuntimeError, ValueError):  # a layer that vmap cannot trace
        gradients = torch.zeros(0, 0)
    if not len(gradients) or not _close(gradients[0], plain(inputs[0], labels[0])):
        gradients = torch.stack([plain(*one) for one in zip(inputs, labels, strict=True)])
    return (gradients * clip.factor(gradients.norm(dim=1))[:, None]).sum(0)


def _close(found: Tensor, plain: Tensor) -> bool:
    """Equal up to what a sum in another order changes."""
    slack = torch.finfo(plain.dtype).eps ** 0.5 * float(plain.abs().max())
    return bool(((found - plain).abs() <= slack).all())
