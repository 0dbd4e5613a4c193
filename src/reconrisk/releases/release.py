"""Releases: private records with the forward map to the tensors that leave the machine. Attacks get the map only.

``linearize()`` gives products with the Jacobian from either side, by plain autograd. ``blocks()`` gives the same in
groups of records, for releases in which records do not interact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import ForwardMap
from reconrisk.core.validation import check_all_finite, check_all_numbers, check_not_empty, check_real, invalid_input


@dataclass(frozen=True, eq=False)
class Linearized:
    """The derivative J of a release at its records, as products with vectors from either side.

    Attributes:
        push: Maps a change of the records, in their shape, to the change of the released tensors (J v).
        pull: Maps weights on the released tensors to the gradient of the weighted sum with respect to the records
            (J^T u); row i belongs to record i.
        records: The records at which the derivative is taken.
    """

    push: Callable[[Tensor], dict[str, Tensor]]
    pull: Callable[[Mapping[str, Tensor]], Tensor]
    records: Tensor


class Release(ABC):
    """Private records together with the map to the released tensors; an attack gets ``forward`` only.

    Subclasses define :attr:`forward` and set two attributes.

    Attributes:
        inputs: Private records, ``(n, *shape)``.
        labels: Private labels, one per record.
    """

    inputs: Tensor
    labels: Tensor

    @property
    @abstractmethod
    def forward(self) -> ForwardMap:
        """The map from records and labels to the released tensors; it holds no private record."""

    def value(self) -> dict[str, Tensor]:
        """Return the released tensors by name."""
        return {name: tensor.detach() for name, tensor in self.forward(self.inputs, self.labels).items()}

    def template(self) -> dict[str, Tensor]:
        """Return tensors in the shapes of the released ones."""
        return self.value()

    def blocks(self, size: int | None = None) -> Iterator[Linearized]:
        """Yield the derivative in groups of records.

        In general all records are one group; releases whose records do not interact yield ``size`` records at a time.
        The ``pull`` of each group returns one row per record of the group, and ``push`` takes changes of the group.

        Args:
            size: Records per group; None for a suitable number.

        Yields:
            One derivative per group.

        Raises:
            InvalidInput: As :meth:`linearize`.
        """
        with self._refuse_broken_graphs():
            groups = self._blocks(size)
            for group in groups:
                self.check_derivative()
                yield group

    def linearize(self) -> Linearized:
        """Return the derivative at the records.

        Returns:
            Products with the Jacobian from either side.

        Raises:
            InvalidInput: If the derivative disagrees with finite differences; see :meth:`check_derivative`.
        """
        with self._refuse_broken_graphs():
            linear = self._linearize()
        self.check_derivative()
        return linear

    def check_derivative(self) -> None:
        """Compare the derivative with finite differences, once for each release.

        Raises:
            InvalidInput: If they disagree, or values are not finite. The error names the first layer that breaks the
                derivative, and the remedy.
        """
        if vars(self).get("_has_derivative"):
            return
        from reconrisk.releases.derivative_check import check_derivative  # imports this module
        from reconrisk.releases.observe import find_loss, find_model  # imports this module

        check_derivative(
            self.forward,
            self.inputs,
            self.labels,
            model=find_model(self.forward),
            loss_fn=find_loss(self.forward),
            records=self._records_to_check(),
        )
        object.__setattr__(self, "_has_derivative", True)

    def _blocks(self, size: int | None) -> Iterator[Linearized]:
        """Yield the derivative in groups of records, unchecked."""
        del size  # in general a record's part of the release depends on the others
        yield self._linearize()

    def _linearize(self) -> Linearized:
        """Return the derivative, unchecked, by reverse mode once for ``pull`` and twice for ``push``.

        Assumes: every layer can be differentiated twice. The graph is built once and shared by all products.
        """
        leaf = self.inputs.detach().clone().requires_grad_()
        with torch.enable_grad():
            released = dict(self.forward(leaf, self.labels))
        return linearize_graph(leaf, released)

    def _records_to_check(self) -> int | None:
        """Return the number of records that suffice for the check; None if the map needs all of them."""
        return None

    @contextmanager
    def _refuse_broken_graphs(self) -> Iterator[None]:
        """Let the check explain an error of torch, since it names the layer and the remedy."""
        try:
            yield
        except RuntimeError:
            self.check_derivative()
            raise


@dataclass(frozen=True, eq=False)
class ForwardRelease(Release):
    """The release of any callable from records and labels to named tensors.

    Attributes:
        map: The callable.
        inputs: Private records, ``(n, *shape)``, floating point and finite.
        labels: Private labels, one per record.

    >>> double = ForwardRelease(lambda inputs, labels: {"y": 2 * inputs.sum(0)}, torch.ones(3, 2), torch.zeros(3))
    >>> double.value()["y"]
    tensor([6., 6.])
    >>> double.linearize().pull({"y": torch.ones(2)}).shape
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


def linearize_graph(leaf: Tensor, released: Mapping[str, Tensor]) -> Linearized:
    """Return the derivative of released tensors with respect to the leaf of their autograd graph.

    Args:
        leaf: The records, a leaf that requires gradients.
        released: Tensors by name that were computed from ``leaf``.

    Returns:
        Products with the Jacobian from either side; both keep the graph.

    >>> leaf = torch.ones(1, 2, requires_grad=True)
    >>> linearize_graph(leaf, {"y": 3 * leaf}).push(torch.ones(1, 2))
    {'y': tensor([[3., 3.]])}
    """
    names = [name for name, tensor in released.items() if tensor.requires_grad]
    outputs = [released[name] for name in names]

    def pull(cotangents: Mapping[str, Tensor]) -> Tensor:
        if not outputs:  # nothing that is released depends on the records
            return torch.zeros_like(leaf)
        weights = [take_cotangent(name, cotangents, tensor) for name, tensor in zip(names, outputs, strict=True)]
        return torch.autograd.grad(outputs, leaf, weights, retain_graph=True, materialize_grads=True)[0]

    transposed: list[tuple[list[Tensor], Tensor]] = []

    def push(tangents: Tensor) -> dict[str, Tensor]:
        zeros = {name: torch.zeros_like(tensor) for name, tensor in released.items()}
        if not outputs:
            return zeros
        if not transposed:
            # Double backward: J v is the derivative of u -> J^T u, which is linear in the dummy u. This reuses the
            # graph, and needs no forward-mode rule for any layer.
            probes = [torch.zeros_like(tensor, requires_grad=True) for tensor in outputs]
            (pulled,) = torch.autograd.grad(outputs, leaf, probes, create_graph=True, materialize_grads=True)
            transposed.append((probes, pulled))
        probes, pulled = transposed[0]
        if not pulled.requires_grad:  # J is zero
            return zeros
        moved = torch.autograd.grad(pulled, probes, tangents, retain_graph=True, materialize_grads=True)
        return {**zeros, **dict(zip(names, moved, strict=True))}

    return Linearized(push, pull, leaf.detach())


def check_records(inputs: Tensor, labels: Tensor) -> None:
    """Refuse records that are empty, not finite or not floating point, or that do not match their labels.

    Args:
        inputs: Records, ``(n, *shape)``.
        labels: One label per record.

    Raises:
        InvalidInput: If one of these conditions fails.
    """
    for name, value in (("inputs", inputs), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise invalid_input(
                f"type({name})", type(value).__name__, "to be a torch.Tensor", f"Pass torch.as_tensor({name})."
            )
        if value.ndim == 0:
            raise invalid_input(f"{name}.shape", (), "to begin with the number of records", f"Pass {name}[None].")
    check_not_empty("inputs", inputs)
    if not inputs.is_floating_point():
        raise invalid_input("inputs.dtype", inputs.dtype, "to be floating point", "Convert with inputs.float().")
    check_all_finite("inputs", inputs, "Remove or impute missing values.")
    check_labels(inputs, labels)


def check_labels(inputs: Tensor, labels: Tensor) -> None:
    """Refuse labels that are not one per record.

    Args:
        inputs: Records, ``(n, *shape)``.
        labels: Their labels.

    Raises:
        InvalidInput: If the numbers of records and labels differ.
    """
    if len(inputs) != len(labels):
        raise InvalidInput(
            f"Expected one label per record, got {len(inputs)} records with {len(labels)} labels. Pass labels of "
            f"length {len(inputs)}."
        )


def rows_among(records: Tensor, known: Tensor) -> tuple[int, ...]:
    """Return the rows of ``records`` that equal one of the ``known`` records in single precision.

    Args:
        records: Records to look up, ``(n, *shape)``.
        known: Records to compare with, ``(m, *shape)``.

    Returns:
        Row numbers of ``records``, ascending.

    >>> rows_among(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0]]).double())
    (1,)
    """
    values = (each.detach().float().flatten(1).numpy() + 0.0 for each in (records, known))
    # Adding 0.0 turns minus zero into zero, whose bytes differ although the values are equal.
    rows, contents = ([row.tobytes() for row in np.ascontiguousarray(each)] for each in values)
    return tuple(place for place, row in enumerate(rows) if row in set(contents))


def take_cotangent(name: str, cotangents: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Return the weights on one released tensor, in its precision.

    Args:
        name: Name of the released tensor.
        cotangents: Weights by name.
        like: The released tensor.

    Returns:
        The weights in the precision of ``like``.

    Raises:
        InvalidInput: If the weights are missing or have another shape.
    """
    if name not in cotangents or cotangents[name].shape != like.shape:
        shape = tuple(cotangents[name].shape) if name in cotangents else None
        raise invalid_input(f"cotangents[{name!r}].shape", shape, f"to be {tuple(like.shape)}, the released shape")
    return cotangents[name].to(like.dtype)


NoiseStd = float | Mapping[str, Tensor | float] | None


def standard_normal_weights(
    released: Mapping[str, Tensor], noise_std: NoiseStd, rng: torch.Generator
) -> dict[str, Tensor]:
    """Draw u ~ N(0, Sigma^-1) in the shapes of the release.

    Here Sigma is the covariance of the noise. For the Jacobian J of the release, ``E |(J^T u)_i|^2`` is the trace of
    the Fisher information about record i.

    Args:
        released: Released tensors by name, for their shapes.
        noise_std: Standard deviation of the noise: one number, one per name, or None for standard deviation 1.
        rng: Generator of the draw.

    Returns:
        The drawn weights by name.

    Assumes: independent noise of standard deviation ``noise_std`` on every released value.
    Edge cases: ``inf`` gives weight 0; None is noise of standard deviation 1.

    >>> released = {"weight": torch.zeros(2), "bias": torch.zeros(1)}
    >>> drawn = standard_normal_weights(released, {"weight": 0.1, "bias": torch.inf}, torch.Generator().manual_seed(0))
    >>> drawn["weight"].shape, drawn["bias"].any()
    (torch.Size([2]), tensor(False))
    """
    return whiten_by_noise({name: standard_normal(tensor, rng) for name, tensor in released.items()}, noise_std)


def standard_normal(like: Tensor, rng: torch.Generator) -> Tensor:
    """Draw standard normal values in the shape and precision of a tensor.

    Args:
        like: Tensor whose shape, precision and device the result has.
        rng: Generator of the draw; values are drawn on its device.

    Returns:
        The drawn values.
    """
    return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=rng.device).to(like.device)


def whiten_by_noise(tensors: Mapping[str, Tensor], noise_std: NoiseStd) -> dict[str, Tensor]:
    """Divide released values t, or changes of them, by the standard deviation of the noise: Sigma^(-1/2) t.

    Here Sigma is the covariance of the noise. After the division the noise has variance 1.

    Args:
        tensors: Released values or changes of them, by name.
        noise_std: Standard deviation of the noise: one number, one per name, or None to change nothing.

    Returns:
        The whitened tensors by name.

    Edge cases: a coordinate with ``inf`` becomes 0. Whitening twice gives Sigma^-1 t.

    >>> whiten_by_noise({"weight": torch.ones(2)}, 0.5)
    {'weight': tensor([2., 2.])}
    """
    if noise_std is None:
        return dict(tensors)
    stds = noise_stds(tensors, noise_std)
    return {name: tensor / stds[name] for name, tensor in tensors.items()}


def noise_stds(released: Mapping[str, Tensor], noise_std: NoiseStd) -> dict[str, Tensor]:
    """Validate the noise and return its standard deviation for each released name.

    Args:
        released: Released tensors by name.
        noise_std: Standard deviation of the noise: one number, one per name, or None for standard deviation 1.

    Returns:
        Standard deviations by name, in the precision of the released tensors.

    Raises:
        InvalidInput: If a value is not positive, has another shape, is not representable, or if names do not match.

    >>> noise_stds({"weight": torch.ones(2)}, None)
    {'weight': tensor(1.)}
    """
    if not isinstance(noise_std, Mapping):
        number = 1.0 if noise_std is None else noise_std
        return {name: _check_noise_std("noise_std", number, tensor) for name, tensor in released.items()}
    unknown, missing = sorted(set(noise_std) - set(released)), sorted(set(released) - set(noise_std))
    if unknown or missing:
        raise InvalidInput(
            f"Expected noise_std for each released name; without a value: {missing}, not released: {unknown}. "
            "Use inf for tensors that the adversary does not see."
        )
    return {
        name: _check_noise_std(f"noise_std[{name!r}]", noise_std[name], tensor) for name, tensor in released.items()
    }


def directions_rng(rng: torch.Generator | None) -> torch.Generator:
    """Return the generator of random directions: the given one, or a new one with seed 0.

    Args:
        rng: Generator, or None to draw the same directions each time.

    Returns:
        The generator.

    Raises:
        InvalidInput: If ``rng`` is something else.

    >>> directions_rng(None).initial_seed()
    0
    """
    if rng is None:
        return torch.Generator().manual_seed(0)
    if not isinstance(rng, torch.Generator):
        raise invalid_input("rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0).")
    return rng


def _check_noise_std(name: str, value: Tensor | float, like: Tensor) -> Tensor:
    """Return one standard deviation as a tensor like the released one, refusing values that cannot be one."""
    if isinstance(value, Tensor):
        if value.dim() and value.shape != like.shape:
            raise invalid_input(f"{name}.shape", tuple(value.shape), f"to be {tuple(like.shape)}, the released shape")
        given = value.detach()
        check_all_numbers(name, given)
    else:
        given = torch.tensor(check_real(name, value), dtype=torch.float64)
    if not bool((given > 0).all()):
        raise invalid_input(
            f"min({name})",
            float(given.min()),
            "> 0",
            "Pass None for the Jacobian without noise, inf for values that are not released.",
        )
    std = given.to(like)
    # Underflow to 0 would mean no noise, and overflow to inf would mean not released.
    if bool(((std == 0) | (std.isinf() & ~given.isinf())).any()):
        raise invalid_input(
            f"min({name})", float(given.min()), f"to be representable in {like.dtype}", "Pass inputs.double()."
        )
    return std
