"""Tables 2, 3 and 4 and Figure 4 of meng2025: guided sampling and its rivals on the CNN, without noise and with it.

Every attack meets the same gradients and knows the noise. The paper's tables are at the step nearest to the private
image; here an attacker's own stop comes first and that peak, labelled as an oracle's, second. At the small scale rivals
have fewer steps than by default, which rows of claims say, and fewer images where nothing is claimed. Three baselines
say what is no leak: a draw of the prior, its mean, and what guided sampling finds from the gradient of another image.
The last rows state whether claims hold: guided sampling beats each attack on pixels and each in the range of a
generator, and ours beat guided sampling. ``--only 0.01 GIAS GGL`` has that noise and, beside guided sampling, these.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from torch import Tensor

import reconrisk as rr
from reconrisk.core.guarantee import Estimate
from reconrisk.core.observation import Attack
from reconrisk.defenses import gaussian_noise
from reproductions.frame import Drawing, Finding, Scale
from reproductions.gradient_inversion import generator, mean_over
from reproductions.meng2025.guided import Outcome, attacked, decibels, described, guided, words
from reproductions.meng2025.settings import (
    TUNED,
    Study,
    network,
    observations,
    parts_of,
    reproduce_with_prior,
    rivals,
    study,
    tell,
)

PAPER = {
    "DLG": ("MSE 0.0480, PSNR 13.1835 dB", "MSE 0.2194, PSNR 6.5871 dB"),
    "IG": ("MSE 0.0196, PSNR 17.0756 dB", "MSE 0.0747, PSNR 11.2677 dB"),
    "GI": ("MSE 0.0223, PSNR 16.5109 dB", "MSE 0.0892, PSNR 10.4968 dB"),
    "GIAS": ("MSE 0.0458, PSNR 13.3885 dB", "MSE 0.0613, PSNR 12.1276 dB"),
    "GGL": ("MSE 0.0179, PSNR 17.4923 dB", "MSE 0.0394, PSNR 13.8982 dB"),
    "GIFD": ("MSE 0.0098, PSNR 20.0534 dB", "MSE 0.0425, PSNR 13.7118 dB"),
    "FinetunedDiff": ("MSE 0.0011, PSNR 29.4490 dB", "MSE 0.0683, PSNR 11.6675 dB"),
}
"""Tables 3 and 4: without noise and with noise of variance 0.01."""

GUIDED = {
    0.0: "MSE 0.0001, PSNR 41.1229 dB",
    1e-4: "MSE 0.0016, PSNR 28.0343 dB",
    1e-3: "MSE 0.0039, PSNR 24.0567 dB",
    1e-2: "MSE 0.0366, PSNR 14.9784 dB",
    1e-1: "MSE 0.1252, PSNR 9.0236 dB",
}
"""Table 2, and the first row from Table 3."""

PIXELS = ("DLG", "IG", "GI", "Gauss-Newton")
GENERATORS = ("GIAS", "GGL", "GIFD")
OURS = ("plug-and-play", "Gaussian posterior")
ALL = (*PIXELS, *GENERATORS, TUNED, *OURS)
KINDS = {"pixel attacks": PIXELS, "GAN attacks": GENERATORS, "tuned diffusion": (TUNED,)}
GUESSES = ("prior alone, a draw", "prior alone, its mean")
_DRAWS = 256
CLAIMED_FROM = 1e-3
HOLDS = "holds"
CLAIMED_GAIN = {("plug-and-play", 1e-3): 1.0, ("plug-and-play", 1e-2): 1.0}
TABLES = {0.0: "Table 3", 1e-2: "Tables 2 and 4"}


@dataclass(frozen=True)
class Sizes:
    """Images for guided sampling, ours, the rivals and tuned diffusion, which is slow, and steps of guided sampling."""

    images: int
    ours: int
    rivals: int
    tuned: int
    steps: int

    def count(self, name: str) -> int:
        """Images that an attack meets."""
        return {OURS[0]: self.ours, TUNED: self.tuned}.get(name, self.rivals)


SIZES = {"small": Sizes(20, 20, 20, 4, 100), "paper": Sizes(40, 40, 40, 40, 1000)}
UNCLAIMED = {"small": Sizes(20, 20, 4, 4, 100), "paper": SIZES["paper"]}
"""Below the noise from which guided sampling is to beat its rivals."""


@dataclass(frozen=True, eq=False)
class Level:
    """Outcomes of all attacks at one noise; a rival's are for the first of the targets."""

    variance: float
    targets: Tensor
    outcomes: Mapping[str, Outcome]

    def decibels(self, name: str) -> Tensor:
        """PSNR of every image that was attacked."""
        outcome = self.outcomes[name]
        return decibels(outcome.estimates, self.targets[: outcome.batches], outcome.batches)

    def gain(self, name: str, other: str) -> Tensor:
        """Decibels by which one attack is better, for the images that both met."""
        one, two = self.decibels(name), self.decibels(other)
        count = min(len(one), len(two))
        return one[:count] - two[:count]


def run(scale: Scale, prior: str, only: Sequence[str] = ()) -> Sequence[Finding | Drawing]:
    """PSNR, MSE, SSIM and LPIPS of all attacks on the CNN by variance of Gaussian noise, and what is claimed."""
    believed = study(prior)
    levels, findings = list[Level](), list[Finding]()
    named = [word for word in only if word in ALL]
    others = {name: attack for name, attack in rivals(believed, scale).items() if not named or name in named}
    for variance in parts_of(GUIDED, [word for word in only if word not in named]):
        sizes = (SIZES if variance >= CLAIMED_FROM else UNCLAIMED)[scale]
        level = attacked_at(variance, believed, sizes, others)
        levels.append(level)
        found = rows(level, believed, sizes)
        findings += found
        tell(found)
    findings += claims(levels, believed, scale)
    return [*findings, Drawing("figure4.png", partial(draw, levels))]


def attacked_at(variance: float, believed: Study, sizes: Sizes, others: Mapping[str, Attack]) -> Level:
    """Guided sampling and others on the same gradients."""
    inputs, labels = believed.inputs[: sizes.images], believed.labels[: sizes.images]
    defense = gaussian_noise(math.sqrt(variance)) if variance else None
    parts = observations(network("CNN", believed.shape), inputs, labels, defense=defense)
    attack = rr.attacks.ggss_r(believed.prior, steps=sizes.steps)
    outcomes = {"GGSS-R": guided(attack, parts, inputs)}
    for name, other in others.items():
        count = min(sizes.count(name), len(inputs))
        outcomes[name] = attacked(other, parts[:count], inputs[:count], name)
    if not variance:
        outcomes |= _alone(believed, inputs)
    return Level(variance, inputs, outcomes)


def rows(level: Level, believed: Study, sizes: Sizes) -> list[Finding]:
    """One row for each attack."""
    noise = f"noise of variance {level.variance:g}" if level.variance else "clean gradient"
    table = TABLES.get(level.variance, "Table 2")
    found = []
    for name, outcome in level.outcomes.items():
        targets = level.targets[: outcome.batches]
        remark = f"{believed.said}, {outcome.batches} images, labels and noise known, untrained"
        remark += f", {sizes.steps} steps" if name == "GGSS-R" else ""
        what = name if name in GUESSES else f"{name} on CNN, {noise} ({table})"
        found.append(Finding(what, _paper(name, level), words(outcome, targets), remark))
    guided_to = level.outcomes["GGSS-R"].estimates
    ours = described(guided_to.roll(1, 0), level.targets, len(level.targets))
    what = f"GGSS-R from the gradient of another image, CNN, {noise}"
    return [*found, Finding(what, "not given", ours, f"{believed.said}, {len(level.targets)} images, own stop")]


def claims(levels: Sequence[Level], believed: Study, scale: Scale) -> list[Finding]:
    """Whether guided sampling beats rivals, and ours guided sampling, at the attackers' own stops."""
    effort = "" if scale == "paper" else ", rivals with fewer steps than by default"
    found = []
    for level, (kind, names) in product(levels, KINDS.items()):
        gains = {name: mean_over(level.gain("GGSS-R", name), "images") for name in names if name in level.outcomes}
        if level.variance < CLAIMED_FROM or not gains:
            continue
        judged = {name: _verdict(each, 0.0) for name, each in gains.items()}
        doubts = [f"{verdict} for {name}" for name, verdict in judged.items() if verdict != HOLDS]
        listed = ", ".join(
            f"{name} {gain.value:+.1f} [{gain.low:.1f}, {gain.high:.1f}]" for name, gain in gains.items()
        )
        ours = f"{', '.join(doubts) or HOLDS}; mean dB of GGSS-R over each: {listed}"
        what = f"GGSS-R beats {kind} at variance {level.variance:g}"
        found.append(Finding(what, "holds (Table 4)", ours, f"{believed.said}{effort}"))
    for level, name in product(levels, OURS):
        if name not in level.outcomes:
            continue
        gain = mean_over(level.gain(name, "GGSS-R"), "images, dB")
        wanted = CLAIMED_GAIN.get((name, level.variance), 0.0)
        what = f"{name} beats GGSS-R by {wanted:g} dB at variance {level.variance:g}, own stops"
        found.append(Finding(what, "not given", f"{_verdict(gain, wanted)}: {gain}", believed.said))
    tell(found)
    return found


def _verdict(gain: Estimate, wanted: float) -> str:
    """Whether a gain is as large as wanted, and whether chance may have made it so."""
    if gain.value < wanted:
        return "does not hold"
    return HOLDS if gain.low >= wanted else "holds of the mean, not of all of its interval"


def draw(levels: Sequence[Level], path: Path) -> None:
    """PSNR of what guided sampling takes for the clean image at each step, mean over images, and where it stops."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4))
    for level in levels:
        ways = level.outcomes["GGSS-R"].trajectories
        pairs = zip(ways, level.targets, strict=True)
        curves = [
            decibels(way.estimates[:, 0], target.expand_as(way.estimates[:, 0]), len(way.times))
            for way, target in pairs
        ]
        mean = sum(curves) / len(curves)
        (line,) = axis.plot(mean, label=f"variance {level.variance:g}")
        stop = round(sum(way.stop for way in ways) / len(ways))
        axis.plot(stop, float(mean[stop]), "o", color=line.get_color())
    axis.set(xlabel="step", ylabel="PSNR, dB", title="dots: mean of the attackers' own stops")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _alone(believed: Study, inputs: Tensor) -> dict[str, Outcome]:
    """What the prior guesses without any gradient: a draw for each image as it comes, and the mean of many."""
    begun, rng = time.process_time(), generator("start", 0)
    guesses = {"prior alone, a draw": believed.prior.draw(len(inputs), rng).clamp(0, 1)}
    guesses["prior alone, its mean"] = believed.prior.draw(_DRAWS, rng).clamp(0, 1).mean(0).expand_as(inputs)
    seconds = (time.process_time() - begun) / len(inputs)
    return {name: Outcome(guess, seconds, len(inputs)) for name, guess in guesses.items()}


def _paper(name: str, level: Level) -> str:
    if name == "GGSS-R":
        return f"{GUIDED[level.variance]} at the peak"
    known = {0.0: 0, 1e-2: 1}
    return PAPER[name][known[level.variance]] if name in PAPER and level.variance in known else "not given"


if __name__ == "__main__":
    sys.exit(reproduce_with_prior(run))
