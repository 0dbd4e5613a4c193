"""From a release to what an adversary receives of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.observation import GAUSSIAN, ForwardMap, Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.core.validation import check_all_within, invalid_input
from reconrisk.releases.model_state import LossFunction, called
from reconrisk.releases.release import Release


@dataclass(frozen=True, eq=False)
class DefendedMap:
    """Candidate records to what a known defense would send of them on average."""

    undefended: ForwardMap
    defense: Defense

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The defended release, without its noise."""
        return self.defense.replay(self.undefended(inputs, labels))


def observe(
    release: Release,
    *,
    defense: Defense | None = None,
    threat: ThreatModel = HONEST_BUT_CURIOUS,
    data_range: tuple[float, float] = (0.0, 1.0),
    rng: torch.Generator | None = None,
) -> Observation:
    r"""All that an adversary under ``threat`` receives of a release.

    .. math:: y = D(f(x)) + \mathrm{noise}

    Side information is handed over only as far as ``threat`` knows it: labels, norms of the records, statistics of the
    batch, and the defense (its clipping in ``forward``, its noise and the values it kept).

    Assumes: ``data_range`` is public. ``rng`` draws what the defense draws.
    Guarantee: the observation holds no tensor of the release's records.
    Edge cases: a defense needs ``rng``; records outside ``data_range`` are refused, since every attack clips to it.

    >>> from reconrisk.releases.updates.gradient import GradientRelease
    >>> release = GradientRelease(nn.Linear(2, 2), nn.functional.cross_entropy, torch.ones(1, 2), torch.tensor([0]))
    >>> observe(release)
    Observation(2 tensors, 6 values, 1 x (2,), ThreatModel(sees=one-update, knows=nothing, controls=nothing))
    >>> observe(release, threat=HONEST_BUT_CURIOUS.knowing(Knows.LABELS)).labels
    tensor([0])
    """
    check_all_within("records", release.inputs, data_range, "State the public range of the values.")
    sent: Mapping[str, Tensor] = _released(release)
    forward, knows = release.forward, threat.knows
    noise_std, kept, noise_law = None, None, GAUSSIAN
    if defense is not None:
        if not isinstance(rng, torch.Generator):
            raise invalid_input(
                "rng", rng, "to be a generator for the defense", "Pass torch.Generator().manual_seed(0)."
            )
        defense = chosen_for(defense, release)
        sent = defense(sent, rng=rng)
        if Knows.DEFENSE in knows:
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


def chosen_for(defense: Defense, release: Release) -> Defense:
    """The defense itself, or the one that it chooses for this release if it has ``for_release``."""
    choose: Callable[[Release], Defense] | None = getattr(defense, "for_release", None)
    return defense if choose is None else choose(release)


def model_of(forward: ForwardMap) -> nn.Module | None:
    """The network whose update a forward map computes, or None for a map without one.

    >>> from reconrisk.releases.updates.gradient import GradientMap
    >>> model_of(GradientMap(nn.Linear(2, 2)))
    Linear(in_features=2, out_features=2, bias=True)
    """
    inner = forward.undefended if isinstance(forward, DefendedMap) else forward
    found = getattr(inner, "model", None) or getattr(getattr(inner, "training", None), "model", None)
    return found if isinstance(found, nn.Module) else None


def loss_of(forward: ForwardMap) -> LossFunction | None:
    """The loss that the update of a forward map lowers, or None for a map without one."""
    inner = forward.undefended if isinstance(forward, DefendedMap) else forward
    found: LossFunction | None = getattr(getattr(inner, "training", inner), "loss_fn", None)
    return found


def seen_by_batch_norm(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """What each batch norm layer of ``model`` receives for ``inputs``, by the name of the layer; differentiable."""
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
        called(model, cast, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _batch_statistics(release: Release) -> dict[str, Tensor] | None:
    model = model_of(release.forward)
    if model is None:
        return None
    statistics: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, values in seen_by_batch_norm(model, release.inputs).items():
            channels = values.transpose(0, 1).flatten(1)
            statistics |= {f"{name}.mean": channels.mean(1), f"{name}.var": channels.var(1, unbiased=False)}
    return statistics or None


def _released(release: Release) -> dict[str, Tensor]:
    try:
        return release.value()
    except IndexError as error:  # torch's word for a label beyond the outputs
        largest, smallest = int(release.labels.max()), int(release.labels.min())
        found = smallest if smallest < 0 else largest
        said = str(error).rstrip(".")
        raise invalid_input("labels", found, f"to be classes of the model: {said}", "Count classes from 0.") from error
