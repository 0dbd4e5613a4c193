"""A release: what leaves the machine as a function of private records, and its derivative at them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import ForwardMap
from reconrisk.core.validation import check_all_finite, check_not_empty, refuse


@dataclass(frozen=True, eq=False)
class Linearized:
    """The derivative J of a release at ``records``, as products with vectors from either side.

    ``push`` maps a change of the records, shaped as they are, to the change of what is released. ``pull`` maps weights
    on what is released to the derivative of that weighted sum by the records: its block i belongs to record i.
    """

    push: Callable[[Tensor], dict[str, Tensor]]
    pull: Callable[[Mapping[str, Tensor]], Tensor]
    records: Tensor


class Release(ABC):
    """Private records together with the map to what is released of them. An attack gets ``forward`` only."""

    inputs: Tensor
    labels: Tensor

    @property
    @abstractmethod
    def forward(self) -> ForwardMap:
        """The map from records and labels to what is released; it holds no private record."""

    def value(self) -> dict[str, Tensor]:
        """What is released."""
        return {name: tensor.detach() for name, tensor in self.forward(self.inputs, self.labels).items()}

    def template(self) -> dict[str, Tensor]:
        """Tensors shaped as what is released."""
        return self.value()

    def blocks(self, size: int | None = None) -> Iterator[Linearized]:
        """The derivative in groups of records: all at once here, ``size`` at a time where records do not interact.

        Each part's ``pull`` has one block per record of its group; ``push`` takes changes of the group.
        """
        del size  # in general a record's part of the release depends on the others
        yield self.linearized()

    def linearized(self) -> Linearized:
        """The derivative at the records, by reverse mode once for ``pull`` and twice for ``push``.

        Assumes: every layer can be differentiated twice. The graph is built once and shared by all products.
        """
        leaf = self.inputs.detach().clone().requires_grad_()
        with torch.enable_grad():
            released = dict(self.forward(leaf, self.labels))
        return linearized(leaf, released)


@dataclass(frozen=True, eq=False)
class ForwardRelease(Release):
    """The release of any callable from records and labels to named tensors.

    >>> double = ForwardRelease(lambda inputs, labels: {"y": 2 * inputs.sum(0)}, torch.ones(3, 2), torch.zeros(3))
    >>> double.value()["y"]
    tensor([6., 6.])
    >>> double.linearized().pull({"y": torch.ones(2)}).shape
    torch.Size([3, 2])
    """

    map: ForwardMap
    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        check_records(self.inputs, self.labels)

    @property
    def forward(self) -> ForwardMap:
        """The callable itself."""
        return self.map


def linearized(leaf: Tensor, released: Mapping[str, Tensor]) -> Linearized:
    """The derivative of ``released`` by ``leaf``, of whose graph it is part."""
    names = [name for name, tensor in released.items() if tensor.requires_grad]
    outputs = [released[name] for name in names]

    def pull(cotangents: Mapping[str, Tensor]) -> Tensor:
        if not outputs:
            return torch.zeros_like(leaf)
        weights = [_shaped(name, cotangents, tensor) for name, tensor in zip(names, outputs, strict=True)]
        return torch.autograd.grad(outputs, leaf, weights, retain_graph=True, materialize_grads=True)[0]

    transposed: list[tuple[list[Tensor], Tensor]] = []

    def push(tangents: Tensor) -> dict[str, Tensor]:
        zeros = {name: torch.zeros_like(tensor) for name, tensor in released.items()}
        if not outputs:
            return zeros
        if not transposed:  # J v is the derivative of J^T u in u: reuses the graph instead of tracing forward mode
            probes = [torch.zeros_like(tensor, requires_grad=True) for tensor in outputs]
            (pulled,) = torch.autograd.grad(outputs, leaf, probes, create_graph=True, materialize_grads=True)
            transposed.append((probes, pulled))
        probes, pulled = transposed[0]
        if not pulled.requires_grad:
            return zeros
        moved = torch.autograd.grad(pulled, probes, tangents, retain_graph=True, materialize_grads=True)
        return {**zeros, **dict(zip(names, moved, strict=True))}

    return Linearized(push, pull, leaf.detach())


def check_records(inputs: Tensor, labels: Tensor) -> None:
    """Refuse records that are empty, not finite or not floating point, or that do not match their labels."""
    for name, value in (("inputs", inputs), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise refuse(name, type(value).__name__, "to be a torch.Tensor", f"Pass torch.as_tensor({name}).")
        if value.ndim == 0:
            raise refuse(f"{name}.shape", (), "to begin with the number of records", f"Pass {name}[None].")
    check_not_empty("inputs", inputs)
    if not inputs.is_floating_point():
        raise refuse("inputs.dtype", inputs.dtype, "to be floating point", "Convert with inputs.float().")
    check_all_finite("inputs", inputs, "Remove or impute what is missing.")
    check_labels(inputs, labels)


def check_labels(inputs: Tensor, labels: Tensor) -> None:
    """Refuse labels that are not one per record."""
    if len(inputs) != len(labels):
        raise InvalidInput(f"Expected one label per record, {len(inputs)} records came with {len(labels)} labels.")


def rows_among(records: Tensor, known: Tensor) -> tuple[int, ...]:
    """Return the rows of ``records`` whose content, in single precision, is that of one of ``known``.

    Args:
        records: The records that are looked at, (n, *shape).
        known: The records that they are compared with, (m, *shape).

    >>> rows_among(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0]]).double())
    (1,)
    """
    contents = {row.tobytes() for row in _comparable_rows(known)}
    return tuple(place for place, row in enumerate(_comparable_rows(records)) if row.tobytes() in contents)


def _comparable_rows(records: Tensor) -> np.ndarray:
    values = records.detach().float().flatten(1).numpy()
    return np.ascontiguousarray(values + 0.0)  # minus zero is zero


def _shaped(name: str, cotangents: Mapping[str, Tensor], like: Tensor) -> Tensor:
    if name not in cotangents or cotangents[name].shape != like.shape:
        came = tuple(cotangents[name].shape) if name in cotangents else None
        raise refuse(f"cotangents[{name!r}].shape", came, f"to be {tuple(like.shape)}, the shape of what is released")
    return cotangents[name].to(like.dtype)
