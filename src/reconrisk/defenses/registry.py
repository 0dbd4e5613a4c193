"""A defense by its name: which there are, and which settings each takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from reconrisk.core.defense import Defense
from reconrisk.core.mechanism import Composed, Gaussian, Mechanism, PoissonSampled, Repeated
from reconrisk.core.validation import check_settings, did_you_mean, refuse
from reconrisk.defenses.clipping import clip
from reconrisk.defenses.deferred import FromMoments
from reconrisk.defenses.local import local_optimal_noise, local_optimal_pruning
from reconrisk.defenses.noise import clip_and_noise, dp_sgd_noise, gaussian_noise, laplace_noise
from reconrisk.defenses.optimal_noise import equal_noise, optimal_noise
from reconrisk.defenses.pruning import optimal_pruning, optimal_pruning_and_noise, prune, random_pruning
from reconrisk.defenses.quantisation import quantise, sign

DEFENSES: Mapping[str, Callable[..., Defense]] = {
    build.__name__: build
    for build in (
        gaussian_noise,
        laplace_noise,
        clip,
        clip_and_noise,
        dp_sgd_noise,
        prune,
        random_pruning,
        quantise,
        sign,
        local_optimal_noise,
        local_optimal_pruning,
    )
}
"""The functions that configure a defense with numbers alone, by name."""

FROM_MOMENTS: Mapping[str, Callable[..., Defense]] = {
    build.__name__: build for build in (optimal_noise, optimal_pruning, optimal_pruning_and_noise, equal_noise)
}
"""Those that need moments of public records too."""


def defense_by_name(name: str, **settings: object) -> Defense:
    """The defense that ``name`` stands for, with these settings.

    Those that public records choose, such as ``optimal_noise``, are settled by ``with_public``; noise takes a
    ``noise_multiplier`` with a ``clip_norm`` too, for a clip before it.

    Guarantee: an unknown name, a setting that it does not take and one that is missing are refused.

    >>> defense_by_name("prune", share=0.9)
    Pruning(share=0.9)
    >>> print(defense_by_name("optimal_noise", noise_multiplier=0.1, clip_norm=1.0))
    optimal_noise(noise_multiplier=0.1, clip_norm=1)
    >>> defense_by_name("quantize", levels=3)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected defense='quantize' to be one of gaussian_noise, laplace_noise, clip, \
clip_and_noise, dp_sgd_noise, prune, random_pruning, quantise, sign, local_optimal_noise, local_optimal_pruning, \
optimal_noise, optimal_pruning, optimal_pruning_and_noise, equal_noise. Did you mean quantise?
    """
    known = {**DEFENSES, **FROM_MOMENTS}
    if name not in known:
        raise refuse("defense", name, f"to be one of {', '.join(known)}", did_you_mean(name, known).strip())
    parameters = dict(inspect.signature(known[name]).parameters)
    if name in DEFENSES:
        check_settings(name, parameters, settings)
        return DEFENSES[name](**settings)
    del parameters["moments"]
    if "unit" in parameters:
        for extra in ("noise_multiplier", "clip_norm"):
            parameters[extra] = inspect.Parameter(extra, inspect.Parameter.KEYWORD_ONLY, default=None)
    check_settings(name, parameters, settings)
    return FromMoments(FROM_MOMENTS[name], settings)


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
