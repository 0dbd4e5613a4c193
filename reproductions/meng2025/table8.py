"""Table 8 of meng2025: seconds and memory of one step of guided sampling, by attacked network.

Each network is attacked in a process of its own, whose peak of memory is that of everything, libraries included; what
the process held before its first step is stated too. The paper measures an A100; this is processor time of one thread.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

import reconrisk as rr
from reproductions.frame import Finding, Scale
from reproductions.gradient_inversion import generator
from reproductions.meng2025.settings import network, observations, parts_of, reproduce_with_prior, study, tell

PAPER = {
    "ResNet18": (0.2259, 3396),
    "MLP-5": (2.6473, 9680),
    "VGGNet16": (6.3582, 30314),
    "CNN": (2.3947, 7822),
    "MLP-4": (1.9149, 6084),
    "MLP-3": (1.4939, 5247),
}
STEPS = {"small": 8, "paper": 100}
"""A step does the same work whether there are few of them or many."""


@dataclass(frozen=True)
class Used:
    """Processor seconds of a step, and megabytes of the process before the first one and at its peak."""

    seconds: float
    before: float
    peak: float


def run(scale: Scale, prior: str, only: Sequence[str] = ()) -> Sequence[Finding]:
    """Seconds of a step and peak memory for each network and a single image."""
    said = study(prior).said
    findings = list[Finding]()
    for name in parts_of(PAPER, only):
        seconds, memory = PAPER[name]
        used = in_a_process(name, prior, STEPS[scale])
        ours = f"{used.seconds:.3f} s, {used.peak:.0f} MB ({used.before:.0f} MB before the first step)"
        remark = f"{said}, one image, {STEPS[scale]} steps, one thread"
        findings.append(Finding(f"a GGSS-R step on {name} (Table 8)", f"{seconds} s, {memory} MiB", ours, remark))
        tell(findings[-1:])
    return findings


def in_a_process(name: str, prior: str, steps: int) -> Used:
    """What an attack uses in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return Used(**json.loads(pool.apply(_measured, (name, prior, steps))))


def measure(name: str, prior: str, steps: int) -> Used:
    """Attack one image and see what it took, here."""
    torch.set_num_threads(1)
    believed = study(prior)
    (part,) = observations(network(name, believed.shape), believed.inputs[:1], believed.labels[:1])
    attack = rr.attacks.ggss_r(believed.prior, steps=steps)
    before, begun = _megabytes(), time.process_time()
    attack.trace(part, rng=generator("start", 0))
    return Used((time.process_time() - begun) / steps, before, _megabytes())


def _measured(name: str, prior: str, steps: int) -> str:
    return json.dumps(asdict(measure(name, prior, steps)))


def _megabytes() -> float:
    """The peak so far; kilobytes on Linux, bytes on macOS."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024**2 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.exit(reproduce_with_prior(run))
