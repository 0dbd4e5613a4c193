"""The step from a release to the observation of an adversary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.observation import GAUSSIAN, ForwardMap, Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import check_all_within, invalid_input
from reconrisk.releases.model_state import LossFunction, call_module
from reconrisk.releases.release import Release


@dataclass(frozen=True, eq=False)
class DefendedMap:
    """Forward map from candidate records to the mean of the defended release.

    Attributes:
        undefended: Forward map without the defense.
        defense: The defense, which the adversary knows.
    """

    undefended: ForwardMap
    defense: Defense

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the defended release of candidate records, without its noise."""
        return self.defense.replay(self.undefended(inputs, labels))


def observe(
    release: Release,
    *,
    defense: Defense | None = None,
    threat: ThreatModel = HONEST_BUT_CURIOUS,
    data_range: tuple[float, float] = (0.0, 1.0),
    rng: torch.Generator | None = None,
) -> Observation:
    r"""Return the observation of an adversary: the defended release and the side information that the threat grants.

    .. math:: y = D(f(x)) + \mathrm{noise}

    Here x are the records, f is the release and D the deterministic part of the defense, such as clipping.

    Side information is included only if ``threat`` knows it: labels, norms of the records, statistics of the batch, and
    the defense (its clipping in ``forward``, its noise and the positions of the values it kept).

    Args:
        release: Private records with their forward map.
        defense: Defense that is applied to the release; None for none.
        threat: Abilities of the adversary.
        data_range: Smallest and largest value of a record.
        rng: Generator of the defense's randomness; needed only with a defense.

    Returns:
        The observation that an attack takes.

    Raises:
        InvalidInput: If a record is outside ``data_range``, a label is not a class of the model, or ``rng`` is missing.

    Assumes: ``data_range`` is public.
    Guarantee: the observation holds no tensor of the release's records.
    Edge cases: a defense needs ``rng``; records outside ``data_range`` are refused, since every attack clips to it.

    >>> from reconrisk.releases.updates.gradient import GradientRelease
    >>> release = GradientRelease(nn.Linear(2, 2), nn.functional.cross_entropy, torch.ones(1, 2), torch.tensor([0]))
    >>> observe(release)
    Observation(2 tensors, 6 values, 1 x (2,), ThreatModel(sees=one-update, knows=nothing, controls=nothing))
    >>> observe(release, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)).labels
    tensor([0])
    """
    check_all_within("records", release.inputs, data_range, "Pass data_range=(low, high), the public range.")
    sent: Mapping[str, Tensor] = _compute_release(release)  # as the server receives it
    forward, knows = release.forward, threat.knows
    noise_std, kept, noise_law = None, None, GAUSSIAN
    if defense is not None:
        if not isinstance(rng, torch.Generator):
            raise invalid_input(
                "rng",
                rng,
                "to be a torch.Generator if there is a defense",
                "Pass rng=torch.Generator().manual_seed(0).",
            )
        defense = resolve_defense(defense, release)
        sent = defense(sent, rng=rng)
        if Knows.DEFENSE in knows:  # otherwise the adversary matches the undefended map to defended values
            forward = DefendedMap(forward, defense)
            noise_std, kept = defense.noise_std(sent), defense.kept(sent)
            noise_law = getattr(defense, "noise_law", GAUSSIAN) if noise_std is not None else GAUSSIAN
    return Observation(
        released=sent,
        forward=forward,
        threat=threat,
        input_shape=tuple(release.inputs.shape[1:]),
        data_range=data_range,
        batch_size=len(release.inputs),
        labels=release.labels.detach().clone() if Knows.LABELS in knows else None,
        record_norms=release.inputs.detach().flatten(1).norm(dim=1) if Knows.RECORD_NORM in knows else None,
        batch_statistics=_batch_statistics(release) if Knows.BATCH_STATISTICS in knows else None,
        noise_std=noise_std,
        kept=kept,
        noise_law=noise_law,
    )


def resolve_defense(defense: Defense, release: Release) -> Defense:
    """Return the defense to apply to a release: ``defense`` itself, or the result of its ``for_release`` method.

    Args:
        defense: The configured defense.
        release: The release that it will protect.

    Returns:
        A defense that can be applied.
    """
    choose: Callable[[Release], Defense] | None = getattr(defense, "for_release", None)
    return defense if choose is None else choose(release)


def find_model(forward: ForwardMap) -> nn.Module | None:
    """Return the network whose update a forward map computes.

    Args:
        forward: A forward map, with or without a defense.

    Returns:
        The network, or None if the map has none.

    >>> from reconrisk.releases.updates.gradient import GradientMap
    >>> find_model(GradientMap(nn.Linear(2, 2)))
    Linear(in_features=2, out_features=2, bias=True)
    """
    inner = remove_defense(forward)
    # Gradient maps hold the model themselves, maps of local updates hold a training.
    found = getattr(inner, "model", None) or getattr(getattr(inner, "training", None), "model", None)
    return found if isinstance(found, nn.Module) else None


def find_loss(forward: ForwardMap) -> LossFunction | None:
    """Return the loss that the update of a forward map minimises.

    Args:
        forward: A forward map, with or without a defense.

    Returns:
        The loss function, or None if the map has none.
    """
    inner = remove_defense(forward)
    found: LossFunction | None = getattr(getattr(inner, "training", inner), "loss_fn", None)
    return found


def remove_defense(forward: ForwardMap) -> ForwardMap:
    """Return a forward map without its defense.

    Args:
        forward: A forward map, with or without a defense.

    Returns:
        The map of the undefended release.
    """
    undefended: ForwardMap | None = getattr(forward, "undefended", None)
    return forward if undefended is None else remove_defense(undefended)


def batch_norm_inputs(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Return the input of each batch norm layer, differentiable with respect to the records.

    Args:
        model: The network, which is not changed.
        inputs: A batch of records.

    Returns:
        The input of each batch norm layer, by the name of the layer.
    """
    seen: dict[str, Tensor] = {}
    kind = nn.modules.batchnorm._BatchNorm
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, kind)}
    handles = [
        layer.register_forward_pre_hook(lambda _, arguments, name=name: seen.__setitem__(name, arguments[0]))
        for name, layer in layers.items()
    ]
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    try:
        copies = {name: value.detach().clone() for name, value in tensors.items()}
        cast = {name: value.to(inputs.dtype) if value.is_floating_point() else value for name, value in copies.items()}
        call_module(model, cast, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _batch_statistics(release: Release) -> dict[str, Tensor] | None:
    """Return mean and variance per channel at each batch norm layer; None if there is none."""
    model = find_model(release.forward)
    if model is None:
        return None
    statistics: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, values in batch_norm_inputs(model, release.inputs).items():
            channels = values.transpose(0, 1).flatten(1)  # one row per channel, as batch norm averages
            statistics |= {f"{name}.mean": channels.mean(1), f"{name}.var": channels.var(1, unbiased=False)}
    return statistics or None


def _compute_release(release: Release) -> dict[str, Tensor]:
    """Return the release, and translate torch's error for a label beyond the outputs."""
    try:
        return release.value()
    except IndexError as error:  # torch raises it for a label beyond the outputs
        largest, smallest = int(release.labels.max()), int(release.labels.min())
        found = smallest if smallest < 0 else largest
        cause = str(error).rstrip(".")
        raise invalid_input(
            "min(labels)" if smallest < 0 else "max(labels)",
            found,
            f"to be a class of the model: {cause}",
            "Count classes from 0.",
        ) from error
