"""Inversion of the training map: the unknown record of a trained model, by Gauss-Newton through its training."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.attacks.informed.invert_training.chord import Effort
from reconrisk.attacks.informed.invert_training.problem import (
    DefendedProblem,
    Problem,
    Training,
    only_adds_noise,
    private_noise_std,
    problem_for,
)
from reconrisk.attacks.informed.invert_training.search import EXACT, Inversion
from reconrisk.attacks.informed.invert_training.weighted import WeightedProblem
from reconrisk.attacks.labels.infer import class_labels_or_none
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import (
    check_all_finite,
    check_all_within,
    check_finite,
    check_not_empty,
    check_positive,
    check_whole,
    invalid_input,
)
from reconrisk.releases.observe import DefendedMap
from reconrisk.releases.shadow.release import PrivateTrainingMap
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.trained_model import TrainedModelRelease, TrainingMap

NEEDS = ThreatModel(sees=Sees.FINAL_MODEL, knows=frozenset({Knows.OTHER_RECORDS, Knows.INITIALISATION}))
"""Weakest adversary who can run the attack: one who knows the training except one record, and sees its result."""

_EXACT_ERROR = 1e-4  # of the data range, root mean square: the largest rounding error of a record called exact
_AT_ONCE = 64  # models inverted together: the derivatives of each take some megabytes


@dataclass(frozen=True, eq=False)
class InvertTraining:
    """Configured attack that :func:`invert_training` returns; see there for its settings."""

    training: Training | None = None
    starts: Tensor | None = field(default=None, repr=False)
    iterations: int = 40
    refreshes: int = 4
    directions: int = 64
    memory: int = 16
    labels_tried: int = 4
    seconds: float | None = None
    needs: ThreatModel = NEEDS

    def __post_init__(self) -> None:
        for name in ("iterations", "directions", "memory", "labels_tried"):
            check_whole(name, getattr(self, name))
        check_whole("refreshes", self.refreshes, minimum=0)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if self.starts is not None:
            check_not_empty("starts", self.starts)
            check_all_finite("starts", self.starts)
        training: object = self.training
        if training is not None and not isinstance(training, (ShadowTraining, TrainingMap, TrainedModelRelease)):
            given = type(training).__name__
            raise invalid_input("training", given, "to be a ShadowTraining, TrainingMap or TrainedModelRelease")

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Reconstruct the record behind one trained model; ``rng`` is not used, the attack is deterministic."""
        del rng
        observation.check_covers(self.needs)
        if observation.batch_size != 1:
            raise invalid_input(
                "batch_size", observation.batch_size, "to be 1", "Attack a release in which one record is unknown."
            )
        training, forward = self._find_training(observation), observation.forward
        problem = problem_for(training, observation.input_shape)
        if isinstance(forward, DefendedMap) and not only_adds_noise(forward.defense, observation.released):
            problem = DefendedProblem(problem, forward.defense, _check_names(problem, observation.released))
        row = problem.to_row(_check_names(problem, observation.released))
        weights = _weights(problem, observation, private_noise_std(training))
        return self._invert(
            problem, row[None], observation.labels, weights, observation.data_range, tuple(observation.input_shape)
        )

    def rebuild(
        self,
        released: Tensor | Mapping[str, Tensor],
        *,
        labels: Tensor | None = None,
        noise_std: float | None = None,
        data_range: tuple[float, float] = (0.0, 1.0),
    ) -> Reconstruction:
        """Reconstruct the records behind many models at once.

        Args:
            released: Parameters (n, p) as ``training.train`` returns them, or the parameters of one model by name.
            labels: Labels (n,) of the records if they are known; otherwise they are tried.
            noise_std: Standard deviation of the noise on each value; by default the noise that private training leaves,
                or none.
            data_range: Range of the values of records.

        Returns:
            The estimates, their labels and the status.

        Raises:
            InvalidInput: If the attack has no training, or the models do not fit it.
        """
        if self.training is None:
            raise invalid_input("training", None, "to be the training that was run", "Pass invert_training(training).")
        problem = problem_for(self.training)
        rows = released if isinstance(released, Tensor) else problem.to_row(_check_names(problem, released))[None]
        _check_rows(problem, rows, labels)
        weights = None
        noise_std = private_noise_std(self.training) if noise_std is None else noise_std
        if noise_std is not None:
            weights = torch.full((problem.size,), 1 / check_positive("noise_std", noise_std), dtype=torch.float64)
        return self._invert(problem, rows, labels, weights, data_range, problem.shape)

    def _find_training(self, observation: Observation) -> Training:
        if self.training is not None:
            return self.training
        forward = observation.forward
        inner = forward.undefended if isinstance(forward, DefendedMap) else forward
        if isinstance(inner, PrivateTrainingMap):
            return inner.training
        if not isinstance(inner, (ShadowTraining, TrainingMap)):
            remedy = "Pass invert_training(training), or observe a TrainedModelRelease."
            raise invalid_input("training", None, "to be given, since the observation contains none", remedy)
        return inner

    def _invert(
        self,
        problem: Problem,
        rows: Tensor,
        labels: Tensor | None,
        weights: Tensor | None,
        data_range: tuple[float, float],
        shape: tuple[int, ...],
    ) -> Reconstruction:
        begun = time.monotonic()
        if problem.classes is None and labels is None:
            raise invalid_input(
                "labels",
                None,
                "to be given if labels are not classes",
                "Pass labels, or add Knows.LABELS to the threat model.",
            )
        _check_range(data_range, problem)
        noisy = 0 if weights is None else int(weights.count_nonzero())
        observed, kind = rows.detach().double(), rows.dtype  # the precision of the victim bounds the accuracy
        whole = problem if weights is None else WeightedProblem(problem, weights)
        observed = observed if weights is None else observed * weights
        effort = Effort(self.iterations, self.refreshes, self.directions, self.memory)
        starts = self._starts(problem, data_range)

        def in_time() -> bool:
            return self.seconds is None or time.monotonic() - begun < self.seconds

        found, stopped = [], False
        for part in torch.arange(len(rows)).split(_AT_ONCE):
            known = None if labels is None else labels[part]
            settings = (kind, noisy, starts, known, data_range, effort, self.labels_tried)
            found.append(Inversion(whole, observed[part], *settings, in_time))
            stopped = stopped or found[-1].run()
        records = torch.cat([one.fit.records for one in found]).unflatten(1, shape)
        names = ("sizes", "plausible", "errors")
        sizes, fitted, errors = (torch.cat([getattr(one, name) for one in found]) for name in names)
        errors = errors / (data_range[1] - data_range[0])
        account = AttackReport(
            attack=repr(self),
            status=_status(sizes, fitted, errors, bool(noisy), stopped, in_time()),
            objective=tuple(sizes.tolist()),
            cost=Cost(time.monotonic() - begun, problem.trainings),
            labels=class_labels_or_none(torch.cat([one.fit.labels for one in found])),
        )
        return Reconstruction(records.to(torch.get_default_dtype()), account)

    def _starts(self, problem: Problem, data_range: tuple[float, float]) -> Tensor:
        if self.starts is None:
            return problem.means().clamp(*data_range)
        many = 1 if problem.classes is None else problem.classes
        flat = self.starts.detach().double().reshape(-1, problem.d) if self.starts.numel() % problem.d == 0 else None
        if flat is None or len(flat) not in (1, many):
            shape = tuple(self.starts.shape)
            raise invalid_input(
                "starts.shape",
                shape,
                f"to be {problem.shape} or {(many, *problem.shape)}",
                "Pass one start, or one per class.",
            )
        check_all_within("starts", flat, data_range)
        return flat

    def __repr__(self) -> str:
        """Return every setting; tensors by their shape."""
        given: dict[str, object] = {
            "training": "as observed" if self.training is None else type(self.training).__name__,
            "starts": None if self.starts is None else f"tensor of shape {tuple(self.starts.shape)}",
        }
        given |= {name: getattr(self, name) for name in ("iterations", "refreshes", "directions", "memory")}
        given |= {"labels_tried": self.labels_tried, "seconds": self.seconds}
        return f"invert_training({', '.join(f'{name}={value}' for name, value in given.items())})"


def invert_training(
    training: Training | None = None,
    *,
    starts: Tensor | None = None,
    iterations: int = 40,
    refreshes: int = 4,
    directions: int = 64,
    memory: int = 16,
    labels_tried: int = 4,
    seconds: float | None = None,
) -> InvertTraining:
    r"""Reconstruct the one unknown training record from the trained model, by Gauss-Newton through the whole training.

    .. math:: \hat x = \arg\min_{x, y} |\Sigma^{-1/2} (\theta - F(x, y))|^2, \qquad F(x, y) = \mathrm{train}(D_- \cup
        \{(x, y)\})

    Here :math:`\theta` is the trained model, F the training on the fixed records :math:`D_-` and the record x with
    label y, and :math:`\Sigma` the covariance of known noise (the identity without noise).

    Steps share one derivative per class and are mixed with earlier steps; a step counts only if it lowers the residual.
    If the residual does not halve in four trainings, the derivative is taken anew at the current point. For dense
    networks trained by gradient descent it is computed along a few directions of the fixed records and known for all
    others. An unknown label is tried: the labels that are nearest at the start take a few steps, and the residual
    chooses among them. If no record fits the model, all other labels take these steps, and the best of them follow.
    With known noise the estimate is the maximum likelihood record within the data range. ``rebuild`` inverts many
    models of one training at once.

    Args:
        training: Training that was run on the fixed records: a ``ShadowTraining``, ``TrainingMap`` or
            ``TrainedModelRelease``; by default the training that the observation contains.
        starts: First estimate, one record or one per class; by default the mean of the fixed records of each class.
        iterations: Largest number of trainings per search.
        refreshes: Largest number of times that a search computes the derivative anew.
        directions: Number of directions of the fixed records along which the derivative is computed.
        memory: Number of earlier steps that a step is mixed with.
        labels_tried: Number of labels that are searched first, and of further labels if none of these fits.
        seconds: Time limit in seconds, None for no limit.

    Returns:
        The attack, to be called with an observation.

    Raises:
        InvalidInput: If a setting is out of range or ``training`` is of another type.

    Assumes: all records but one, initialisation, order and optimizer are known, and training is a function of them that
    is smooth in the record.
    Guarantee: no step raises the residual. The ending is exact only if every residual is at most three times the
    measured rounding error of training in the precision of the released values, and if that much rounding leaves each
    record an error of at most 1e-4 of the data range, root mean square, to first order. At small noise, where the
    Fisher information I is nonsingular and the record inside the range, the mean squared error is the Cramer-Rao bound
    tr(I^-1)/d for d values.
    Edge cases: the objective is the norm of the residual in units of the rounding error, or with noise half of the
    squared residual in units of the noise. For training with clipped gradients and noise, the noise is treated as added
    to the final model, equally to all values
    (:func:`reconrisk.attacks.informed.invert_training.problem.private_noise_std`). A wrong initialisation or order
    leaves a large objective, as does a search that got stuck. The ending is then "budget spent", since without noise
    the record reproduces its model. Labels that are not classes must be known.
    Reference: the adversary of section II, balle2022; Chapter 10.3, Nocedal and Wright (2006), Numerical Optimization;
    `Walker and Ni (2011) <https://doi.org/10.1137/10078356X>`_ for the mixing.

    >>> from reconrisk.releases.training.optimizers import sgd
    >>> fixed, labels = torch.rand(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    >>> model = torch.nn.Linear(3, 2)
    >>> _ = model.weight.data.copy_(torch.tensor([[0.1, -0.2, 0.3], [0.2, 0.1, -0.1]])), model.bias.data.zero_()
    >>> training = ShadowTraining(model, fixed, labels, sgd(0.5), steps=5)
    >>> victim = training.train(torch.tensor([[0.25, 0.5, 0.75]]).double(), torch.tensor([1]))
    >>> found = invert_training(training).rebuild(victim)
    >>> found.estimates.round(decimals=4), found.labels
    (tensor([[0.2500, 0.5000, 0.7500]]), (1,))
    """
    return InvertTraining(training, starts, iterations, refreshes, directions, memory, labels_tried, seconds)


def _weights(problem: Problem, observation: Observation, trained: float | None) -> Tensor | None:
    """One over the noise on each value, of the defense and of private training, 0 for values that are not sent.

    Edge cases: None if neither noise nor missing values are known.
    """
    if observation.noise_std is None and observation.kept is None and trained is None:
        return None
    ones = {name: torch.ones_like(value, dtype=torch.float64) for name, value in observation.released.items()}
    if observation.kept is not None:
        ones = {name: value * observation.kept[name] for name, value in ones.items()}
    noise = {name: torch.zeros_like(value) for name, value in ones.items()}
    if observation.noise_std is not None:
        noise = {name: value.double() for name, value in observation.noise_std.items()}
    if observation.noise_std is not None or trained is not None:
        # independent noise of the defense and of private training: variances add
        ones = {name: value / (noise[name].square() + (trained or 0.0) ** 2).sqrt() for name, value in ones.items()}
    return problem.to_row(ones)


def _check_names(problem: Problem, released: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    try:
        row = problem.to_row(released)
    except KeyError as error:
        raise invalid_input(
            "released", sorted(released), f"to contain {error}", "Pass every tensor of the trained model."
        ) from error
    if row.numel() != problem.size or not row.is_floating_point():
        raise invalid_input(
            "values in released",
            row.numel(),
            f"to be {problem.size} in floating point",
            "Pass the model that the training releases.",
        )
    return released


def _check_rows(problem: Problem, rows: Tensor, labels: Tensor | None) -> None:
    if rows.ndim != 2 or rows.shape[1] != problem.size or not rows.is_floating_point():
        expected = f"to be (models, {problem.size}), floating point, as training.train returns"
        raise invalid_input("released.shape", tuple(rows.shape), expected)
    check_not_empty("released", rows)
    check_all_finite("released", rows, "Check the training that produced it.")
    if labels is None:
        return
    if len(labels) != len(rows):
        raise invalid_input("len(labels)", len(labels), f"to be {len(rows)}, one label per model")
    classes = problem.classes
    if classes is not None and (
        labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < classes
    ):
        raise invalid_input("labels", labels.unique()[:5].tolist(), f"to be whole numbers from 0 to {classes - 1}")


def _check_range(data_range: tuple[float, float], problem: Problem) -> None:
    low, high = (check_finite("data_range", end) for end in data_range)
    if not low < high:
        raise invalid_input(
            "data_range", data_range, "to increase", "Pass the smallest value first, such as (0.0, 1.0)."
        )
    if len(problem.inputs):
        check_all_within("fixed records", problem.inputs, data_range, "Pass the public range of the values.")


def _status(sizes: Tensor, fitted: Tensor, errors: Tensor, noisy: bool, stopped: bool, in_time: bool) -> Status:
    """Status of the attack; ``errors`` are the expected root mean square errors, relative to the data range."""
    count, total, worst = int(fitted.sum()), len(sizes), float(sizes.max())
    if stopped:
        return Status(Ending.INTERRUPTED, "stopped by the user", "Run again to attack all models")
    if not math.isfinite(worst):
        return Status(
            Ending.DIVERGED,
            "the trained model is not finite at the first estimate",
            "Pass other starts, or check the training",
        )
    kind = "known noise" if noisy else f"{EXACT:g} times the rounding of training"
    cause = f"{count} of {total} models fitted within {kind}, largest objective {worst:.3g}"
    if count == total:
        lost = float(errors.max())
        cause = f"{cause}; that leaves an error of about {lost:.1e} of the data range, root mean square"
        return Status(Ending.CONVERGED if noisy or lost > _EXACT_ERROR else Ending.EXACT, cause)
    remedy = "Check initialisation, order, fixed records and noise: a wrong training leaves such residuals"
    if noisy and in_time:  # the maximum likelihood record was found, even if it is unlikely
        return Status(Ending.CONVERGED, cause, remedy)
    return Status(Ending.BUDGET_SPENT, cause, f"{remedy}; if the training is right, raise iterations or pass starts")
