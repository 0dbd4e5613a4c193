"""Tensors by name from Flower's records of arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.validation import invalid_input


def one_record(content: Any, where: str) -> Any:
    """The single record of arrays that a message about training holds."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise invalid_input(
            f"records of arrays in the {where}", len(records), "to be 1", "Send the weights in one record."
        )
    return records[0]


def tensors_by_name(record: Any, model: nn.Module) -> dict[str, Tensor]:
    """The arrays, read anew from their bytes, by the names of the model's state; those named 0, 1, ... by its order."""
    named = {key: torch.from_numpy(array.numpy()) for key, array in record.items()}
    state = model.state_dict()
    if all(key.isdigit() for key in named) and len(named) == len(state):
        named = dict(zip(state, named.values(), strict=True))
    for name, value in named.items():
        expected = tuple(state[name].shape) if name in state else None
        if tuple(value.shape) != expected:
            remedy = "Pass flower_mod the network that clients train."
            raise invalid_input(
                f"arrays[{name!r}].shape", tuple(value.shape), f"to be {expected}, as in the model", remedy
            )
    return named


def updates_of(
    received: Mapping[str, Tensor], trained: Mapping[str, Tensor], model: nn.Module, *, withhold: bool
) -> dict[str, Tensor]:
    """What training changed in each trainable parameter, in double precision.

    Other real numbers must be as they were, unless they are withheld.
    """
    if set(received) != set(trained):
        names = sorted(set(received) ^ set(trained))
        raise invalid_input(
            "arrays", names, "to be in both message and reply", "Return every array that the server sent."
        )
    # by every name that a parameter has
    defended = {name for name, value in model.named_parameters(remove_duplicate=False) if value.requires_grad}
    update: dict[str, Tensor] = {}
    for name, before in received.items():
        after = trained[name]
        if name in defended:
            update[name] = after.double() - before.double()
        elif after.is_floating_point() and not withhold and not torch.equal(after, before.to(after)):
            raise invalid_input(
                f"arrays[{name!r}]",
                "changed",
                "to be a trainable parameter, or as the server sent it",
                "Use rr.models.group_norm(channels) for batch norm, or pass buffers='withhold'.",
            )
    if not update:
        raise invalid_input("arrays", sorted(received)[:5], "to hold a trainable parameter of the model")
    return update


def changed_arrays(
    content: Any, received: Mapping[str, Tensor], trained: Mapping[str, Tensor], sent: Mapping[str, Tensor]
) -> None:
    """Put the server's weights plus what is sent into the reply, each array under its own key and type."""
    from flwr.app import Array, ArrayRecord

    (label,) = content.array_records
    new: dict[str, Tensor] = {}
    for name, value in trained.items():
        if name in sent:
            new[name] = (received[name].double() + sent[name]).to(value.dtype)
        else:
            new[name] = received[name].to(value.dtype) if value.is_floating_point() else value
    keys = list(content[label])
    arrays = {key: Array(value.numpy()) for key, value in zip(keys, new.values(), strict=True)}
    content[label] = ArrayRecord(arrays)
