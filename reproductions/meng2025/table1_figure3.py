"""Table 1 and Figure 3 of meng2025: reconstruction vulnerability and attained quality of six architectures.

The paper guides at rate 0.2 and reports the step that is nearest to the private image; here the attacker's own stop
comes first, that peak second, and the best of several rates is stated too. Large networks have fewer images.
The picture shows what the diffusion takes for the clean image along its way.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from scipy.stats import spearmanr
from torch import nn

import reconrisk as rr
from reconrisk.attacks.with_prior.guided_diffusion import GuidedSampling, GuidedTrajectory
from reconrisk.releases.sensitivity.vulnerability import reconstruction_vulnerability
from reconrisk.reports.rebuild import write_grid
from reproductions.frame import Drawing, Finding, Scale
from reproductions.meng2025.guided import Outcome, decibels, guided, words
from reproductions.meng2025.settings import Study, network, observations, parts_of, reproduce_with_prior, study, tell
from reproductions.meng2025.vulnerability import PAPER as PAPER_VULNERABILITY

PAPER = {
    "ResNet18": (10.79, 9.99, 13.52),
    "MLP-5": (45.05, 26.44, 25.35),
    "VGGNet16": (40.76, 22.79, 29.71),
    "CNN": (41.12, 25.95, 27.39),
    "MLP-4": (45.12, 34.43, 25.10),
    "MLP-3": (43.42, 38.29, 28.00),
}
"""PSNR on CelebA, LSUN and ImageNet."""

PAPER_RATE = 0.2
WANTED = 35.0
SHOWN = 6


@dataclass(frozen=True)
class Sizes:
    """Images, steps at each guidance rate, and records for the vulnerability."""

    images: int
    steps: Mapping[float, int]
    records: int


ORDINARY = {
    "small": Sizes(4, {PAPER_RATE: 100, 0.4: 300}, 4),
    "paper": Sizes(20, {PAPER_RATE: 1000, 0.4: 1000, 1.0: 1000}, 310),
}
LARGE = {
    "ResNet18": {"small": Sizes(4, {PAPER_RATE: 100}, 4), "paper": ORDINARY["paper"]},
    "VGGNet16": {"small": Sizes(2, {PAPER_RATE: 100}, 2), "paper": ORDINARY["paper"]},
}


@dataclass(frozen=True, eq=False)
class Case:
    """What one network gives away: its vulnerability, and the outcome at each guidance rate."""

    vulnerability: float
    outcomes: dict[float, Outcome]
    images: int

    def mean(self, rate: float, believed: Study) -> float:
        """PSNR at the attacker's own stop."""
        outcome = self.outcomes[rate]
        return float(decibels(outcome.estimates, believed.inputs[: self.images], outcome.batches).mean())

    def best(self, believed: Study) -> float:
        """The guidance rate with the highest PSNR at the attacker's own stop."""
        return max(self.outcomes, key=lambda rate: self.mean(rate, believed))


def run(scale: Scale, prior: str, only: Sequence[str] = ()) -> Sequence[Finding | Drawing]:
    """RV, PSNR, MSE, SSIM and LPIPS of guided sampling on the gradients of six untrained networks."""
    believed = study(prior)
    cases, findings = dict[str, Case](), list[Finding]()
    for name in parts_of(PAPER, only):
        sizes = LARGE.get(name, ORDINARY)[scale]
        cases[name] = case = measured(name, believed, sizes)
        found = rows(name, case, believed)
        findings += found
        tell(found)
    picture = Drawing("figure3.png", partial(draw, cases, believed))
    return [*findings, *([] if only else summary(cases, believed)), picture]


def measured(name: str, believed: Study, sizes: Sizes) -> Case:
    """Vulnerability and outcomes of one network."""
    model = network(name, believed.shape)
    inputs, labels = believed.inputs[: sizes.images], believed.labels[: sizes.images]
    some = slice(0, sizes.records)
    found = reconstruction_vulnerability(
        model,
        nn.functional.cross_entropy,
        believed.inputs[some],
        believed.labels[some],
        directions=3,
        chunk=1,
        rng=torch.Generator().manual_seed(0),
    )
    parts = observations(model, inputs, labels)
    together = 1 if name in LARGE else 10
    outcomes = {
        rate: guided(_attack(believed, steps, rate), parts, inputs, together=together)
        for rate, steps in sizes.steps.items()
    }
    return Case(float(found.squares.sqrt().mean()), outcomes, len(inputs))


def rows(name: str, case: Case, believed: Study) -> list[Finding]:
    """Vulnerability, and one row for each guidance rate."""
    targets, faces = believed.inputs[: case.images], PAPER[name]
    remark = f"{believed.said}, {case.images} images, labels known, untrained"
    found = [Finding(f"RV of {name} (Table 1)", f"{PAPER_VULNERABILITY[name]}", f"{case.vulnerability:.3g}", remark)]
    for rate, outcome in case.outcomes.items():
        paper = "PSNR {} / {} / {} dB on CelebA / LSUN / ImageNet".format(*faces) if rate == PAPER_RATE else "not given"
        what = f"GGSS-R on {name}, clean gradient, guidance {rate:g} (Table 1, Figure 3)"
        steps = len(outcome.trajectories[0].times)
        found.append(Finding(what, paper, words(outcome, targets), f"{remark}, {steps} steps"))
    return found


def summary(cases: dict[str, Case], believed: Study) -> list[Finding]:
    """Whether quality follows RV, how often the attack loss falls at every step, and what the best rate reaches."""
    order = [case.vulnerability for case in cases.values()]
    reached = [case.mean(PAPER_RATE, believed) for case in cases.values()]
    correlation = float(spearmanr(order, reached).statistic)
    pairs = ", ".join(f"{name} {case.mean(PAPER_RATE, believed):.1f}" for name, case in _by_vulnerability(cases))
    ways = [way for case in cases.values() for way in case.outcomes[PAPER_RATE].trajectories]
    falling = sum(way.falls_monotonically for way in ways)
    shares = torch.tensor([float((way.residuals.diff() <= 0).double().mean()) for way in ways])
    best = {name: case.best(believed) for name, case in cases.items() if name not in LARGE}
    attained = {name: cases[name].mean(rate, believed) for name, rate in best.items()}
    listed = ", ".join(f"{name} {attained[name]:.1f} dB at {rate:g}" for name, rate in best.items())
    verdict = "holds" if min(attained.values()) > WANTED else "misses"
    return [
        Finding(
            "quality rises with RV (Table 1)",
            "consistently higher",
            f"Spearman {correlation:.2f} of RV and PSNR at guidance {PAPER_RATE}; by rising RV: {pairs}",
            believed.said,
        ),
        Finding(
            "attack loss falls at every step (Theorem 5.3)",
            "always",
            f"in {falling} of {len(ways)} runs; in {100 * float(shares.mean()):.0f} % of the steps",
            believed.said,
        ),
        Finding(
            f"MLP-3/4/5 and CNN above {WANTED:g} dB at the best guidance rate",
            "not given",
            f"{verdict}: {listed}",
            f"{believed.said}, own stop",
        ),
    ]


def draw(cases: dict[str, Case], believed: Study, path: Path) -> None:
    """A row for each network by rising RV: estimates along the way, the attacker's choice, the target."""
    grid = []
    for name, case in _by_vulnerability(cases):
        way = case.outcomes[PAPER_RATE].trajectories[0]
        pictures = [*_along(way), way.estimates_at_stop[0], believed.inputs[0]]
        grid.append((f"{name}, RV {case.vulnerability:.3g}", [each.numpy() for each in pictures]))
    names = [*[f"{share:.0%}" for share in torch.linspace(0, 1, SHOWN).tolist()], "choice", "target"]
    write_grid(path, names, grid, title=f"GGSS-R, {believed.said}", data_range=(0.0, 1.0))


def _along(way: GuidedTrajectory) -> list[torch.Tensor]:
    steps = torch.linspace(0, len(way.times) - 1, SHOWN).round().long()
    return [way.estimates[step, 0] for step in steps.tolist()]


def _by_vulnerability(cases: dict[str, Case]) -> list[tuple[str, Case]]:
    return sorted(cases.items(), key=lambda item: item[1].vulnerability)


def _attack(believed: Study, steps: int, rate: float) -> GuidedSampling:
    return rr.attacks.ggss_r(believed.prior, steps=steps, guidance=rate)


if __name__ == "__main__":
    sys.exit(reproduce_with_prior(run))
