"""Conversion between array records of Flower and tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input


def single_record(content: Any, where: str) -> Any:
    """Return the only array record of a training message.

    Args:
        content: Content of a Flower message.
        where: ``"message"`` or ``"reply"``, for the error.

    Returns:
        The array record.

    Raises:
        InvalidInput: If there is not exactly one.
    """
    records = list(content.array_records.values())
    if len(records) != 1:
        raise invalid_input(
            f"number of array records in the {where}", len(records), "to be 1", "Send the weights in one record."
        )
    return records[0]


def tensors_by_name(record: Any, model: nn.Module) -> dict[str, Tensor]:
    """Copy the arrays of a record into tensors, named as in the model's state.

    Args:
        record: Array record of a Flower message.
        model: Network of the clients. Arrays named 0, 1, ... take the names of its state in order.

    Returns:
        Tensors that share no memory with the record.

    Raises:
        InvalidInput: If a name or shape is not that of the model.
    """
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


def compute_update(
    received: Mapping[str, Tensor], trained: Mapping[str, Tensor], model: nn.Module, *, withhold: bool
) -> dict[str, Tensor]:
    """Return the change of each trainable parameter, in double precision.

    Args:
        received: Weights from the server, by name.
        trained: Weights after training, by name.
        model: Network of the clients, which states the trainable parameters.
        withhold: True to ignore changes of floating-point buffers; they are not sent then.

    Returns:
        Trained minus received weights, by name.

    Raises:
        InvalidInput: If the names differ, a buffer changed that is not withheld, or nothing is trainable.
    """
    if set(received) != set(trained):
        names = sorted(set(received) ^ set(trained))
        raise invalid_input(
            "arrays", names, "to be in both message and reply", "Return exactly the arrays that the server sent."
        )
    # shared parameters have several names, and each is sent
    defended = {name for name, value in model.named_parameters(remove_duplicate=False) if value.requires_grad}
    update: dict[str, Tensor] = {}
    for name, before in received.items():
        after = trained[name]
        if name in defended:
            update[name] = after.double() - before.double()
        elif after.is_floating_point() and not withhold and not torch.equal(after, before.to(after)):
            raise InvalidInput(
                f"Expected arrays[{name!r}] to be a trainable parameter or unchanged, but the client changed it. "
                "Use rr.models.group_norm(channels) for batch norm, or pass buffers='withhold'."
            )
    if not update:
        remedy = "Pass flower_mod the network that clients train."
        raise invalid_input(
            "names of arrays", sorted(received)[:5], "to include a trainable parameter of the model", remedy
        )
    return update


def write_arrays(
    content: Any, received: Mapping[str, Tensor], trained: Mapping[str, Tensor], sent: Mapping[str, Tensor]
) -> None:
    """Replace the arrays of a reply by the server's weights plus the defended update.

    Args:
        content: Content of the reply; changed in place. Each array keeps its key and type.
        received: Weights from the server, by name.
        trained: Weights after training, by name. Only their types are used, and whole-number counters.
        sent: Defended update, by name.
    """
    from flwr.app import Array, ArrayRecord

    (label,) = content.array_records
    new: dict[str, Tensor] = {}
    for name, value in trained.items():
        if name in sent:
            # in double precision, as the update was computed
            new[name] = (received[name].double() + sent[name]).to(value.dtype)
        else:
            new[name] = received[name].to(value.dtype) if value.is_floating_point() else value
    keys = list(content[label])
    arrays = {key: Array(value.numpy()) for key, value in zip(keys, new.values(), strict=True)}
    content[label] = ArrayRecord(arrays)
