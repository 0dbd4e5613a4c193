"""A defense by its name: which there are, and which settings each takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from reconrisk.core.defense import Defense
from reconrisk.core.mechanism import Composed, Gaussian, Mechanism, PoissonSampled, Repeated
from reconrisk.core.validation import check_settings, did_you_mean, refuse
from reconrisk.defenses.clipping import clip
from reconrisk.defenses.noise import clip_and_noise, gaussian_noise, laplace_noise
from reconrisk.defenses.pruning import prune_smallest
from reconrisk.defenses.quantisation import quantise, sign

DEFENSES: Mapping[str, Callable[..., Defense]] = {
    build.__name__: build
    for build in (gaussian_noise, laplace_noise, clip, clip_and_noise, prune_smallest, quantise, sign)
}
"""The functions that configure a defense, by name."""


def defense_by_name(name: str, **settings: object) -> Defense:
    """The defense that ``name`` stands for, with these settings.

    Guarantee: an unknown name, a setting that it does not take and one that is missing are refused.

    >>> defense_by_name("prune_smallest", share=0.9)
    Pruning(share=0.9)
    >>> defense_by_name("prune_smalest", share=0.9)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected defense='prune_smalest' to be one of gaussian_noise, laplace_noise, \
clip, clip_and_noise, prune_smallest, quantise, sign. Did you mean prune_smallest?
    """
    if name not in DEFENSES:
        raise refuse("defense", name, f"to be one of {', '.join(DEFENSES)}", did_you_mean(name, DEFENSES).strip())
    check_settings(name, inspect.signature(DEFENSES[name]).parameters, settings)
    return DEFENSES[name](**settings)


def defense_of_one_step(mechanism: Mechanism) -> Defense | None:
    """What one step of a run does to the update of a sampled record; None for a mechanism that does not say.

    Of several phases it is the one with the least noise.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> print(defense_of_one_step(dp_sgd(noise_multiplier=2.0, sampling_probability=0.01, steps=100)))
    clip_and_noise(noise_multiplier=2, clip_norm=1)
    """
    phases = mechanism.mechanisms if isinstance(mechanism, Composed) else (mechanism,)
    found = [step for step in map(_gaussian, phases) if step is not None]
    if not found:
        return None
    step = min(found, key=lambda each: each.noise_multiplier)
    return clip_and_noise(noise_multiplier=step.noise_multiplier, clip_norm=step.clip_norm)


def _gaussian(mechanism: Mechanism) -> Gaussian | None:
    while isinstance(mechanism, (Repeated, PoissonSampled)):
        mechanism = mechanism.mechanism
    return mechanism if isinstance(mechanism, Gaussian) else None
