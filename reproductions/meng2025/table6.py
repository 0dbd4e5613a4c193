"""Table 6 of meng2025: guided sampling of the CNN's clean gradient by guidance rate, and at full guidance."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import reconrisk as rr
from reproductions.frame import Finding, Scale
from reproductions.meng2025.guided import decibels, guided, words
from reproductions.meng2025.settings import network, observations, parts_of, reproduce_with_prior, study, tell

PAPER = {
    0.01: "MSE 2.0406e-3, PSNR 26.9023 dB",
    0.10: "MSE 2.1778e-4, PSNR 36.6198 dB",
    0.20: "MSE 7.7215e-5, PSNR 41.1229 dB",
    0.30: "MSE 1.4769e-4, PSNR 38.3065 dB",
    0.40: "MSE 1.0778e-4, PSNR 39.6746 dB",
    0.60: "MSE 2.0407e-4, PSNR 36.9023 dB",
    0.80: "MSE 2.7478e-4, PSNR 35.6101 dB",
    1.00: "not given",
}

SIZES = {"small": (4, 100), "paper": (20, 1000)}
"""Images and steps."""


def run(scale: Scale, prior: str, only: Sequence[str] = ()) -> Sequence[Finding]:
    """PSNR, MSE, SSIM and LPIPS by guidance rate, and the rate that is best at the attacker's own stop."""
    images, steps = SIZES[scale]
    believed = study(prior)
    inputs = believed.inputs[:images]
    parts = observations(network("CNN", believed.shape), inputs, believed.labels[:images])
    remark = f"{believed.said}, {len(inputs)} images, {steps} steps, labels known, untrained"
    findings, means = list[Finding](), dict[float, float]()
    for rate in parts_of(PAPER, only):
        outcome = guided(rr.attacks.ggss_r(believed.prior, steps=steps, guidance=rate), parts, inputs)
        means[rate] = float(decibels(outcome.estimates, inputs, len(inputs)).mean())
        what = f"GGSS-R on CNN, clean gradient, guidance {rate:g} (Table 6)"
        findings.append(Finding(what, PAPER[rate], words(outcome, inputs), remark))
        tell(findings[-1:])
    if only:
        return findings
    best = max(means, key=lambda rate: means[rate])
    ours = f"{best:g}, {means[best]:.2f} dB; {means[0.2]:.2f} dB at 0.2"
    return [*findings, Finding("best guidance rate on CNN (Table 6)", "0.2, 41.1229 dB", ours, remark)]


if __name__ == "__main__":
    sys.exit(reproduce_with_prior(run))
