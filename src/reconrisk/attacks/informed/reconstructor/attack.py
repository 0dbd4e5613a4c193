"""Reconstructor attack: learn the map from trained models to target records on shadow models, then apply it."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from reconrisk.attacks.informed.reconstructor.features import Reading, Scaling, extract_features, fit_scaling, reading
from reconrisk.attacks.informed.reconstructor.linear import LinearReconstruction, linear_reconstruction
from reconrisk.attacks.informed.reconstructor.network import build_network
from reconrisk.attacks.informed.reconstructor.settings import Perceptual, ReconstructorSettings
from reconrisk.attacks.informed.reconstructor.shadow_knowledge import FEWEST, ShadowKnowledge
from reconrisk.attacks.informed.reconstructor.training import (
    ShadowPairs,
    build_seeded,
    predict,
    train_network,
)
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_all_finite, check_all_within, check_positive, check_whole, invalid_input

_UNLIKE = 3.0  # times the distance of the farthest shadow model: a released model beyond it had another training


@dataclass(frozen=True, eq=False)
class Reconstructor:
    """Configured attack that :func:`reconstructor` returns.

    Attributes:
        settings: Settings of the training of the reconstructor.
        reading: Names and shapes of the parameters or logits that the reconstructor reads.
        scaling: Standardisation of the features.
        linear: Map in closed form, None without a linear start.
        network: Trained network, None for a closed form alone.
        input_shape: Shape of a record.
        data_range: Range of the values of records.
        shadows: Number of shadow models that it was trained on.
        error: Mean squared error on held-out shadow targets: the adversary's own estimate of the attack's strength.
        farthest: Largest root mean square of a shadow model's features.
        interrupted: True if training was interrupted.
        needs: Weakest threat model that allows the attack.
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
        """Reconstruct the record behind one released model; deterministic, so ``rng`` is not used."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        if observation.batch_size != 1:
            raise invalid_input(
                "batch_size", observation.batch_size, "to be 1", "Attack a release in which one record is unknown."
            )
        if tuple(observation.input_shape) != self.input_shape:
            raise invalid_input(
                "input_shape", observation.input_shape, f"to be {self.input_shape}, the shape of the shadow targets"
            )
        if tuple(observation.data_range) != self.data_range:
            raise invalid_input(
                "data_range", observation.data_range, f"to be {self.data_range}, the range of the shadow targets"
            )
        row = self.reading.row(observation.released)[None]
        estimates, labels = self.estimates_and_labels(row)
        account = AttackReport(
            repr(self), self._status(row), (self.error,), Cost(time.monotonic() - begun, 0), labels=labels
        )
        return Reconstruction(estimates.to(torch.get_default_dtype()), account)

    def estimates(self, rows: Tensor) -> Tensor:
        """Estimate the records ``(n, *shape)`` behind many models at once from their features ``(n, values)``."""
        return self.estimates_and_labels(rows)[0]

    def estimates_and_labels(self, rows: Tensor) -> tuple[Tensor, tuple[int, ...] | None]:
        """Estimate records and their classes; the classes are None if the reconstructor does not distinguish them."""
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
        return predict(network, features).clamp(*self.data_range), labels

    def relative_distance(self, rows: Tensor) -> Tensor:
        """Return the distance of each model from the mean shadow model, relative to the farthest shadow model."""
        self._check_rows(rows)
        return _distances(self.scaling(rows)) / self.farthest

    def _status(self, row: Tensor) -> Status:
        distance = float(self.relative_distance(row))
        if not distance < _UNLIKE:
            cause = f"the model is {distance:.3g} times as far from the mean shadow model as any shadow model"
            remedy = "Train shadow models as the released one was trained: initialisation, fixed records, optimizer"
            return Status(Ending.NOT_APPLICABLE, cause, remedy)
        cause = f"mean squared error {self.error:.3g} on held-out targets of {self.shadows} shadow models"
        if self.interrupted:
            return Status(Ending.INTERRUPTED, cause, "Train the reconstructor to the end")
        return Status(Ending.CONVERGED, cause)

    def _check_rows(self, rows: Tensor) -> None:
        if rows.ndim != 2 or rows.shape[1] != self.reading.size:
            raise invalid_input(
                "rows.shape",
                tuple(rows.shape),
                f"to be (models, {self.reading.size}), as many values as the shadow models have",
            )
        check_all_finite("rows", rows, "A model that diverged cannot be attacked.")

    def __repr__(self) -> str:
        """Return the settings, the number of shadow models and the tensors that are read."""
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
    r"""Train a reconstructor on shadow models.

    .. math:: \phi = \arg\min_\phi \sum_i \ell\big(\phi(A(D_- \cup \{\bar z_i\})), \bar z_i\big), \qquad
        \hat z = \phi(\theta)

    A reconstructor :math:`\phi` is a network or linear map from the parameters (or logits) of a trained model to its
    target record. The adversary trains it on shadow models: models trained by the known training A on the fixed records
    :math:`D_-` and one shadow target :math:`\bar z_i` each. Here :math:`\ell` is the training loss of the
    reconstructor, and :math:`\theta` is the released model. ``attack.estimates(rows)`` reconstructs the records of many
    models at once.

    Args:
        knowledge: Training of the model, fixed records, and shadow targets.
        settings: Closed form per class (the default), networks of balle2022 (:func:`balle2022_reconstructor`), or both.
        parameters: Names of the parameters to read; a layer's name selects all of its parameters. All by default.
        queries: Records (n, ...) for a black-box attack, which reads the logits on them instead of parameters.
        data_range: Public range of the values of records.
        shadow_models: Parameters (n, p) of shadow models that were trained before; by default they are trained here.
        store: Folder for the shadow models; the same call with the same folder resumes their training.
        checkpoint: File for the state of the network's training; the same call with the same file resumes it.
        perceptual: Metric of images such as :func:`reconrisk.metrics.lpips`; needed if ``settings.perceptual`` is
            positive.
        rng: Source of randomness for shadow models, initialisation and batches.

    Returns:
        The attack, to be called with an observation.

    Raises:
        InvalidInput: If the shadow targets are too few or outside ``data_range``, or the shadow models do not match
            them.

    Assumes: the released model was trained as ``knowledge`` describes; its label can be inferred from the model.
    Guarantee: scaling, network and choice of epoch depend on shadow models alone. Estimates lie in ``data_range``.
    Edge cases: coordinates that do not vary between shadow models are not read. A released model that is unlike all
    shadow models gets the status "not applicable". If the user interrupts the training, the attack keeps the best
    epoch, and its status states this.
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
    check_all_within("targets", knowledge.targets, data_range, "Pass the public range of the values as data_range.")
    check_whole("len(targets)", len(knowledge.targets), FEWEST, "Pass more shadow targets.")
    what = reading(knowledge.training, parameters, queries)
    rows = _shadow_rows(knowledge, shadow_models, store, rng)
    read = extract_features(knowledge.training, rows, what, queries)
    scaled = fit_scaling(read)
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
    return _train(blank, knowledge, read, rng, perceptual, checkpoint)


def fine_tune_reconstructor(
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
    """Fine-tune a reconstructor network for another training, such as one with other fixed records.

    Features are standardised by the new shadow models. Training of the network continues from its current weights.

    Args:
        attack: Trained reconstructor network without a linear start.
        knowledge: New training, fixed records and shadow targets.
        epochs: Epochs of fine-tuning.
        learning_rate: Learning rate, by default ``attack.settings.learning_rate``.
        queries: Queries of a black-box reconstructor, as in the first training.
        shadow_models: Parameters (n, p) of new shadow models that were trained before; by default they are trained
            here.
        store: Folder for the shadow models; the same call with the same folder resumes their training.
        perceptual: Metric of images; needed if ``settings.perceptual`` is positive.
        rng: Source of randomness for shadow models and batches.

    Returns:
        The fine-tuned attack.

    Raises:
        InvalidInput: If ``attack`` has a closed form, or reads another number of values than the new models have.

    Assumes: the released models have the same architecture, and the same parameters or logits are read.
    Edge cases: a closed form is refused, since it is fitted anew in seconds. Coordinates of the features that vary only
    in the new shadow models are not read; coordinates that no longer vary count as zero.
    Reference: Appendix B and Figure 12, balle2022.

    >>> from reconrisk.attacks.informed.reconstructor.settings import ReconstructorSettings
    >>> from reconrisk.releases.shadow.training import ShadowTraining
    >>> rng, model = torch.Generator().manual_seed(0), nn.Linear(3, 2)
    >>> inputs, labels = torch.rand(40, 3, generator=rng), torch.arange(40) % 2
    >>> parts = slice(5), slice(5, 10)
    >>> first, second = (ShadowTraining(model, inputs[part], labels[part], steps=2) for part in parts)
    >>> settings = ReconstructorSettings("none", "dense", hidden=(4,), epochs=1)
    >>> attack = reconstructor(ShadowKnowledge(first, inputs[10:], labels[10:]), settings, rng=rng)
    >>> fine_tune_reconstructor(attack, ShadowKnowledge(second, inputs[10:], labels[10:]), epochs=2, rng=rng).shadows
    30
    """
    if attack.network is None or attack.linear is not None:
        raise invalid_input(
            "attack.settings.start",
            attack.settings.start,
            'to be "none", with a network',
            "Call reconstructor() to fit a closed form anew.",
        )
    rows = _shadow_rows(knowledge, shadow_models, store, rng)
    read = extract_features(knowledge.training, rows, attack.reading, queries)
    if read.shape[1] != attack.reading.size:
        raise invalid_input(
            "values per shadow model",
            read.shape[1],
            f"to be {attack.reading.size}, as in the first training",
            "Pass queries as before.",
        )
    scaled = _rescale(attack.scaling, read)
    rate = attack.settings.learning_rate if learning_rate is None else check_positive("learning_rate", learning_rate)
    settings = replace(attack.settings, epochs=epochs, learning_rate=rate)
    pairs = _make_pairs(scaled(read), knowledge.targets.float(), settings, attack.data_range, rng)
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


def _rescale(before: Scaling, rows: Tensor) -> Scaling:
    """Scale new shadow models on the coordinates of an earlier scaling; constant coordinates become zero."""
    kept = rows[:, before.kept].double()
    std = kept.std(0, unbiased=False)
    largest = kept.abs().amax(0)
    varies = std > 4 * torch.finfo(torch.float32).eps * largest  # more than float32 rounding
    return Scaling(before.kept, kept.mean(0), std.where(varies, torch.full_like(std, math.inf)))


def _residual_features(
    linear: LinearReconstruction, estimates: Tensor, chosen: Tensor, data_range: tuple[float, float]
) -> Tensor:
    """Features of a network behind a closed form: the clipped estimate and its class, one-hot."""
    return torch.cat([estimates.clamp(*data_range), one_hot(chosen, len(linear.maps)).to(estimates.dtype)], 1)


def _train(
    blank: Reconstructor,
    knowledge: ShadowKnowledge,
    read: Tensor,
    rng: torch.Generator,
    perceptual: Perceptual | None,
    checkpoint: str | Path | None,
) -> Reconstructor:
    """Fit the closed form, the network, or both."""
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
        # leave-one-out estimates: those of the fit itself are too good and would teach the network no correction
        features = _residual_features(fit.linear, fit.left_out, fit.chosen, blank.data_range)
        maps = len(fit.linear.maps)
    network = build_seeded(lambda: build_network(settings, blank.scaling.size, shape, blank.data_range, maps), rng)
    pairs = _make_pairs(features, targets, settings, blank.data_range, rng)
    done = train_network(network, pairs, settings, rng=rng, perceptual=perceptual, checkpoint=checkpoint)
    return replace(blank, network=done.network, error=done.error, interrupted=done.interrupted)


def _make_pairs(
    features: Tensor,
    targets: Tensor,
    settings: ReconstructorSettings,
    data_range: tuple[float, float],
    rng: torch.Generator,
) -> ShadowPairs:
    # at least one target on each side of the split
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
