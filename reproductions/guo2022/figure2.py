"""Figure 2 of guo2022: bounds for a logistic regression of MNIST's 0 against 1, released by output perturbation."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from reconrisk.bounds.glm.problem import fit_glm
from reconrisk.bounds.mse.output_perturbation import (
    logistic_information,
    mse_lower_bound_from_output_perturbation,
    output_perturbation_epsilon,
)
from reconrisk.core.guarantee import Estimate
from reconrisk.data import load_dataset
from reproductions.frame import Finding, Scale, need_data, reproduce

Floats = NDArray[np.float64]

REGULARIZATION = 1e-2
NOISE_STD = 1e-2
RUNS = 10
RECORDS = 12_665
SMALL = 3_000


@dataclass(frozen=True, eq=False)
class Digits:
    """Zeros and ones as rows of pixels in [0, 1], with labels 0 and 1."""

    features: Floats
    labels: Floats

    def normalised(self) -> Digits:
        """The same pictures, each divided by its norm where that exceeds 1."""
        norms = np.linalg.norm(self.features, axis=1, keepdims=True)
        return Digits(self.features / np.maximum(norms, 1), self.labels)


def digits(split: str, count: int | None = None) -> Digits:
    """The first ``count`` zeros and ones of MNIST."""
    loaded = load_dataset("mnist-full", split=split)
    chosen = loaded.labels < 2
    features = loaded.inputs[chosen].flatten(1).double().numpy()
    return Digits(features[:count], loaded.labels[chosen].double().numpy()[:count])


def fitted(train: Digits) -> Floats:
    """The exact minimiser of mean loss plus the paper's penalty, without intercept."""
    penalty = REGULARIZATION * len(train.labels)
    return fit_glm(features=train.features, labels=train.labels, family="logistic", penalty=penalty).coefficients


def run(scale: Scale) -> Sequence[Finding]:
    """Bounds from Fisher information for each record, from Renyi DP for all, and the accuracy of the noisy model."""
    need_data()
    train, test = digits("train", None if scale == "paper" else SMALL), digits("test")
    return [
        *_findings(train, test, "raw pixels"),
        *_findings(train.normalised(), test.normalised(), "each picture scaled to norm 1"),
    ]


def _findings(train: Digits, test: Digits, records: str) -> list[Finding]:
    theta, count = fitted(train), len(train.labels)
    remark = f"{records}, {count:,} records" + (", incomplete" if count != RECORDS else "")
    information = logistic_information(
        theta, features=train.features, labels=train.labels, regularization=REGULARIZATION, noise_std=NOISE_STD
    )
    simple = train.features.shape[1] / information.traces
    largest = float(np.linalg.norm(train.features, axis=1).max())
    setting = {"records": count, "regularization": REGULARIZATION, "record_norm": max(largest, 1.0)}
    bound = mse_lower_bound_from_output_perturbation(NOISE_STD, **setting)
    norm = f"{remark}, largest norm {largest:.1f}, epsilon squared and with that norm"
    return [
        Finding("share of dFIL bounds 1/dFIL above 1", "1", f"{(simple > 1).mean():.6f}", remark),
        Finding("dFIL bounds, least / median / largest", "all > 1", _spread(simple), f"{remark}; no noise in them"),
        Finding("bounds tr(I^-1)/d, least / median / largest", "-", _spread(information.mse_lower_bounds()), remark),
        Finding("epsilon of order 2", "1.58", f"{output_perturbation_epsilon(NOISE_STD, **setting):.4g}", norm),
        Finding("RDP bound on the MSE", "about 0.1", f"{bound.value:.3g}", norm),
        Finding(f"test accuracy with noise, {RUNS} runs", "0.9995", _accuracy(theta, test), remark),
    ]


def _spread(bounds: Floats) -> str:
    return " / ".join(f"{value:.4g}" for value in (bounds.min(), np.median(bounds), bounds.max()))


def _accuracy(theta: Floats, test: Digits) -> Estimate:
    noise = np.random.default_rng(0).standard_normal((RUNS, len(theta)))
    hits = ((test.features @ (theta + NOISE_STD * noise).T > 0) == (test.labels[:, None] == 1)).mean(axis=0)
    half = float(t.ppf(0.975, RUNS - 1)) * float(hits.std(ddof=1)) / math.sqrt(RUNS)
    mean = float(hits.mean())
    return Estimate(mean, mean - half, mean + half, 0.95, RUNS, "t interval over runs")


if __name__ == "__main__":
    sys.exit(reproduce(run))
