"""What guided sampling and ours are held to: 20 images, the same gradients for all, an attacker's own stop.

Clean gradients of MLP-3, MLP-4, MLP-5 and CNN at the guidance rate that is best here; then gradients of the CNN under
Gaussian noise, where guided sampling is to beat attacks on pixels and in the range of a generator, and ours are to
beat guided sampling. Tables 2 to 4 have all rivals on fewer images.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import reconrisk as rr
from reconrisk.core.observation import Attack
from reconrisk.defenses import gaussian_noise
from reproductions.frame import Finding, Scale
from reproductions.gradient_inversion import mean_over
from reproductions.meng2025.guided import attacked, decibels, guided, words
from reproductions.meng2025.settings import (
    Study,
    network,
    observations,
    parts_of,
    reproduce_with_prior,
    study,
    tell,
)

IMAGES = 20
CLEAN_STEPS, CLEAN_GUIDANCE, CLEAN_WANTED = 300, 0.4, 35.0
NETWORKS = ("MLP-3", "MLP-4", "MLP-5", "CNN")
VARIANCES = ("0.0001", "0.001", "0.01", "0.1")


def run(scale: Scale, prior: str, only: Sequence[str] = ()) -> Sequence[Finding]:
    """PSNR of clean gradients by network, and of the CNN's by variance of noise, over 20 images at every scale."""
    del scale
    believed, findings = study(prior), list[Finding]()
    for part in parts_of((*NETWORKS, *VARIANCES), only):
        found = _clean(part, believed) if part in NETWORKS else _noisy(float(part), believed)
        tell(found)
        findings += found
    return findings


def _clean(name: str, believed: Study) -> list[Finding]:
    inputs, labels = believed.inputs[:IMAGES], believed.labels[:IMAGES]
    parts = observations(network(name, believed.shape), inputs, labels)
    attack = rr.attacks.ggss_r(believed.prior, steps=CLEAN_STEPS, guidance=CLEAN_GUIDANCE)
    outcome = guided(attack, parts, inputs)
    mean = float(decibels(outcome.estimates, inputs, len(inputs)).mean())
    verdict = "holds" if mean > CLEAN_WANTED else "does not hold"
    what = f"GGSS-R above {CLEAN_WANTED:g} dB on {name}, clean gradient"
    remark = f"{believed.said}, {len(inputs)} images, {CLEAN_STEPS} steps, guidance {CLEAN_GUIDANCE}, labels known"
    return [Finding(what, "holds on faces (Table 1)", f"{verdict}: {words(outcome, inputs)}", remark)]


def _noisy(variance: float, believed: Study) -> list[Finding]:
    inputs, labels = believed.inputs[:IMAGES], believed.labels[:IMAGES]
    defense = gaussian_noise(math.sqrt(variance))
    parts = observations(network("CNN", believed.shape), inputs, labels, defense=defense)
    outcomes = {"GGSS-R": guided(rr.attacks.ggss_r(believed.prior), parts, inputs)}
    outcomes |= {name: attacked(attack, parts, inputs, name) for name, attack in _others(believed).items()}
    remark = f"{believed.said}, {len(inputs)} images, labels and noise known"
    suffix = f"CNN, noise of variance {variance:g}"
    found = [
        Finding(f"{name}, {suffix}, 20 images", "other images", words(outcome, inputs), remark)
        for name, outcome in outcomes.items()
    ]
    scores = {name: decibels(each.estimates, inputs, len(inputs)) for name, each in outcomes.items()}
    for name in outcomes:
        if name != "GGSS-R":
            gain = mean_over(scores[name] - scores["GGSS-R"], "images, dB")
            found.append(Finding(f"{name} over GGSS-R, {suffix}", "not given", str(gain), remark))
    return found


def _others(believed: Study) -> dict[str, Attack]:
    """Ours, and the strongest of each kind of rival in Tables 3 and 4 that a small prior has."""
    found: dict[str, Attack] = {"plug-and-play": rr.attacks.plug_and_play(believed.prior)}
    if believed.fitted is not None:
        first = rr.attacks.ggss_r(believed.fitted)
        found["Gaussian posterior"] = rr.attacks.gaussian_posterior(believed.fitted, warm_start=first)
    found["IG"] = rr.attacks.inverting_gradients(steps=300)
    if believed.generator is not None:
        found["GIAS"] = rr.attacks.gias(believed.generator, steps=200, weight_steps=100, restarts=1)
    return found


if __name__ == "__main__":
    sys.exit(reproduce_with_prior(run))
