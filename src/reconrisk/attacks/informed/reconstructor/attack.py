"""Reconstructor networks: learn from shadow models which record makes which model, then read the released one."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from reconrisk.attacks.informed.reconstructor.features import Reading, Scaling, features_of, reading, scaling
from reconrisk.attacks.informed.reconstructor.linear import LinearReconstruction, linear_reconstruction
from reconrisk.attacks.informed.reconstructor.network import built_network
from reconrisk.attacks.informed.reconstructor.settings import Perceptual, ReconstructorSettings
from reconrisk.attacks.informed.reconstructor.shadow_knowledge import FEWEST, ShadowKnowledge
from reconrisk.attacks.informed.reconstructor.training import (
    ShadowPairs,
    predicted,
    seeded,
    train_network,
)
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_all_finite, check_all_within, check_positive, check_whole, invalid_input

_UNLIKE = 3.0  # times the farthest shadow model from their mean: a released model beyond is of another training


@dataclass(frozen=True, eq=False)
class Reconstructor:
    """The configured attack that :func:`reconstructor` returns.

    ``error`` is its mean squared error on shadow targets it has not learned from, the adversary's own estimate of its
    strength; ``farthest`` the largest root mean square of a shadow model's features.
    """

    settings: ReconstructorSettings
    reading: Reading
    scaling: Scaling = field(repr=False)
    linear: LinearReconstruction | None = field(repr=False)
    network: nn.Module | None = field(repr=False)
    input_shape: tuple[int, ...]
    data_range: tuple[float, float]
    shadows: int
    error: float
    farthest: float
    interrupted: bool
    needs: ThreatModel

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The record behind one released model; ``rng`` is not used, a trained reconstructor is deterministic."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        if observation.batch_size != 1:
            raise invalid_input("batch_size", observation.batch_size, "to be 1", "Shadow models have one target each.")
        if tuple(observation.input_shape) != self.input_shape:
            raise invalid_input(
                "input_shape", observation.input_shape, f"to be {self.input_shape}, as the shadow targets'"
            )
        if tuple(observation.data_range) != self.data_range:
            raise invalid_input(
                "data_range", observation.data_range, f"to be {self.data_range}, as the shadow targets'"
            )
        row = self.reading.row(observation.released)[None]
        estimates, labels = self.estimates_and_labels(row)
        account = Account(
            repr(self), self._status(row), (self.error,), Cost(time.monotonic() - begun, 0), labels=labels
        )
        return Reconstruction(estimates.to(torch.get_default_dtype()), account)

    def estimates(self, rows: Tensor) -> Tensor:
        """The records behind many models at once, ``(n, *shape)``, from what is read of each, ``(n, values)``."""
        return self.estimates_and_labels(rows)[0]

    def estimates_and_labels(self, rows: Tensor) -> tuple[Tensor, tuple[int, ...] | None]:
        """The same with the class of each record, where the reconstructor tells classes apart."""
        self._check_rows(rows)
        labels = None
        if self.linear is None:
            features = self.scaling(rows)
        else:
            estimates, chosen = self.linear(rows[:, self.scaling.kept])
            known = self.linear.labels
            labels = None if known is None else tuple(known[index] for index in chosen.tolist())
            if self.network is None:
                return estimates.clamp(*self.data_range).reshape(-1, *self.input_shape), labels
            features = _residual_features(self.linear, estimates, chosen, self.data_range)
        network = nn.Identity() if self.network is None else self.network
        return predicted(network, features).clamp(*self.data_range), labels

    def unlike(self, rows: Tensor) -> Tensor:
        """How far each model is from the shadow models, 1 for the farthest of these."""
        self._check_rows(rows)
        return _distances(self.scaling(rows)) / self.farthest

    def _status(self, row: Tensor) -> Status:
        how_far = float(self.unlike(row))
        if not how_far < _UNLIKE:
            cause = f"the model is {how_far:.3g} times as far from the shadow models' mean as any of them"
            remedy = "Train shadow models as the released one was trained: start, fixed records, optimizer"
            return Status(Ending.NOT_APPLICABLE, cause, remedy)
        cause = f"mean squared error {self.error:.3g} on shadow targets not learned from, of {self.shadows}"
        if self.interrupted:
            return Status(Ending.INTERRUPTED, cause, "Train the reconstructor to its end")
        return Status(Ending.CONVERGED, cause)

    def _check_rows(self, rows: Tensor) -> None:
        if rows.ndim != 2 or rows.shape[1] != self.reading.size:
            raise invalid_input(
                "rows.shape", tuple(rows.shape), f"to be (models, {self.reading.size}), as it was trained"
            )
        check_all_finite("rows", rows, "A model that diverged tells nothing.")

    def __repr__(self) -> str:
        """Every setting."""
        return f"reconstructor({self.settings}, {self.shadows} shadow models, reads {', '.join(self.reading.names)})"


def reconstructor(
    knowledge: ShadowKnowledge,
    settings: ReconstructorSettings | None = None,
    *,
    parameters: list[str] | None = None,
    queries: Tensor | None = None,
    data_range: tuple[float, float] = (0.0, 1.0),
    shadow_models: Tensor | None = None,
    store: str | Path | None = None,
    checkpoint: str | Path | None = None,
    perceptual: Perceptual | None = None,
    rng: torch.Generator,
) -> Reconstructor:
    r"""Learn from shadow models to read the target off a released model.

    .. math:: \phi = \arg\min_\phi \sum_i \ell\big(\phi(A(D_- \cup \{\bar z_i\})), \bar z_i\big), \qquad
        \hat z = \phi(\theta)

    All parameters are read by default, or only ``parameters`` ("head" stands for a layer), or, black box, the logits on
    ``queries``. ``settings`` are a closed form by class (the default), the networks of balle2022
    (:func:`balle2022_reconstructor`), or both. ``shadow_models`` are rows (n, p) that were trained before; otherwise
    they are trained, in the folder ``store`` if given. ``checkpoint`` is a file for the network's training.
    ``perceptual`` is a distance of images such as :func:`reconrisk.metrics.lpips`.

    Assumes: the released model was trained as ``knowledge`` says; the label can be told from the model.
    Guarantee: scaling, network and the choice among epochs see shadow models alone. Estimates lie in ``data_range``.
    Edge cases: what does not vary between shadow models is not read. A released model that is unlike all of them gets
    the status "not applicable". Interrupted, training keeps the best epoch, and the status says so.
    Reference: sections IV and V, balle2022; the closed form is ours.

    >>> from reconrisk.releases.shadow.training import ShadowTraining
    >>> from reconrisk.releases.training.optimizers import sgd
    >>> draw = torch.manual_seed(0)
    >>> model, inputs = nn.Linear(3, 2), torch.rand(80, 3, generator=draw)
    >>> labels = (inputs[:, 0] > 0.5).long()
    >>> training = ShadowTraining(model, inputs[:20], labels[:20], sgd(0.1), steps=5)
    >>> attack = reconstructor(ShadowKnowledge(training, inputs[20:70], labels[20:70]), rng=draw)
    >>> victims = training.train(inputs[70:], labels[70:])
    >>> bool((attack.estimates(victims) - inputs[70:]).abs().max() < 0.05)
    True
    """
    settings = ReconstructorSettings() if settings is None else settings
    check_all_within("targets", knowledge.targets, data_range, "State the public range of the values.")
    check_whole("len(targets)", len(knowledge.targets), FEWEST, "Pass more shadow targets.")
    what = reading(knowledge.training, parameters, queries)
    rows = _shadow_rows(knowledge, shadow_models, store, rng)
    read = features_of(knowledge.training, rows, what, queries)
    scaled = scaling(read)
    blank = Reconstructor(
        settings=settings,
        reading=what,
        scaling=scaled,
        linear=None,
        network=None,
        input_shape=tuple(knowledge.targets.shape[1:]),
        data_range=(float(data_range[0]), float(data_range[1])),
        shadows=len(rows),
        error=math.inf,
        farthest=float(_distances(scaled(read)).max()),
        interrupted=False,
        needs=knowledge.threat,
    )
    return _learned(blank, knowledge, read, rng, perceptual, checkpoint)


def fine_tuned_reconstructor(
    attack: Reconstructor,
    knowledge: ShadowKnowledge,
    *,
    epochs: int = 20,
    learning_rate: float | None = None,
    queries: Tensor | None = None,
    shadow_models: Tensor | None = None,
    store: str | Path | None = None,
    perceptual: Perceptual | None = None,
    rng: torch.Generator,
) -> Reconstructor:
    """A reconstructor network taken over to another training, such as one with other fixed records.

    Features are standardised by the new shadow models, the network goes on learning from where it was.

    Assumes: the released models have the same architecture and what is read of them is the same.
    Edge cases: a closed form is refused: it is fitted anew in seconds. Coordinates that vary only in the new shadow
    models are not read; those that vary no more count as zero.
    Reference: Appendix B and Figure 12, balle2022.
    """
    if attack.network is None or attack.linear is not None:
        raise invalid_input("attack", attack.settings.start, "to be a network without a linear start", "Fit it anew.")
    rows = _shadow_rows(knowledge, shadow_models, store, rng)
    read = features_of(knowledge.training, rows, attack.reading, queries)
    if read.shape[1] != attack.reading.size:
        raise invalid_input("values", read.shape[1], f"to be {attack.reading.size}, as the reconstructor reads")
    scaled = rescaled(attack.scaling, read)
    rate = attack.settings.learning_rate if learning_rate is None else check_positive("learning_rate", learning_rate)
    settings = replace(attack.settings, epochs=epochs, learning_rate=rate)
    pairs = _pairs(scaled(read), knowledge.targets.float(), settings, attack.data_range, rng)
    network = copy.deepcopy(attack.network).requires_grad_()
    done = train_network(network, pairs, settings, rng=rng, perceptual=perceptual)
    farthest = float(_distances(pairs.features).max())
    return replace(
        attack,
        settings=settings,
        scaling=scaled,
        network=done.network,
        shadows=len(rows),
        error=done.error,
        farthest=farthest,
        interrupted=done.interrupted,
        needs=knowledge.threat,
    )


def rescaled(before: Scaling, rows: Tensor) -> Scaling:
    """The scaling of new shadow models on the coordinates of a former one; what varies no more counts as zero."""
    kept = rows[:, before.kept].double()
    std = kept.std(0, unbiased=False)
    largest = kept.abs().amax(0)
    varies = std > 4 * torch.finfo(torch.float32).eps * largest
    return Scaling(before.kept, kept.mean(0), std.where(varies, torch.full_like(std, math.inf)))


def _residual_features(
    linear: LinearReconstruction, estimates: Tensor, chosen: Tensor, data_range: tuple[float, float]
) -> Tensor:
    """What a network behind a closed form reads: the estimate, clipped, and its class."""
    return torch.cat([estimates.clamp(*data_range), one_hot(chosen, len(linear.maps)).to(estimates.dtype)], 1)


def _learned(
    blank: Reconstructor,
    knowledge: ShadowKnowledge,
    read: Tensor,
    rng: torch.Generator,
    perceptual: Perceptual | None,
    checkpoint: str | Path | None,
) -> Reconstructor:
    settings, shape, targets = blank.settings, blank.input_shape, knowledge.targets.float()
    if settings.start == "none":
        features = blank.scaling(read)
        maps = None
    else:
        kept = read[:, blank.scaling.kept]
        fit = linear_reconstruction(kept, targets.flatten(1), knowledge.labels, blank.data_range)
        blank = replace(blank, linear=fit.linear, error=fit.error)
        if settings.network == "none":
            return blank
        # what maps that have not seen a model make of it: the network must not learn from estimates that are too good
        features = _residual_features(fit.linear, fit.left_out, fit.chosen, blank.data_range)
        maps = len(fit.linear.maps)
    network = seeded(lambda: built_network(settings, blank.scaling.size, shape, blank.data_range, maps), rng)
    pairs = _pairs(features, targets, settings, blank.data_range, rng)
    done = train_network(network, pairs, settings, rng=rng, perceptual=perceptual, checkpoint=checkpoint)
    return replace(blank, network=done.network, error=done.error, interrupted=done.interrupted)


def _pairs(
    features: Tensor,
    targets: Tensor,
    settings: ReconstructorSettings,
    data_range: tuple[float, float],
    rng: torch.Generator,
) -> ShadowPairs:
    count = max(1, min(len(targets) - 1, round(settings.held_out * len(targets))))
    held_out = torch.randperm(len(targets), generator=rng)[:count]
    return ShadowPairs(features, targets, held_out, data_range)


def _shadow_rows(
    knowledge: ShadowKnowledge, given: Tensor | None, store: str | Path | None, rng: torch.Generator
) -> Tensor:
    if given is None:
        return knowledge.shadow_models(rng=rng, store=store)
    expected = (len(knowledge.targets), knowledge.training.size)
    if tuple(given.shape) != expected:
        raise invalid_input("shadow_models.shape", tuple(given.shape), f"to be {expected}, one row per shadow target")
    return given


def _distances(features: Tensor) -> Tensor:
    return features.square().mean(1).sqrt()
