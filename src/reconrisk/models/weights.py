"""Trained weights from a file, checked name by name before they enter a model."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from torch import nn

from reconrisk.core.errors import InvalidFile
from reconrisk.releases.tensor_files import read_tensors

M = TypeVar("M", bound=nn.Module)


def load_weights(model: M, path: str | Path) -> M:
    """``model`` with the weights of a safetensors file or of a torch file of tensors by name.

    Guarantee: a file that lacks a name, has one too many, a tensor of another shape or a value that is not finite is
    refused, naming it, and leaves the model as it was. No code in the file is ever run.
    Edge cases: counters of batch normalisation may be missing, as old files lack them.
    """
    stored, wanted = read_tensors(path, "Pass tensors saved by name, such as model.state_dict()."), model.state_dict()
    for name in wanted:
        if name not in stored and not name.endswith("num_batches_tracked"):
            raise InvalidFile(path, f"key {name!r}", "is missing.", "Is it the file of another architecture?")
    for name, tensor in stored.items():
        if name not in wanted:
            raise InvalidFile(path, f"key {name!r}", "is not in the model.", "Is it the file of another architecture?")
        if tensor.shape != wanted[name].shape:
            problem = f"has shape {tuple(tensor.shape)} where the model has {tuple(wanted[name].shape)}."
            remedy = "Build the model with the channels and classes of the file."
            raise InvalidFile(path, f"key {name!r}", problem, remedy)
        if not bool(tensor.isfinite().all()):
            raise InvalidFile(path, f"key {name!r}", "has values that are not finite.", "Train or fetch it again.")
    model.load_state_dict({**wanted, **stored})
    return model
