"""What guided sampling is held to without noise: 20 images, an attacker's own stop, the best guidance rate here.

Table 1 has six networks on fewer images; what is claimed under noise stands with Tables 2 to 4.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import reconrisk as rr
from reproductions.frame import Finding, Scale
from reproductions.meng2025.guided import decibels, guided, words
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


def run(scale: Scale, prior: str, only: Sequence[str] = ()) -> Sequence[Finding]:
    """PSNR of guided sampling from clean gradients by network, over 20 images at every scale."""
    del scale
    believed, findings = study(prior), list[Finding]()
    for name in parts_of(NETWORKS, only):
        findings.append(_clean(name, believed))
        tell(findings[-1:])
    return findings


def _clean(name: str, believed: Study) -> Finding:
    inputs, labels = believed.inputs[:IMAGES], believed.labels[:IMAGES]
    parts = observations(network(name, believed.shape), inputs, labels)
    attack = rr.attacks.ggss_r(believed.prior, steps=CLEAN_STEPS, guidance=CLEAN_GUIDANCE)
    outcome = guided(attack, parts, inputs)
    mean = float(decibels(outcome.estimates, inputs, len(inputs)).mean())
    verdict = "holds" if mean > CLEAN_WANTED else "does not hold"
    what = f"GGSS-R above {CLEAN_WANTED:g} dB on {name}, clean gradient"
    remark = f"{believed.said}, {len(inputs)} images, {CLEAN_STEPS} steps, guidance {CLEAN_GUIDANCE}, labels known"
    return Finding(what, "holds on faces (Table 1)", f"{verdict}: {words(outcome, inputs)}", remark)


if __name__ == "__main__":
    sys.exit(reproduce_with_prior(run))
