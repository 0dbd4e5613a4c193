"""Table 7 of meng2025: guided sampling under Laplacian noise of the variances of Table 2, for the same images.

The attack weighs residuals by the standard deviation and does not use the law, as the paper's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import reconrisk as rr
from reconrisk.defenses import gaussian_noise, laplace_noise
from reproductions.frame import Finding, Scale
from reproductions.gradient_inversion import mean_over
from reproductions.meng2025.guided import Outcome, decibels, guided, words
from reproductions.meng2025.settings import Study, network, observations, parts_of, reproduce_with_prior, study, tell

PAPER = {
    1e-4: "MSE 0.0016, PSNR 27.9395 dB",
    1e-3: "MSE 0.0038, PSNR 24.2073 dB",
    1e-2: "MSE 0.0304, PSNR 15.1657 dB",
    1e-1: "MSE 0.1390, PSNR 8.5697 dB",
}
GAUSSIAN = {1e-4: 28.0343, 1e-3: 24.0567, 1e-2: 14.9784, 1e-1: 9.0236}
"""PSNR in Table 2."""

LAPLACIAN = {1e-4: 27.9395, 1e-3: 24.2073, 1e-2: 15.1657, 1e-1: 8.5697}
LAWS = {"Laplacian": laplace_noise, "Gaussian": gaussian_noise}
SIZES = {"small": (4, 100), "paper": (40, 1000)}
"""Images and steps."""


def run(scale: Scale, prior: str, only: Sequence[str] = ()) -> Sequence[Finding]:
    """PSNR, MSE, SSIM and LPIPS on the CNN by variance, and the difference to Gaussian noise."""
    believed, (images, steps) = study(prior), SIZES[scale]
    findings = list[Finding]()
    for variance in parts_of(PAPER, only):
        found = compared_at(variance, believed, images, steps)
        findings += found
        tell(found)
    return findings


def compared_at(variance: float, believed: Study, images: int, steps: int) -> list[Finding]:
    """Both laws at one variance."""
    inputs, outcomes = believed.inputs[:images], dict[str, Outcome]()
    attack = rr.attacks.ggss_r(believed.prior, steps=steps)
    model = network("CNN", believed.shape)
    for law, noise in LAWS.items():
        parts = observations(model, inputs, believed.labels[:images], defense=noise(math.sqrt(variance)))
        outcomes[law] = guided(attack, parts, inputs)
    each = {law: decibels(outcome.estimates, inputs, len(inputs)) for law, outcome in outcomes.items()}
    difference = mean_over(each["Laplacian"] - each["Gaussian"], "images, dB, own stop")
    remark = f"{believed.said}, {len(inputs)} images, {steps} steps, labels and noise known, untrained"
    stated = f"{LAPLACIAN[variance] - GAUSSIAN[variance]:+.4f} dB"
    what = f"GGSS-R on CNN, Laplacian noise of variance {variance:g} (Table 7)"
    return [
        Finding(what, f"{PAPER[variance]} at the peak", words(outcomes["Laplacian"], inputs), remark),
        Finding(f"Laplacian minus Gaussian at variance {variance:g} (Tables 2 and 7)", stated, difference, remark),
    ]


if __name__ == "__main__":
    sys.exit(reproduce_with_prior(run))
