"""The state of a reconstructor's training in a file: safetensors with numbers in its header, no pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from reconrisk.core.errors import InvalidFile
from reconrisk.core.files import write_whole

Part: TypeAlias = "nn.Module | torch.optim.Optimizer"

_KEY = "reconrisk"
_REMEDY = "Delete it and train again, or name another file."


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where a training stands: epochs done, the best so far, and all tensors that the next epoch depends on."""

    mark: str
    done: int
    best_epoch: int
    best_error: float
    tensors: Mapping[str, Tensor]


def packed(parts: Mapping[str, Part], best: Mapping[str, Tensor], shuffle: torch.Generator) -> dict[str, Tensor]:
    """All that the next epoch depends on, as named tensors."""
    tensors = {f"best.{name}": value for name, value in best.items()}
    tensors["shuffle"] = shuffle.get_state()
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            tensors |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
            continue
        for index, kept in part.state_dict()["state"].items():
            tensors |= {f"{name}.{index}.{key}": torch.as_tensor(value) for key, value in kept.items()}
    return {name: value.detach().clone().contiguous() for name, value in tensors.items()}


def unpack(stored: Checkpoint, parts: Mapping[str, Part], shuffle: torch.Generator) -> dict[str, Tensor]:
    """Put the parts where they were, and return the best network so far."""
    shuffle.set_state(stored.tensors["shuffle"])
    for name, part in parts.items():
        own = _under(stored.tensors, name)
        if isinstance(part, nn.Module):
            part.load_state_dict(own)
            continue
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in own.items():
            index, _, field = key.partition(".")
            state.setdefault(int(index), {})[field] = value
        part.load_state_dict({"state": state, "param_groups": part.state_dict()["param_groups"]})
    return _under(stored.tensors, "best")


def fingerprint(settings: object, *tensors: Tensor) -> str:
    """A name for settings and data, by which a file of another training is told."""
    content = hashlib.sha256(repr(settings).encode())
    for tensor in tensors:
        content.update(str(tuple(tensor.shape)).encode())
        content.update(tensor.detach().contiguous().numpy().data)
    return content.hexdigest()


def write_checkpoint(path: Path, state: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    numbers = {"mark": state.mark, "done": state.done, "best_epoch": state.best_epoch, "best_error": state.best_error}
    write_tensors(path, state.tensors, numbers)


def read_checkpoint(path: Path, mark: str) -> Checkpoint:
    """The checkpoint in a file, refused where it is damaged or belongs to another training."""
    tensors, numbers = read_header_and_tensors(path, _REMEDY)
    if numbers.get("mark") != mark:
        raise InvalidFile(path, "header", "It is of a training with other settings or shadow models.", _REMEDY)
    try:
        return Checkpoint(mark, int(numbers["done"]), int(numbers["best_epoch"]), float(numbers["best_error"]), tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFile(path, "header", f"It does not say where training stood ({error}).", _REMEDY) from error


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Path:
    """Named tensors and a header of plain values in one safetensors file."""
    text = json.dumps(header)
    content = {name: value.contiguous() for name, value in tensors.items()}
    return write_whole(path, lambda where: save_file(content, where, metadata={_KEY: text}))


def read_header_and_tensors(path: str | Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`write_tensors` wrote; anything else is refused, naming the file."""
    path = Path(path)
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", remedy)
    try:
        with safe_open(path, framework="pt") as opened:
            header = json.loads((opened.metadata() or {})[_KEY])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidFile(path, "whole file", f"It cannot be read ({str(error).splitlines()[0]}).", remedy) from error
    except KeyError as error:
        raise InvalidFile(path, "header", "It holds tensors, but was not written by reconrisk.", remedy) from error
    if not isinstance(header, dict):
        raise InvalidFile(path, "header", "It is no set of named values.", remedy)
    return tensors, header


def _under(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
