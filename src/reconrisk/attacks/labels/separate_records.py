"""Separation of the records of a small batch, and of their labels, by the gradient of the output layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_ITERATIONS = 20  # Gauss-Newton steps per start; convergence is quadratic near a solution
_STARTS = 20  # starts per class, at most
_ROUNDS = 6  # rounds of finding records and subtracting them
_WORK = 100_000  # starts x classes x unknowns: a few tenths of a second
_ACCEPTED = 0.05  # largest residual of a record: true ones leave 1e-7 to 1e-2, false ones mostly above 0.1
_SURE = 1e-4  # residual below which a record is accepted in any case
_ROUNDING = 3e-7  # rounding of float32 gradients, relative to their norm


@dataclass(frozen=True, eq=False)
class SeparatedRecords:
    """Records that were separated from a gradient.

    Attributes:
        labels: Labels of the separated records.
        divisors: Factor by which clipping divided each record.
        rest: Gradient that remains for the other records.
    """

    labels: list[int]
    divisors: list[float]
    rest: Tensor


def separate(
    gradient: Tensor,
    parameters: Tensor,
    records: int,
    *,
    direction: Tensor,
    offset: Tensor | float = 0.0,
    biased: bool = True,
    sized: bool = True,
    noise_std: float = 0.0,
) -> SeparatedRecords:
    r"""Find single records in the summed gradient of an output layer under cross-entropy.

    .. math:: G = \sum_i d_i \tilde h_i^T = U S V^T, \qquad d_i = \mathrm{softmax}(P \tilde h_i) - e_{y_i}

    Here :math:`\tilde h_i` are the features of record i (with a one for the bias), :math:`d_i` is the derivative of its
    training loss in the outputs, and :math:`e_{y_i}` its label, one-hot. U, S and V are the singular value
    decomposition of G. The features of the records span the rows of G, so :math:`\tilde h = V a`. With the right label
    and features, d lies in the span of U and :math:`a^T S^{-1} U^T d = 1`. These equations are solved for each class by
    damped Gauss-Newton from several starts, in as many unknowns as there are records. Found records are subtracted from
    G, and the search continues on the rest.

    Args:
        gradient: G, one row per class.
        parameters: P, one row per class.
        records: Number of records in the batch.
        direction: Vector that maps features to 1, exactly if ``biased`` (the column of the bias), else approximately.
        offset: Constant part of the outputs.
        biased: True if the last column belongs to the bias.
        sized: True if records have their true scale. False allows any factor per record and drops the last equation.
        noise_std: Standard deviation of the noise on the values of G.

    Returns:
        The separated records, and the rest of the gradient.

    Assumes: noise far below the gradient of a single record.
    Guarantee: for at most half as many records as classes, with independent features, there are more equations than
    unknowns, so the residual distinguishes true solutions from false ones.
    Edge cases: of larger batches only records with outstanding gradients are found. Records whose gradient vanishes in
    rounding are not found, and none are found where the effort would exceed about a second.

    >>> features = torch.tensor([[0.3, -1.0, 1.0], [2.0, 0.5, 1.0]], dtype=torch.float64)
    >>> parameters = torch.linspace(-2, 2, 15, dtype=torch.float64).sin().view(5, 3)
    >>> errors = (features @ parameters.T).softmax(1) - nn.functional.one_hot(torch.tensor([3, 1]), 5)
    >>> bias = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    >>> sorted(separate(errors.T @ features, parameters, 2, direction=bias).labels)
    [1, 3]
    """
    # An exact gradient sums to zero over classes; subtracting the mean removes noise in that direction.
    rest, labels, divisors = gradient - gradient.mean(0), list[int](), list[float]()
    # Singular values below the floor are rounding, or noise of largest singular value sigma (sqrt(m) + sqrt(n)).
    floor = _ROUNDING * float(rest.norm()) + noise_std * (len(rest) ** 0.5 + rest.shape[1] ** 0.5)
    for _ in range(_ROUNDS):
        space = _Space.from_gradient(rest, records - len(labels), floor)
        if space is None or _estimate_work(space) > 2 * _WORK:
            break
        problem = _Problem(space, parameters @ space.right, offset, direction @ space.right, biased, sized)
        found = problem.find_records(rest @ direction)
        if not found:
            break
        labels += [record.label for record in found]
        divisors += [record.divisor for record in found]
        rest = rest - torch.stack([record.part for record in found]).sum(0)
    return SeparatedRecords(labels, divisors, rest)


@dataclass(frozen=True, eq=False)
class _Record:
    """A record that was found, with its part of the gradient."""

    label: int
    divisor: float
    part: Tensor


@dataclass(frozen=True, eq=False)
class _Point:
    """Candidates with the residual of their equations and the terms of its derivative."""

    coordinates: Tensor
    probabilities: Tensor
    errors: Tensor
    residual: Tensor
    loss: Tensor


@dataclass(frozen=True, eq=False)
class _Space:
    """Singular vectors of a gradient that may come from records."""

    left: Tensor
    sizes: Tensor
    right: Tensor

    @classmethod
    def from_gradient(cls, gradient: Tensor, records: int, floor: float) -> _Space | None:
        """Keep singular values above ``floor``; if these are too many to separate, those before the largest gap."""
        if records == 0:
            return None
        left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
        rank, most = int((sizes > floor).sum()), min(records, len(gradient) // 2)
        if rank == 0:
            return None
        if rank > most:
            # Too many records to separate: keep the directions before the largest drop.
            rank = 1 + int((sizes[1 : most + 1] / sizes[:most]).argmin())
        return cls(left[:, :rank], sizes[:rank], right[:rank].T)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Equations for one record; ``outputs`` and ``direction`` act on coordinates among the right vectors."""

    space: _Space
    outputs: Tensor
    offset: Tensor | float
    direction: Tensor
    biased: bool
    sized: bool

    def find_records(self, amounts: Tensor) -> list[_Record]:
        """Return the records found in a gradient whose rows have these ``amounts``."""
        labels, starts = self._starts(amounts)
        point = self._solve(labels, starts)
        # Dual coordinates S^-1 U^T d, which give 1 (or the clipping factor) with the record's own coordinates.
        duals = point.errors @ self.space.left / self.space.sizes
        scales = (point.coordinates * duals).sum(1)
        found: list[int] = []
        loss = point.loss.masked_fill(
            ~(scales > 0.5), torch.inf
        )  # the true scale is 1, or larger if the update was clipped
        enough = min(
            _ACCEPTED**2, max(_SURE**2, 100 * float(loss.min()))
        )  # accept the best first: subtracting them makes the rest easier
        for index in loss.argsort().tolist():
            if not loss[index] < enough or len(found) == len(self.space.sizes):
                break
            # Different records are dual to each other, a_i S^-1 U^T d_j = 0; for copies of one it is the scale.
            overlaps = (point.coordinates[found] @ duals[index]).abs() > 0.2 * scales[index].abs()
            if not bool(overlaps.any()):
                found.append(index)
        features = point.coordinates @ self.space.right.T
        parts = [torch.outer(point.errors[i], features[i]) / scales[i] for i in found]
        return [_Record(int(labels[i]), float(scales[i]), part) for i, part in zip(found, parts, strict=True)]

    def _starts(self, amounts: Tensor) -> tuple[Tensor, Tensor]:
        """Return labels and starting coordinates: random averages of class means, dominated by the label's own."""
        strength = (self.space.left * self.space.sizes).norm(dim=1)
        classes = strength.argsort(descending=True)[: _count_candidates(self.space)]
        # Fewer starts for larger problems, to bound the time.
        count = max(1, min(_STARTS, _WORK // _estimate_work(self.space)))
        # Bound small amounts away from zero: they divide the rows.
        smallest = 1e-3 * amounts.abs().max().clamp_min(torch.finfo(amounts.dtype).tiny)
        amounts = torch.where(amounts.abs() < smallest, smallest, amounts)[classes]
        means = (self.space.left * self.space.sizes)[classes] / amounts[:, None]
        rng = torch.Generator().manual_seed(
            0
        )  # fixed seed: the starts are part of the method and equal for every observation
        mixture = (
            torch.rand((count, len(classes), len(classes)), generator=rng, dtype=means.dtype).to(means.device) ** 4
        )
        mixture[0] = 0  # the first start is the class mean alone; the power 4 keeps mixtures sparse
        mixture = mixture + torch.eye(len(classes), dtype=means.dtype, device=means.device)
        mixed = mixture / mixture.sum(2, keepdim=True) @ means
        return classes.repeat(count), mixed.flatten(0, 1)

    def _evaluate(self, labels: Tensor, coordinates: Tensor) -> _Point:
        """Evaluate the equations at ``coordinates``."""
        outputs = coordinates @ self.outputs.T + self.offset
        probabilities = outputs.softmax(1)
        own = nn.functional.one_hot(labels, outputs.shape[1]).bool()
        others = probabilities.masked_fill(own, 0.0)
        errors = torch.where(
            own, -others.sum(1, keepdim=True), probabilities
        )  # minus the others, since p - 1 loses all digits near p = 1
        # Normalised, so that confident records with tiny errors count as much as others.
        unit = nn.functional.normalize(errors, dim=1, eps=1e-300)
        parts = [unit - unit @ self.space.left @ self.space.left.T]
        if self.sized:
            parts.append((coordinates * (errors @ self.space.left / self.space.sizes)).sum(1, keepdim=True) - 1)
        if self.biased:
            parts.append((coordinates @ self.direction)[:, None] - 1)
        residual = torch.cat(parts, dim=1)
        loss = residual.square().sum(1).nan_to_num(torch.inf)
        return _Point(coordinates, probabilities, errors, residual, loss)

    def _jacobian(self, point: _Point) -> Tensor:
        """Return the derivative of the residual with respect to the coordinates."""
        mean = point.probabilities @ self.outputs
        # Derivative of the softmax along the coordinates.
        slope = point.probabilities[:, :, None] * (self.outputs - mean[:, None, :])
        norm = point.errors.norm(dim=1).clamp_min(1e-300)[:, None, None]
        unit = point.errors[:, :, None] / norm
        # Derivative of the normalised error: the part of the slope orthogonal to it.
        turned = (slope - unit * (unit * slope).sum(1, keepdim=True)) / norm
        parts = [turned - self.space.left @ (self.space.left.T @ turned)]
        if self.sized:
            dual = self.space.left / self.space.sizes
            along = (point.coordinates @ dual.T)[:, None, :] @ slope
            parts.append((point.errors @ dual)[:, None, :] + along)
        if self.biased:
            parts.append(self.direction.expand(len(norm), 1, -1))
        return torch.cat(parts, dim=1)

    def _solve(self, labels: Tensor, starts: Tensor) -> _Point:
        """Run damped Gauss-Newton from all starts at once."""
        point = self._evaluate(labels, starts)
        damping = torch.full_like(point.loss, 1e-3)
        for _ in range(_ITERATIONS):
            jacobian = self._jacobian(point)
            normal = jacobian.mT @ jacobian
            diagonal = normal.diagonal(dim1=1, dim2=2)
            # The tiny constant keeps the matrix regular where a diagonal entry vanishes.
            damped = normal + torch.diag_embed(damping[:, None] * diagonal + 1e-30)
            step, _ = torch.linalg.solve_ex(damped, jacobian.mT @ point.residual[:, :, None])
            tried = self._evaluate(labels, point.coordinates - step[:, :, 0])
            better = tried.loss < point.loss
            pairs = zip(vars(tried).values(), vars(point).values(), strict=True)
            point = _Point(*(torch.where(better if new.ndim == 1 else better[:, None], new, old) for new, old in pairs))
            damping = torch.where(better, damping / 4, damping * 4).clamp(1e-12, 1e8)  # Levenberg-Marquardt
        return point


def _count_candidates(space: _Space) -> int:
    """Return the number of classes to try; the ones with the largest gradients are tried first."""
    return min(len(space.left), max(10, 2 * len(space.sizes) + 2))


def _estimate_work(space: _Space) -> int:
    """Return the cost of one start, in units of classes times unknowns."""
    return _count_candidates(space) * space.left.numel()
