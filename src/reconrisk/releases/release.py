"""A release: private records together with the forward map to what leaves the machine. Attacks get the map only.

``linearized()`` gives products with the Jacobian from either side, by plain autograd. ``blocks()`` gives the same in
groups of records, where records do not interact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import ForwardMap
from reconrisk.core.validation import check_all_finite, check_all_numbers, check_not_empty, check_real, invalid_input


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
        weights = [take_cotangent(name, cotangents, tensor) for name, tensor in zip(names, outputs, strict=True)]
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
            raise invalid_input(name, type(value).__name__, "to be a torch.Tensor", f"Pass torch.as_tensor({name}).")
        if value.ndim == 0:
            raise invalid_input(f"{name}.shape", (), "to begin with the number of records", f"Pass {name}[None].")
    check_not_empty("inputs", inputs)
    if not inputs.is_floating_point():
        raise invalid_input("inputs.dtype", inputs.dtype, "to be floating point", "Convert with inputs.float().")
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
    values = (each.detach().float().flatten(1).numpy() + 0.0 for each in (records, known))  # minus zero is zero
    rows, contents = ([row.tobytes() for row in np.ascontiguousarray(each)] for each in values)
    return tuple(place for place, row in enumerate(rows) if row in set(contents))


def take_cotangent(name: str, cotangents: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Return the weights on one released tensor, in its precision; refuse those of another shape."""
    if name not in cotangents or cotangents[name].shape != like.shape:
        came = tuple(cotangents[name].shape) if name in cotangents else None
        raise invalid_input(
            f"cotangents[{name!r}].shape", came, f"to be {tuple(like.shape)}, the shape of what is released"
        )
    return cotangents[name].to(like.dtype)


NoiseStd = float | Mapping[str, Tensor | float] | None


def standard_normal_weights(
    released: Mapping[str, Tensor], noise_std: NoiseStd, rng: torch.Generator
) -> dict[str, Tensor]:
    r"""A draw of u ~ N(0, Sigma^-1) shaped as ``released``: E |(J^T u)_i|^2 is the trace of record i's information.

    Assumes: independent noise of standard deviation ``noise_std`` on every released value.
    Edge cases: ``inf`` gives the weight 0; None is unit noise.

    >>> released = {"weight": torch.zeros(2), "bias": torch.zeros(1)}
    >>> drawn = standard_normal_weights(released, {"weight": 0.1, "bias": torch.inf}, torch.Generator().manual_seed(0))
    >>> drawn["weight"].shape, drawn["bias"].any()
    (torch.Size([2]), tensor(False))
    """
    return whitened({name: standard_normal(tensor, rng) for name, tensor in released.items()}, noise_std)


def standard_normal(like: Tensor, rng: torch.Generator) -> Tensor:
    """Standard normal values in the shape and precision of ``like``, drawn on the generator's device."""
    return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=rng.device).to(like.device)


def whitened(tensors: Mapping[str, Tensor], noise_std: NoiseStd) -> dict[str, Tensor]:
    r"""Released values, or changes of them, divided by the noise: Sigma^(-1/2) t, whose noise has unit variance.

    Edge cases: a coordinate with ``inf`` becomes 0; None leaves everything as it is. Twice whitened is Sigma^-1 t.

    >>> whitened({"weight": torch.ones(2)}, 0.5)
    {'weight': tensor([2., 2.])}
    """
    if noise_std is None:
        return dict(tensors)
    stds = noise_stds(tensors, noise_std)
    return {name: tensor / stds[name] for name, tensor in tensors.items()}


def noise_stds(released: Mapping[str, Tensor], noise_std: NoiseStd) -> dict[str, Tensor]:
    """The standard deviation for each released name, checked, in the precision of what is released.

    >>> noise_stds({"weight": torch.ones(2)}, None)
    {'weight': tensor(1.)}
    """
    if not isinstance(noise_std, Mapping):
        number = 1.0 if noise_std is None else noise_std
        return {name: _checked("noise_std", number, tensor) for name, tensor in released.items()}
    unknown, missing = sorted(set(noise_std) - set(released)), sorted(set(released) - set(noise_std))
    if unknown or missing:
        raise InvalidInput(
            f"Expected noise_std for each released name; without a value: {missing}, not released: {unknown}. "
            "Use inf for what is not released."
        )
    return {name: _checked(f"noise_std[{name!r}]", noise_std[name], tensor) for name, tensor in released.items()}


def directions_rng(rng: torch.Generator | None) -> torch.Generator:
    """The generator to draw directions from; without one the same directions are drawn each time.

    >>> directions_rng(None).initial_seed()
    0
    """
    if rng is None:
        return torch.Generator().manual_seed(0)
    if not isinstance(rng, torch.Generator):
        raise invalid_input("rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0).")
    return rng


def _checked(name: str, value: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        if value.dim() and value.shape != like.shape:
            raise invalid_input(
                f"{name}.shape", tuple(value.shape), f"to be {tuple(like.shape)}, that of what is released"
            )
        given = value.detach()
        check_all_numbers(name, given)
    else:
        given = torch.tensor(check_real(name, value), dtype=torch.float64)
    if not bool((given > 0).all()):
        raise invalid_input(
            name, float(given.min()), "> 0", "Use None for the bare Jacobian, inf for what is not released."
        )
    std = given.to(like)
    if bool(((std == 0) | (std.isinf() & ~given.isinf())).any()):  # would read as no noise, or as not released
        raise invalid_input(name, float(given.min()), f"to be representable in {like.dtype}", "Pass inputs.double().")
    return std
