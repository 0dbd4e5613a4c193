"""Optimal pruning followed by optimal noise."""

from __future__ import annotations

from dataclasses import replace

import torch

from reconrisk.defenses.budget import NoiseBudget, TargetBound
from reconrisk.defenses.chain import Chain, chain
from reconrisk.defenses.masks import optimal_pruning
from reconrisk.defenses.optimal_noise import optimal_stds
from reconrisk.defenses.parameter_noise import ParameterNoise
from reconrisk.defenses.scales import NoiseScales
from reconrisk.releases.reference_moments import ReferenceMoments


def optimal_pruning_and_noise(
    moments: ReferenceMoments,
    *,
    share: float | None = None,
    utility: float | None = None,
    utility_loss: float | None = None,
    noise_norm: float | None = None,
    like: float | None = None,
    unit: float | None = None,
    target: TargetBound | None = None,
) -> Chain:
    r"""Optimal pruning, then optimal noise on what is kept: what is dropped is sent as zero, without noise.

    State the pruning by ``share`` or ``utility`` as in :func:`optimal_pruning`, the noise by one of the others as in
    :func:`optimal_noise`; they count the kept values only. A borderline value is sent always, not by a coin.

    Guarantee: ``clip(C) >> optimal_pruning_and_noise(...)`` is a Gaussian mechanism: dropping values makes no release
    longer, and dropping them again after the noise is post-processing.
    Reference: end of appendix A.3, chen2025: the best mask is the same with optimal noise as with equal noise.

    >>> def mean(*values): return {"w": torch.tensor(values)}
    >>> moments = ReferenceMoments(mean(9.0, 1.0, 4.0), mean(0.0, 0.0, 0.0), mean(1.0, 1.0, 1.0), records=1, probes=1)
    >>> defense = optimal_pruning_and_noise(moments, share=0.34, like=0.1)
    >>> defense({"w": torch.ones(3)}, rng=torch.Generator().manual_seed(0))["w"][0]
    tensor(0.)
    """
    pruning = optimal_pruning(moments, share=share, utility=utility)
    sent = pruning.sometimes_sent()
    budget = NoiseBudget(utility_loss, noise_norm, like, unit, target)
    sensitivity = {name: value[sent[name]] for name, value in moments.sensitivity.items()}
    square = {name: value[sent[name]] for name, value in moments.square.items()}
    chosen = optimal_stds(replace(moments, sensitivity=sensitivity, square=square), budget)
    # what is dropped anyway gets the usual noise, which leaves the unit that a clip is measured in
    usual = NoiseScales(chosen).unit
    stds = {name: torch.full_like(value, usual) for name, value in moments.square.items()}
    for name, std in stds.items():
        std[sent[name]] = chosen[name]
    noise = ParameterNoise(NoiseScales(stds), f"optimal_noise({budget})")
    mask = replace(pruning, mask=sent, borderline=None)
    return chain(mask, noise, replace(mask, name="the same values"))
