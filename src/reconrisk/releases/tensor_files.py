"""Files of named tensors: weights, gradients, updates. No code from the file is ever run."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from reconrisk.core.errors import InvalidFile


def read_tensors(path: str | Path, remedy: str) -> Mapping[str, Tensor]:
    """Read the tensors of a safetensors, npz or torch file; the suffix determines the format.

    Args:
        path: Path of the file.
        remedy: Last sentence of every error, for the user.

    Returns:
        The tensors by name.

    Raises:
        InvalidFile: If the file is missing, cannot be read, or does not map names to tensors.

    Guarantee: errors name the file. Torch files are read with ``weights_only=True``, npz files without pickle.
    Edge cases: suffixes other than .safetensors and .npz are read as torch files, which have no fixed suffix.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", remedy)
    suffix = path.suffix.lower()
    tensors: object
    try:
        if suffix == ".npz":
            zipfile.ZipFile(path).close()  # np.load would accept other formats under this name
            with np.load(path, allow_pickle=False) as arrays:
                tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        elif suffix == ".safetensors":
            tensors = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on foreign bytes these parsers raise nearly anything, IndexError and struct.error too
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidFile(path, "whole file", f"It cannot be read as {path.suffix} ({cause}).", remedy) from error
    if not isinstance(tensors, Mapping) or not all(isinstance(item, Tensor) for item in tensors.values()):
        raise InvalidFile(path, "whole file", "It does not map names to tensors.", remedy)
    return tensors
