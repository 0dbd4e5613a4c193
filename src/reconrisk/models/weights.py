"""Loading of trained weights, checked name by name before they enter a model."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from torch import nn

from reconrisk.core.errors import InvalidFile
from reconrisk.releases.tensor_files import read_tensors

M = TypeVar("M", bound=nn.Module)


def load_weights(model: M, path: str | Path) -> M:
    """Load weights into a model from a safetensors file or a torch file of named tensors.

    Args:
        model: Model to change.
        path: Weight file.

    Returns:
        The same model, with the weights of the file.

    Raises:
        InvalidFile: If the file cannot be read, if a name is missing or unknown, if a tensor has another shape, or if a
            value is not finite; the error names the tensor.

    Guarantee: on an error the model does not change. No code in the file is ever run.
    Edge cases: counters of batch normalisation may be missing, because old files lack them.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "weights.pt")
    ...     torch.save({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, path)
    ...     load_weights(nn.Linear(2, 1), path).weight.tolist()
    [[1.0, 1.0]]
    """
    stored, wanted = read_tensors(path, "Pass tensors saved by name, such as model.state_dict()."), model.state_dict()
    for name in wanted:
        if name not in stored and not name.endswith("num_batches_tracked"):
            raise InvalidFile(path, f"key {name!r}", "is missing.", "Pass the weights of this architecture.")
    for name, tensor in stored.items():
        if name not in wanted:
            raise InvalidFile(path, f"key {name!r}", "is not in the model.", "Pass the weights of this architecture.")
        if tensor.shape != wanted[name].shape:
            problem = f"has shape {tuple(tensor.shape)} where the model has {tuple(wanted[name].shape)}."
            remedy = "Build the model with the channels and classes that the file has."
            raise InvalidFile(path, f"key {name!r}", problem, remedy)
        if not bool(tensor.isfinite().all()):
            raise InvalidFile(
                path, f"key {name!r}", "has values that are not finite.", "Train the model or download the file again."
            )
    model.load_state_dict({**wanted, **stored})  # counters that the file lacks keep the model's own values
    return model
