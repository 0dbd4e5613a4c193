"""Update rules for the candidates of all restarts at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from reconrisk.core.validation import check_nonnegative, check_positive, check_whole, invalid_input

Variables = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Point:
    """Variables of all restarts with their objective and its gradients.

    Attributes:
        variables: Tensors by name, with the restarts along the first axis.
        values: Objective of each restart.
        gradients: Gradients of the objective by name.
        scores: Objective with the final weights of the penalties, to compare candidates of different steps.
    """

    variables: Variables
    values: Tensor
    gradients: Variables
    scores: Tensor


Evaluate = Callable[[Variables], Point]


class UpdateRule(Protocol):
    """Protocol of a rule that moves a point; ``memory`` is the private state of the rule."""

    def begin(self, point: Point) -> Any:
        """Return the initial memory."""
        ...

    def step(self, evaluate: Evaluate, point: Point, memory: Any, progress: float) -> tuple[Point, Any]:
        """Return the next point and memory.

        Args:
            evaluate: Evaluates the objective.
            point: The current point.
            memory: The current memory.
            progress: Share of the budget that is spent.

        Returns:
            The point after the step, evaluated, and the memory for the step after it.
        """
        ...


@dataclass(frozen=True)
class Adam:
    """Adam with a learning rate that falls over the budget.

    Attributes:
        learning_rate: Initial learning rate, in units of the data range.
        signed: True to use only the signs of the gradient.
        schedule: "steps" divides the rate by ten after 3/8, 5/8 and 7/8 of the budget, as Inverting Gradients does;
            "cosine" lets it fall smoothly to almost zero; "constant" keeps it.
        momentum: Decay of the mean of gradients.
        second: Decay of the mean of squared gradients.

    Reference: `Kingma and Ba (2015) <https://arxiv.org/abs/1412.6980>`_; signs after
    `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_.
    """

    learning_rate: float = 0.1
    signed: bool = False
    schedule: str = "steps"
    momentum: float = 0.9
    second: float = 0.999

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        if self.schedule not in ("steps", "cosine", "constant"):
            raise invalid_input("schedule", self.schedule, 'to be "steps", "cosine" or "constant"')

    def begin(self, point: Point) -> Any:
        """Return a zero step count and zero averages."""
        zeros = {name: torch.zeros_like(value) for name, value in point.variables.items()}
        return 0, zeros, dict(zeros)

    def step(self, evaluate: Evaluate, point: Point, memory: Any, progress: float) -> tuple[Point, Any]:
        """Take one step of Adam, with one evaluation."""
        count, means, squares = memory
        count += 1
        rate = self.learning_rate * self.factor(progress)
        variables: Variables = {}
        means, squares = dict(means), dict(squares)
        for name, gradient in point.gradients.items():
            # A NaN coordinate stays where it is instead of spoiling the averages.
            slope = gradient.nan_to_num()
            slope = slope.sign() if self.signed else slope
            means[name] = torch.lerp(means[name], slope, 1 - self.momentum)
            squares[name] = torch.lerp(squares[name], slope.square(), 1 - self.second)
            # Bias correction of the running means, Algorithm 1 of Kingma and Ba.
            mean = means[name] / (1 - self.momentum**count)
            size = (squares[name] / (1 - self.second**count)).sqrt() + 1e-8
            variables[name] = point.variables[name] - rate * mean / size
        return evaluate(variables), (count, means, squares)

    def factor(self, progress: float) -> float:
        """Return the share of the learning rate that is left when ``progress`` of the budget is spent.

        >>> [Adam().factor(progress) for progress in (0, 0.5, 1)]
        [1.0, 0.1, 0.001]
        """
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))) + 1e-3  # never quite 0, so the last steps move
        # A literal such as 1e-3 is exact, while repeated products with 0.1 round.
        return float(f"1e-{sum(progress >= eighths / 8 for eighths in (3, 5, 7))}")


@dataclass(frozen=True)
class _Curvature:
    """Pairs of steps and gradient changes of L-BFGS, oldest first."""

    steps: list[Tensor] = field(default_factory=list)
    changes: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class LBFGS:
    """Limited-memory BFGS for each restart separately, with backtracking so that no objective rises.

    Attributes:
        memory: Number of curvature pairs.
        trials: Largest number of step halvings. A restart without decrease stays where it is and forgets its curvature.
        decrease: Sufficient-decrease constant of the Armijo rule.

    Assumes: a smooth objective.
    Reference: Algorithm 7.4, Nocedal and Wright (2006), Numerical Optimization.
    """

    memory: int = 30
    trials: int = 12
    decrease: float = 1e-4

    def __post_init__(self) -> None:
        check_whole("memory", self.memory)
        check_whole("trials", self.trials)
        check_nonnegative("decrease", self.decrease)

    def begin(self, point: Point) -> Any:
        """Return an empty curvature memory."""
        return _Curvature()

    def step(self, evaluate: Evaluate, point: Point, memory: Any, progress: float) -> tuple[Point, Any]:
        """Take one step along the quasi-Newton direction, halved until the objective falls."""
        del progress
        here, slope = _flat(point.variables), _flat(point.gradients)
        newton, curved = _inverse_hessian_times(memory, slope)
        direction = -newton
        descent = (direction * slope).sum(1)
        downhill = descent < 0
        # Fall back to steepest descent where the quasi-Newton direction goes uphill.
        direction = torch.where(downhill[:, None], direction, -slope)
        descent = torch.where(downhill, descent, -slope.square().sum(1))
        # Without curvature a step has no scale: limit it to a twentieth of the range, root mean square.
        limit = 0.05 * math.sqrt(direction.shape[1]) / direction.norm(dim=1).clamp_min(1e-30)
        shrink = torch.where(curved, torch.ones_like(limit), limit.clamp_max(1.0))
        direction, descent = direction * shrink[:, None], descent * shrink
        length = torch.ones_like(point.values)
        best = point
        settled = torch.zeros_like(point.values, dtype=torch.bool)
        for _ in range(self.trials):
            proposal = evaluate(_unflat(here + length[:, None] * direction, point.variables))
            good = ~settled & (
                proposal.values <= point.values + self.decrease * length * descent
            )  # comparisons with NaN are False
            best = select_points(good, proposal, best)
            settled = settled | good
            if bool(settled.all()):
                break
            # Only restarts without sufficient decrease halve their step.
            length = torch.where(settled, length, length / 2)
        return best, self._update_curvature(memory, best, here, slope, settled)

    def _update_curvature(
        self, memory: _Curvature, best: Point, here: Tensor, slope: Tensor, moved: Tensor
    ) -> _Curvature:
        """Append the latest curvature pair, and clear the memory of restarts that did not move."""
        if not bool(moved.all()):  # zero pairs have no effect in the two-loop recursion
            kept = moved[:, None].to(here.dtype)
            memory = _Curvature([kept * past for past in memory.steps], [kept * past for past in memory.changes])
        step, change = _flat(best.variables) - here, _flat(best.gradients) - slope
        # Curvature condition s^T y > 0, with a margin for rounding: the inverse Hessian must stay positive definite.
        curved = (step * change).sum(1) > 1e-10 * step.norm(dim=1) * change.norm(dim=1)
        step, change = step * curved[:, None], change * curved[:, None]
        # Room for one more pair; a slice from -0 would keep all.
        keep = slice(-self.memory + 1, None) if self.memory > 1 else slice(0, 0)
        return _Curvature([*memory.steps[keep], step], [*memory.changes[keep], change])


def select_points(which: Tensor, new: Point, old: Point) -> Point:
    """Select for each restart the new point where a mask is true, else the old one.

    Args:
        which: Mask over the restarts.
        new: Point to take where the mask is true.
        old: Point to take elsewhere.

    Returns:
        The combined point.
    """

    def pick(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(which.view(-1, *[1] * (one.ndim - 1)), one, other)

    return Point(
        {name: pick(value, old.variables[name]) for name, value in new.variables.items()},
        pick(new.values, old.values),
        {name: pick(value, old.gradients[name]) for name, value in new.gradients.items()},
        pick(new.scores, old.scores),
    )


def _inverse_hessian_times(memory: _Curvature, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Run the two-loop recursion for every restart; also return the restarts that have curvature."""
    tiny = torch.finfo(vector.dtype).tiny
    weights = []
    for step, change in zip(reversed(memory.steps), reversed(memory.changes), strict=True):
        inner = (step * change).sum(1)
        weight = torch.where(inner > 0, (step * vector).sum(1) / inner.clamp_min(tiny), 0.0)
        vector = vector - weight[:, None] * change
        weights.append((weight, inner))
    weights.reverse()
    scale, curved = torch.ones_like(vector[:, 0]), torch.zeros_like(vector[:, 0], dtype=torch.bool)
    for (_, inner), change in zip(
        weights, memory.changes, strict=True
    ):  # scale of the newest nonzero pair, Eq. (7.20) of Nocedal and Wright
        scale = torch.where(inner > 0, inner / change.square().sum(1).clamp_min(tiny), scale)
        curved = curved | (inner > 0)
    vector = scale[:, None] * vector
    for (weight, inner), step, change in zip(weights, memory.steps, memory.changes, strict=True):
        other = torch.where(inner > 0, (change * vector).sum(1) / inner.clamp_min(tiny), 0.0)
        vector = vector + (weight - other)[:, None] * step
    return vector, curved


def _flat(variables: Variables) -> Tensor:
    return torch.cat([value.flatten(1) for value in variables.values()], dim=1)


def _unflat(flat: Tensor, like: Variables) -> Variables:
    parts = flat.split([value[0].numel() for value in like.values()], dim=1)
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}
