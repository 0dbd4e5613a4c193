"""Inference of labels from the gradient of the output layer, before any optimisation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from reconrisk.attacks.labels.separate_records import SeparatedRecords, separate
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.threat import Knows
from reconrisk.core.validation import invalid_input
from reconrisk.releases.model_state import LossFunction, ModelState, model_state, record_losses
from reconrisk.releases.observe import DefendedMap, find_model
from reconrisk.releases.training.optimizers import OptimizerState, UpdateRule
from reconrisk.releases.updates.gradient import GradientMap
from reconrisk.releases.updates.local_update import LocalUpdateMap

DECLARE = "Declare the labels as known instead: add Knows.LABELS to the threat model and pass labels."

_PROBES = 16  # random inputs that show typical features and outputs of the network
_MOST_STEPS = 16  # steps of a local update at which parameters are evaluated; more are thinned out
_ROUNDING = 1e-7  # rounding of a float32 gradient, relative to its norm


@dataclass(frozen=True, eq=False)
class OutputLayer:
    r"""Gradient of the output layer in a common form for all releases.

    .. math:: G = \sum_i d_i \tilde h_i^T, \qquad d_i = \partial \ell_i / \partial z_i, \quad z_i = P \tilde h_i

    Here :math:`\tilde h_i` are the features of record i before the output layer (with a one for the bias), P the
    parameters of that layer, :math:`z_i` its outputs, and :math:`\ell_i` the training loss of record i.

    Attributes:
        gradient: G, one row per class.
        parameters: P at each step, of shape (steps, classes, columns).
        weighted: True if the release includes the weight.
        biased: True if the last column belongs to the bias, whose feature is 1.
        features: Features :math:`\tilde h` of probes drawn from the data range.
        outputs: Outputs z of the same probes.
        offset: Part of the outputs that is not released.
        loss_fn: Training loss, a function of outputs and labels.
        noise_std: Standard deviation of the noise on the values of G.
        clipped: True if clipping has multiplied G by a factor below 1; None if this is unknown.
        linear: False if an adaptive optimizer makes the update a nonlinear function of the gradient.
        exact: False if G is averaged over several steps.
    """

    gradient: Tensor
    parameters: Tensor
    weighted: bool
    biased: bool
    features: Tensor
    outputs: Tensor
    offset: Tensor
    loss_fn: LossFunction
    noise_std: float
    clipped: bool | None
    linear: bool
    exact: bool

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.gradient)


def output_layer(observation: Observation) -> OutputLayer:
    """Collect the evidence about labels in an observation.

    Args:
        observation: The observation to read.

    Returns:
        The gradient of the output layer with the data that its interpretation needs.

    Raises:
        InvalidInput: If the forward map has no network, the network has a single output, the training loss takes no
            class indices, or neither weight nor bias of the output layer is released.

    Edge cases: of an output layer that is not an ``nn.Linear`` only the bias is used.
    """
    forward = observation.forward.undefended if isinstance(observation.forward, DefendedMap) else observation.forward
    if not isinstance(forward, (GradientMap, LocalUpdateMap)):
        raise InvalidInput(f"Expected the forward map of a known network to infer labels. {DECLARE}")
    loss_fn = forward.loss_fn if isinstance(forward, GradientMap) else forward.training.loss_fn
    network = _Network.probe(forward, observation)
    _check_loss(loss_fn, network.outputs)
    names = network.names(observation.released)
    sent = {name: observation.released[name].double() for name in names}
    step = _average_step(forward, sent, {name: network.parameters[name] for name in names})
    # Divide by the weight of a record, so that G is a sum over records for mean and sum losses alike.
    gradient = _columns(step.gradient, names) / _weight(forward, loss_fn, observation.batch_size)
    softmax = is_cross_entropy(loss_fn, len(gradient))
    path = step.path
    if len(path) > _MOST_STEPS:
        path = [path[round(number)] for number in torch.linspace(0, len(path) - 1, _MOST_STEPS).tolist()]
    # The feature of the bias is the constant 1.
    ones = network.outputs.new_ones(len(network.outputs), 1)
    read = [ones if sent[name].ndim == 1 or network.features is None else network.features for name in names]
    return OutputLayer(
        gradient=gradient,
        parameters=torch.stack([_columns(values, names) for values in path]),
        weighted=sent[names[0]].ndim == 2,
        biased=sent[names[-1]].ndim == 1,
        features=torch.cat(read, dim=1),
        outputs=network.outputs,
        offset=network.offset(names),
        loss_fn=loss_fn,
        noise_std=_noise_std(observation, gradient, _columns(sent, names), names, step.linear and softmax),
        clipped=_is_clipped(observation, forward),
        linear=step.linear,
        exact=step.count == 1,
    )


def _loss_gradients(loss_fn: LossFunction, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the derivative of each record's loss with respect to its outputs."""
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        (gradients,) = torch.autograd.grad(record_losses(loss_fn, leaf, labels).sum(), leaf)
    return gradients


def is_cross_entropy(loss_fn: LossFunction, classes: int) -> bool:
    """Return True if the derivative of a loss with respect to the outputs is softmax minus one-hot.

    Args:
        loss_fn: The training loss to test, at a few outputs.
        classes: Number of outputs.

    Returns:
        True for plain cross-entropy.

    >>> is_cross_entropy(nn.functional.cross_entropy, 4), is_cross_entropy(nn.CrossEntropyLoss(label_smoothing=0.1), 4)
    (True, False)
    """
    labels = torch.arange(min(classes, 4))
    # Deterministic, irregular outputs of moderate size; any generic ones would do.
    outputs = torch.linspace(-2, 2, len(labels) * classes, dtype=torch.float64).sin().view(len(labels), classes)
    expected = outputs.softmax(1) - nn.functional.one_hot(labels, classes)
    return torch.allclose(_loss_gradients(loss_fn, outputs, labels), expected, atol=1e-6)


@dataclass(frozen=True, eq=False)
class _Network:
    """Outputs of a network at probes, and its final linear layer, if there is one, with the inputs of that layer."""

    outputs: Tensor
    features: Tensor | None
    layer: str | None
    parameters: Mapping[str, Tensor]

    @classmethod
    def probe(cls, forward: GradientMap | LocalUpdateMap, observation: Observation) -> _Network:
        model = forward.model if isinstance(forward, GradientMap) else forward.training.model
        low, high = observation.data_range
        rng = torch.Generator().manual_seed(0)  # the same probes for every observation: they are part of the method
        drawn = torch.rand((_PROBES, *observation.input_shape), generator=rng).to(observation.device)
        inputs = low + (high - low) * drawn
        state = model_state(model, inputs.dtype)
        outputs, layer, features = _last_layer(state, inputs)
        if outputs.ndim != 2 or outputs.shape[1] < 2:
            shape = tuple(outputs.shape[1:])
            raise invalid_input(
                "shape of a record's outputs", shape, "to be one number for each of several classes", DECLARE
            )
        parameters = {name: value.double() for name, value in {**state.fixed, **state.released}.items()}
        return cls(outputs.double(), features, layer, parameters)

    def names(self, released: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the released weight and bias of the output layer."""
        if self.layer is None:
            # Without a linear output layer, take the last released vector with one entry per class.
            shape = (self.outputs.shape[1],)
            names = [name for name, tensor in released.items() if tuple(tensor.shape) == shape][-1:]
        else:
            both = [f"{self.layer}.{kind}".removeprefix(".") for kind in ("weight", "bias")]
            names = [name for name in both if name in released]
        if not names:
            known = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in released.items())
            raise InvalidInput(f"Expected a released weight or bias of the output layer, found {known}. {DECLARE}")
        return names

    def offset(self, names: Sequence[str]) -> Tensor:
        """Return the bias of the output layer if it is not released, else zeros."""
        bias = f"{self.layer}.bias".removeprefix(".")
        hidden = self.layer is not None and bias in self.parameters and bias not in names
        return self.parameters[bias] if hidden else self.outputs.new_zeros(self.outputs.shape[1])


def _last_layer(state: ModelState, inputs: Tensor) -> tuple[Tensor, str | None, Tensor | None]:
    """Return the outputs, and the name and inputs of the linear layer that produces them."""
    calls: list[tuple[str, Tensor, Tensor]] = []

    def record_call(name: str) -> Callable[..., None]:
        return lambda _, given, made: calls.append((name, given[0], made))

    layers = [(name, layer) for name, layer in state.model.named_modules() if isinstance(layer, nn.Linear)]
    handles = [layer.register_forward_hook(record_call(name)) for name, layer in layers]
    try:
        with torch.no_grad():
            outputs = state.outputs(inputs)
    finally:
        for handle in handles:
            handle.remove()
    # Identity, not equality: only the layer that returned the outputs themselves counts.
    last = [(name, given) for name, given, made in calls if made is outputs and given.ndim == 2]
    return (outputs, last[-1][0], last[-1][1].double()) if last else (outputs, None, None)


def _check_loss(loss_fn: LossFunction, outputs: Tensor) -> None:
    """Raise InvalidInput unless the loss takes outputs and class indices."""
    some = outputs[
        : 3 if outputs.shape[1] == 2 else 2
    ]  # a count other than that of the classes, so that indices cannot pass for regression targets
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # torch only warns when it broadcasts targets to the outputs
            loss = loss_fn(some, torch.zeros(len(some), dtype=torch.int64, device=some.device))
    except (RuntimeError, ValueError, IndexError, TypeError, UserWarning) as error:
        raise InvalidInput(
            f"Expected a training loss of outputs and class indices to infer labels. {DECLARE}"
        ) from error
    if not bool(loss.isfinite()):
        raise InvalidInput(
            f"Expected a training loss that is finite on random inputs in the data range to infer labels. {DECLARE}"
        )


@dataclass(frozen=True, eq=False)
class _Step:
    """Average gradient over ``count`` steps, with the approximate parameters at each step."""

    gradient: Mapping[str, Tensor]
    path: Sequence[Mapping[str, Tensor]]
    count: int = 1
    linear: bool = True


def _average_step(
    forward: GradientMap | LocalUpdateMap, sent: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> _Step:
    """Convert a release to the average gradient of its steps."""
    if isinstance(forward, GradientMap):
        return _Step(sent, [own])
    training = forward.training
    count = int(training.steps or 1) if training.batches is None else len(training.batches)
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    still = _total_change(training.optimizer, own, dict.fromkeys(own, zero), count)
    once = _total_change(training.optimizer, {"": zero}, {"": one}, count)[""]
    twice = _total_change(training.optimizer, {"": zero}, {"": 2 * one}, count)[""]
    # For a linear optimizer the change is affine in the gradient: weight decay gives the constant, a unit gradient the
    # slope. Doubling the gradient tests linearity.
    gradient = {name: (sent[name] - still[name]) / once for name in sent}
    # Parameters are assumed to move in a straight line.
    path = [{name: own[name] + sent[name] * (number / count) for name in sent} for number in range(count)]
    return _Step(gradient, path, count, linear=math.isclose(float(twice), 2 * float(once), rel_tol=1e-6))


def _total_change(
    rule: UpdateRule, start: Mapping[str, Tensor], gradient: Mapping[str, Tensor], count: int
) -> dict[str, Tensor]:
    """Return the change of parameters after ``count`` steps with a constant gradient."""
    state, values = OptimizerState(), dict(start)
    for _ in range(count):
        values, state = rule.step(values, {name: gradient[name].expand_as(values[name]) for name in values}, state)
    return {name: values[name] - start[name] for name in start}


def _weight(forward: GradientMap | LocalUpdateMap, loss_fn: LossFunction, records: int) -> float:
    """Return the weight of one record in the gradient of a step, averaged over the steps."""
    if isinstance(forward, GradientMap) and forward.reduction is not None:
        return 1.0 if forward.reduction == "sum" else 1 / records
    outputs, labels = torch.tensor([[1.0, -1.0]]).repeat(2, 1), torch.zeros(2, dtype=torch.int64)
    # A mean loss of two equal records is that of one, a sum is twice as large.
    if float(loss_fn(outputs, labels)) < 1.5 * float(loss_fn(outputs[:1], labels[:1])):
        return 1 / records
    batches = forward.training.batches if isinstance(forward, LocalUpdateMap) else None
    return 1.0 if batches is None else sum(len(rows) for rows in batches) / len(batches) / records


def _is_clipped(observation: Observation, forward: GradientMap | LocalUpdateMap) -> bool | None:
    """Return True if the update is scaled by its norm; None if an unknown defense may do so."""
    if isinstance(forward, GradientMap) and forward.clip is not None:
        return True
    if not isinstance(observation.forward, DefendedMap):
        return False if Knows.DEFENSE in observation.threat.knows else None
    # A defense that keeps even an update 1e6 times as long unchanged does not clip.
    longer = {name: 1e6 * tensor for name, tensor in observation.released.items()}
    replayed = observation.forward.defense.replay(longer)
    return not all(torch.equal(replayed[name], tensor) for name, tensor in longer.items())


def _columns(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    return torch.cat([tensors[name].reshape(len(tensors[name]), -1) for name in names], dim=1)


def _noise_std(observation: Observation, gradient: Tensor, sent: Tensor, names: Sequence[str], balanced: bool) -> float:
    """Return the noise level of ``gradient``, known or estimated by its column sums, zero if ``balanced``."""
    scale = float(gradient.norm() / sent.norm().clamp_min(torch.finfo(sent.dtype).tiny))
    if observation.noise_std is not None:
        return scale * float(_columns({name: observation.noise_std[name].double() for name in names}, names).mean())
    rounding = _ROUNDING * float(gradient.norm()) / math.sqrt(gradient.numel())
    if not balanced:
        return rounding
    # Loss gradients sum to zero over classes, so column sums are noise of len(gradient) times the variance.
    return max(rounding, float(gradient.sum(0).square().mean().div(len(gradient)).sqrt()))


_NOISY = 0.05  # noise on the count of a class, in records, above which rows say little about features
_WHOLE = 0.15  # distance to an integer, in records, up to which a count is trusted
_SHRINKAGE = 0.3  # of a class's mean features toward the overall mean, in units of the mean amount
_MISFIT = 1e-3  # variance of the model error per record, in units of (1 / classes)^2
_ALIKE = 1e-2  # spread of probabilities, in the same units, below which integer estimates are trusted
_EQUAL = 1e-3  # the same limit where clipping has changed the scale
_MOST_PAIRS = 2000  # pairs of a probe and a class, to limit memory for many classes


def class_labels_or_none(labels: Tensor) -> tuple[int, ...] | None:
    """Return the classes that an attack used, for its report.

    Args:
        labels: Labels that the attack worked with.

    Returns:
        The classes; None if the labels are not classes.

    >>> class_labels_or_none(torch.tensor([3, 1])), class_labels_or_none(torch.tensor([0.5]))
    ((3, 1), None)
    """
    return None if labels.is_floating_point() or labels.ndim > 1 else tuple(labels.cpu().tolist())


def infer_label(released: Mapping[str, Tensor]) -> Tensor:
    r"""Infer the label of a single record from the gradient of the last layer.

    .. math:: \partial \ell / \partial b_c = p_c - 1[c = y]

    Here :math:`\ell` is the training loss, b the bias of the last layer, :math:`p_c` the predicted probability of class
    c, and y the label.

    Args:
        released: Released gradient, in the order of the layers.

    Returns:
        The label, of shape (1,).

    Raises:
        InvalidInput: If no bias or weight was released.

    Assumes: cross-entropy, a batch of one, and that the last released bias (or else weight) belongs to the output
    layer.
    Guarantee: exact without noise, since only the true class has a negative entry.
    Edge cases: without a bias the rows of the weight are summed; exact if the features share one sign.
    Reference: Section 3.2, `Zhao et al. (2020) <https://arxiv.org/abs/2001.02610>`_.

    >>> infer_label({"weight": torch.zeros(3, 2), "bias": torch.tensor([0.2, -0.5, 0.3])})
    tensor([1])
    """
    tensors = [tensor for tensor in released.values() if tensor.ndim in (1, 2)]
    if not tensors:
        raise InvalidInput(f"Expected a released bias or weight of the output layer. {DECLARE}")
    last = tensors[-1]
    scores = last if last.ndim == 1 else last.sum(1)
    return scores.argmin().view(1)


def infer_label_counts(observation: Observation) -> Tensor:
    r"""Infer the number of records of each class in an update.

    .. math:: \sum_i d_i = \sum_c n_c\, \bar d_c, \qquad d_i = \partial \ell_i / \partial z_i = p_i - e_{y_i}
              \text{ for cross-entropy}

    Here :math:`n_c` is the number of records of class c, :math:`z_i` the outputs for record i, :math:`\ell_i` its
    training loss, :math:`p_i` its predicted probabilities and :math:`e_{y_i}` its label, one-hot. The bias of the
    output layer has gradient :math:`\sum_i d_i`. For a typical record of class c, :math:`\bar d_c` follows from its
    features, which are approximately the row of the weight's gradient divided by the gradient of the bias. The counts
    solve the equation by regularised least squares. Batches of at most half as many records as classes are first
    separated into single records (:func:`reconrisk.attacks.labels.separate_records.separate`).

    Args:
        observation: The observation of the update.

    Returns:
        One integer per class; they sum to ``batch_size``.

    Raises:
        InvalidInput: For the training loss of a regression, an unknown network, or an output layer that is not
            released.

    Assumes: a training loss of outputs and class indices that sums or averages over records. For a local update, steps
    that are small relative to the output layer. Clipping, noise and pruning need not be known.
    Guarantee: exact for a single record without noise. Exact counts where records have nearly the same features, as in
    untrained networks. Mostly exact in any network for batches of up to half as many records as classes.
    Edge cases: for trained networks and larger batches the result is an estimate; records with vanishing gradients are
    guessed. Adaptive optimizers reveal little more than the set of classes. Without a released bias the size of the
    features is taken from random inputs in the data range. Regression, an unknown network and an output layer that is
    not released are refused.
    Reference: `Ma et al. (2023) <https://openreview.net/forum?id=FIrQfNSOoTr>`_ for the features of a class, here with
    shrinkage and regularisation; :func:`infer_label` for a single record.

    >>> from reconrisk.core.threat import HONEST_BUT_CURIOUS
    >>> from reconrisk.releases.updates.gradient import GradientMap
    >>> forward = GradientMap(nn.Linear(2, 4))
    >>> released = forward(torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.4]]), torch.tensor([3, 1, 3]))
    >>> infer_label_counts(Observation(released, forward, HONEST_BUT_CURIOUS, (2,), (0.0, 1.0), batch_size=3))
    tensor([0, 1, 0, 2])
    """
    layer, records = output_layer(observation), observation.batch_size
    cross_entropy = is_cross_entropy(layer.loss_fn, layer.classes)
    # Adaptive optimizers keep little more than the signs: negative sums show the classes.
    if not layer.linear:
        return _round_counts((-_amounts(layer)[0]).clamp_min(0), records)
    # A single record: the label follows from the signs of d, exactly without noise.
    if records == 1 and cross_entropy:
        return nn.functional.one_hot(torch.tensor(_infer_single(layer)), layer.classes)
    # Batches of several records: least squares first, separation where that is possible and needed.
    estimate = _estimate_counts(layer, records)
    # Separation needs more equations than unknowns: at most half as many records as classes.
    separable = cross_entropy and layer.exact and layer.weighted and layer.noise_std < _NOISY
    if estimate.is_sure or not separable or 2 * records > layer.classes:
        return _round_counts(estimate.counts, records)
    found = _separate_records(layer, records)
    counts = torch.bincount(torch.tensor(found.labels, dtype=torch.int64), minlength=layer.classes)
    left = records - len(found.labels)
    return (
        counts + _round_counts(_estimate_counts(replace(layer, gradient=found.rest), left).counts, left)
        if left
        else counts
    )


def labels_for(observation: Observation) -> Tensor:
    """Return the labels that the adversary works with: known labels unchanged, else inferred labels in rising order.

    Args:
        observation: The observation of the update.

    Returns:
        One label per record, on the device of the release.

    Raises:
        InvalidInput: If labels are unknown and cannot be inferred.

    Edge cases: where the order matters, as in the batches of a local update, the inferred order is arbitrary.
    """
    if observation.labels is not None:
        return observation.labels
    if observation.batch_size == 1 and find_model(observation.forward) is None:
        return infer_label(observation.released)
    counts = infer_label_counts(observation)
    return torch.arange(len(counts)).repeat_interleave(counts).to(observation.device)


def _infer_single(layer: OutputLayer) -> int:
    """Infer the label of one record: in G = d h^T the true class has the only negative entry of d."""
    amounts, _, _ = _amounts(layer)
    largest = float(amounts.abs().max())
    left, sizes, _ = torch.linalg.svd(layer.gradient - layer.gradient.mean(0), full_matrices=False)
    edge = layer.noise_std * (
        layer.classes**0.5 + layer.gradient.shape[1] ** 0.5
    )  # largest singular value of pure noise (Bai-Yin)
    # Noise above 2 % of the largest amount: the leading singular vector uses all columns and is more robust.
    if layer.classes > 2 and layer.weighted:
        if layer.noise_std > 0.02 * largest > 1e-8 and sizes[0] > 2 * edge:
            return int(left[:, 0].abs().argmax())
        if not layer.biased and layer.noise_std < 0.02 * largest:
            return int((left[:, 0] * left[:, 0].sign().sum().sign()).argmin())
    return int(amounts.argmin())


def _amounts(layer: OutputLayer) -> tuple[Tensor, Tensor, float]:
    """Return the sum of d over the records, the direction that maps features to 1, and the noise of the sum.

    The bias gives the sum exactly. Under noise, an average over all columns along the features of the probes is better.
    """
    mean = layer.features.mean(0)
    direction = mean / (mean @ mean).clamp_min(torch.finfo(mean.dtype).tiny)
    if layer.biased and (layer.noise_std < _NOISY or not layer.weighted):
        direction = torch.zeros_like(mean)
        # The feature of the bias is 1, so its column is the sum of d.
        direction[-1] = 1
    return layer.gradient @ direction, direction, layer.noise_std * float(direction.norm())


@dataclass(frozen=True, eq=False)
class _Estimate:
    """Counts as real numbers; ``is_sure`` is True if they can be trusted without separating records."""

    counts: Tensor
    is_sure: bool


def _estimate_counts(layer: OutputLayer, records: int) -> _Estimate:
    """Estimate counts as real numbers: least squares on the amounts and their sum, regularised toward equal counts.

    The more the typical gradients differ between classes, the less weight the equations get.
    """
    amounts, _, noise = _amounts(layer)
    means, spread = _typical_gradients(layer, amounts)
    ones, equal = torch.ones_like(amounts), records / layer.classes
    # Weights are inverse variances: model error, noise, and with factors 0.03 and 300, the spread between classes.
    weight = equal / (records * (_MISFIT / layer.classes**2 + 0.03 * spread) + noise**2)
    sum_weight = equal / (records * (1e-9 + 300 * spread))
    normal = ones.diag() + weight * means.T @ means + sum_weight * torch.outer(ones, ones)
    sides = torch.stack([(equal + sum_weight * records) * ones, weight * means.T @ amounts], dim=1)
    start, slope = torch.linalg.solve(normal, sides).T
    enlargement = _factor_against_clipping(layer, start, slope, records)
    counts = start + enlargement * slope
    # A single badly fitted record can hide others and make all records seem alike.
    fitted = -float(amounts.clamp_max(0).sum()) < 0.1 * records
    relative = spread * layer.classes**2
    alike = relative < _EQUAL if enlargement > 1 else relative < _ALIKE and not fitted
    return _Estimate(counts, alike and _are_whole(counts))


def _factor_against_clipping(layer: OutputLayer, start: Tensor, slope: Tensor, records: int) -> float:
    """Return the factor that undoes the clipping of the amounts.

    With fewer records than classes some count must be zero; with more, all must be integers. If it is unknown whether
    the update was clipped, the factor is 1 unless the counts contradict that.
    """
    falling, unsure = slope < 0, not layer.clipped
    if layer.clipped is False or not bool(falling.any()) or (unsure and _are_whole(start + slope)):
        return 1.0
    # Largest factor that keeps all counts nonnegative.
    largest = max(1.0, float((start[falling] / -slope[falling]).min()))
    if records < layer.classes:
        without = float((start + slope).min() / start.min())
        return 1.0 if unsure and without < 0.3 else largest
    # Grid search for the factor whose counts are nearest to integers.
    factors = torch.linspace(1.0, largest, 200, dtype=start.dtype, device=start.device)
    counts = start + factors[:, None] * slope
    best = int((counts - counts.round()).square().sum(1).argmin())
    return 1.0 if unsure and not _are_whole(counts[best]) else float(factors[best])


def _are_whole(counts: Tensor) -> bool:
    return bool(((counts - counts.round()).abs() < _WHOLE).all())


def _typical_gradients(layer: OutputLayer, amounts: Tensor) -> tuple[Tensor, float]:
    """Return in column c the loss gradient of a typical record of class c, and the spread of the probabilities."""
    labels = torch.arange(layer.classes, device=amounts.device)
    if not layer.weighted or layer.noise_std > _NOISY:
        # Features are unknown: use the outputs of random probes instead.
        probes = layer.outputs[: max(1, _MOST_PAIRS // layer.classes)]
        pairs = _loss_gradients(layer.loss_fn, probes.repeat_interleave(len(labels), 0), labels.repeat(len(probes)))
        means = pairs.view(len(probes), len(labels), len(labels)).mean(0)
        return means.T, float(layer.outputs.softmax(1).var(0).mean())
    signs, tiny = amounts.sign()[:, None], torch.finfo(amounts.dtype).tiny
    # Rows of G over their amounts are mean features; small amounts are shrunk toward the overall mean.
    overall = (signs * layer.gradient).sum(0) / amounts.abs().sum().clamp_min(tiny)
    # Classes with small amounts have unreliable mean features.
    shrinkage = _SHRINKAGE * amounts.abs().mean().clamp_min(tiny)
    features = (signs * layer.gradient + shrinkage * overall) / (amounts.abs() + shrinkage)[:, None]
    outputs = features @ layer.parameters.mT + layer.offset
    gradients = torch.stack([_loss_gradients(layer.loss_fn, at_step, labels) for at_step in outputs])
    return gradients.mean(0).T, float(outputs.softmax(2).var(1).mean())


def _separate_records(layer: OutputLayer, records: int) -> SeparatedRecords:
    """Separate single records; if clipping is unknown, allow for it only where that finds more of them."""
    _, direction, _ = _amounts(layer)
    attempt = partial(
        separate,
        layer.gradient,
        layer.parameters[0],
        records,
        direction=direction,
        offset=layer.offset,
        biased=layer.biased,
        noise_std=layer.noise_std,
    )
    found = attempt(sized=not layer.clipped)
    if layer.clipped is not None or len(found.labels) == records:
        return found
    scaled = attempt(sized=False)
    # A common clipping factor scales all records alike: divisors must agree within 20 %.
    together = len(scaled.labels) > len(found.labels) and max(scaled.divisors) < 1.2 * min(scaled.divisors)
    return scaled if together else found


def _round_counts(counts: Tensor, records: int) -> Tensor:
    """Project to nonnegative counts that sum to ``records``, then round by largest remainders."""
    counts = counts.cpu()
    # Euclidean projection onto the simplex (Duchi et al. 2008), then largest remainders.
    falling = counts.sort(descending=True).values
    excess = (falling.cumsum(0) - records) / torch.arange(1, len(counts) + 1)
    shared = excess[int((falling > excess).sum()) - 1]
    real = (counts - shared).clamp_min(0)
    whole = real.floor().long()
    missing = records - int(whole.sum())
    whole[(real - whole).argsort(descending=True)[:missing]] += 1
    return whole
