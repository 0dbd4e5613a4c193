"""Figures 3 and 4 of guo2022: the attack on generalised linear models against the Fisher bound of each record.

The adversary has the noisy coefficients and every other record. Where the gradient of the objective vanishes the target
is ``x = a v``: v is the sum over the other records and the penalty, and the number a follows from the intercept (the
authors' program, which has a penalised one and does not use the label) or, without intercept, from the label, as the
paper has it. With noise v and a are off, and so is x.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import spearmanr

from reconrisk.bounds.glm.information import glm_information
from reconrisk.bounds.glm.problem import GlmFit, fit_glm
from reconrisk.core.guarantee import Estimate
from reconrisk.core.progress import track
from reconrisk.reports.drawing import save_figure
from reconrisk.reports.leakage import write_leakage
from reproductions.frame import Drawing, Finding, Scale, need_data, reproduce
from reproductions.guo2022.figure2 import REGULARIZATION, Digits, digits

Floats = NDArray[np.float64]

NOISE_STD = 1e-5
TRIALS = {"small": 500, "paper": 10_000}
CHUNK = 50
SHOWN = 8
_FOLD = 1.2784645427610738  # where u / (1 + exp(u)) is largest
_LARGEST = _FOLD - 1  # and its value there


@dataclass(frozen=True, eq=False)
class Attacked:
    """Estimates ``scales * (sums - residuals * x)`` of every record in every trial, as factors.

    ``lost`` is ``1 + scales * residuals``, the share of the record that is missing from its estimate.
    """

    scales: Floats
    residuals: Floats
    sums: Floats
    lost: Floats

    def squared_errors(self, train: Digits) -> Floats:
        """Mean squared error per coordinate, (records, trials), from products with the records alone."""
        norms = (train.features**2).sum(axis=1)[:, None]
        own = self.scales**2 * (self.sums**2).sum(axis=0)
        cross = self.scales * self.lost * (train.features @ self.sums)
        return np.asarray(np.maximum(own - 2 * cross + self.lost**2 * norms, 0.0) / train.features.shape[1])

    def estimate(self, train: Digits, record: int, trial: int) -> Floats:
        """One reconstruction."""
        rest = self.sums[:, trial] - self.residuals[record, trial] * train.features[record]
        return np.asarray(self.scales[record, trial] * rest)


def intercept_attack(train: Digits, noisy: Floats) -> Attacked:
    r"""Reconstruct each record from each column of ``noisy`` coefficients (intercept last) and all other records.

    .. math:: x_i = \frac{\sum_{j \ne i} r_j x_j + n\lambda\theta}{\sum_{j \ne i} r_j + n\lambda b}
    """
    penalty = REGULARIZATION * len(train.labels)
    residuals = _residuals(train, train.features @ noisy[:-1] + noisy[-1])
    sums = train.features.T @ residuals + penalty * noisy[:-1]
    whole = residuals.sum(axis=0) + penalty * noisy[-1]
    scales = 1 / (whole - residuals)
    return Attacked(scales, residuals, sums, whole * scales)


def label_attack(train: Digits, noisy: Floats) -> Attacked:
    r"""Reconstruct each record from each column of ``noisy`` coefficients, all other records and its label.

    With :math:`v_i = \sum_{j \ne i} r_j x_j + n\lambda\theta` it is :math:`x_i = \pm(1 + e^u) v_i`, the sign that of
    the label, where the margin u solves :math:`u = (1 + e^u) v_i^T\theta`. Of two solutions the one is taken whose
    picture has a norm nearer to the mean of the other pictures with this label.
    """
    signs = (2 * train.labels - 1)[:, None]
    predictor = train.features @ noisy
    residuals = _residuals(train, predictor)
    sums = train.features.T @ residuals + REGULARIZATION * len(train.labels) * noisy
    lower, upper = margins((sums * noisy).sum(axis=0) - residuals * predictor)
    norms = np.linalg.norm(train.features, axis=1)
    lengths = (sums**2).sum(axis=0) - 2 * residuals * (train.features @ sums) + (residuals * norms[:, None]) ** 2
    lengths = np.sqrt(np.maximum(lengths, 0.0))
    typical = _typical(norms, train.labels)[:, None]
    misfits = [np.abs((1 + np.exp(root)) * lengths - typical) for root in (lower, upper)]
    margin = np.where(misfits[0] < misfits[1], lower, upper)
    # 1 + a r, without the cancellation of writing it so.
    lost = -expit(signs * predictor) * np.expm1(margin - signs * predictor)
    return Attacked(signs * (1 + np.exp(margin)), residuals, sums, lost)


def margins(products: Floats) -> tuple[Floats, Floats]:
    """Both solutions u of ``u = c (1 + exp(u))``; they coincide for c < 0, and beyond the fold, where there is none."""
    c = np.minimum(products, _LARGEST)
    logs = -np.log(np.where(c > 0, c, _LARGEST))
    starts = (np.where(c > 0, 2 * c, c), np.where(c > 0, logs + 2 * np.log(logs + 2), c))
    roots = []
    for start in starts:  # from which Newton's method is monotone
        root = start
        for _ in range(60):
            growth = c * np.exp(root)
            slope = 1 - growth
            step = np.divide(root - c - growth, slope, out=np.zeros_like(root), where=np.abs(slope) > 1e-9)
            root = root - step
            if np.abs(step).max() < 1e-12:
                break
        roots.append(root)
    return roots[0], roots[1]


def _residuals(train: Digits, predictor: Floats) -> Floats:
    signs = (2 * train.labels - 1)[:, None]
    return np.asarray(-signs * expit(-signs * predictor))


def _typical(norms: Floats, labels: Floats) -> Floats:
    """For each record the mean norm of the others with its label."""
    typical = np.empty_like(norms)
    for label in (0, 1):
        same = labels == label
        typical[same] = (norms[same].sum() - norms[same]) / (same.sum() - 1)
    return typical


@dataclass(frozen=True)
class Variant:
    """One reading of the paper's attack: its name in file names, in words, and whether the model has an intercept."""

    name: str
    words: str
    attack: Callable[[Digits, Floats], Attacked]
    intercept: bool


VARIANTS = (
    Variant("program", "as the authors' program: penalised intercept, label not used", intercept_attack, True),
    Variant("print", "as printed: label given, no intercept; takes a norm near the usual", label_attack, False),
)


def run(scale: Scale) -> Sequence[Finding | Drawing]:
    """Mean error of both attacks on every record beside the bound of that record."""
    need_data()
    train = digits("train")
    return [result for variant in VARIANTS for result in _results(train, variant, scale)]


def _results(train: Digits, variant: Variant, scale: Scale) -> list[Finding | Drawing]:
    penalty = REGULARIZATION * len(train.labels)
    setting = {"features": train.features, "labels": train.labels, "family": "logistic", "penalty": penalty}
    fit = fit_glm(**setting, intercept=variant.intercept, intercept_penalty=penalty)
    information = glm_information(
        fit.coefficients, intercept=fit.intercept, intercept_penalty=penalty, noise_std=NOISE_STD, **setting
    )
    mean, error = _measured(train, fit, variant.attack, TRIALS[scale])
    simple = train.features.shape[1] / information.traces
    remark = f"{variant.words}; {TRIALS[scale]:,} trials of each of {len(mean):,} records"
    return [
        *_rows(simple, information.mse_lower_bounds(), mean, error, remark),
        Drawing(f"figure3_{variant.name}.png", lambda path: _draw_errors(path, simple, mean)),
        Drawing(f"figure4_{variant.name}.png", lambda path: _draw_records(path, train, fit, variant, simple)),
    ]


def _measured(
    train: Digits, fit: GlmFit, attack: Callable[[Digits, Floats], Attacked], trials: int
) -> tuple[Floats, Floats]:
    """Mean over trials of each record's error, and its standard error. The noise of a trial serves all records."""
    rng = np.random.default_rng(0)
    theta = _released(fit)
    total, squares = np.zeros(len(train.labels)), np.zeros(len(train.labels))
    for _ in track(range(trials // CHUNK), "trials", total=trials // CHUNK):
        noisy = theta[:, None] + NOISE_STD * rng.standard_normal((len(theta), CHUNK))
        errors = attack(train, noisy).squared_errors(train)
        total += errors.sum(axis=1)
        squares += (errors**2).sum(axis=1)
    mean = total / trials
    return mean, np.sqrt(np.maximum(squares / trials - mean**2, 0.0) / (trials - 1))


def _released(fit: GlmFit) -> Floats:
    """The coefficients, the intercept last where there is one."""
    return fit.coefficients if fit.intercept is None else np.append(fit.coefficients, fit.intercept)


def _draw_errors(path: Path, bounds: Floats, errors: Floats) -> None:
    """Figure 3: each record's error against its bound; what lies below the line contradicts an unbiased bound."""
    from matplotlib.figure import Figure  # slow import, needed only to draw

    figure = Figure(figsize=(5, 4), layout="constrained")
    axis = figure.subplots()
    below = errors < bounds
    for part, colour in ((~below, "tab:blue"), (below, "tab:red")):
        axis.scatter(bounds[part], errors[part], s=2, color=colour, rasterized=True)
    ends = [min(bounds.min(), errors.min()), max(bounds.max(), errors.max())]
    axis.plot(ends, ends, color="black", linewidth=1)
    axis.axvline(1.0, color="gray", linestyle="dotted")
    axis.set(xscale="log", yscale="log", xlabel="bound 1/dFIL on the MSE", ylabel="MSE of the attack")
    save_figure(figure, path)


def _draw_records(path: Path, train: Digits, fit: GlmFit, variant: Variant, bounds: Floats) -> None:
    """Figure 4: the most and the least exposed records above what the attack makes of one noisy release."""
    theta = _released(fit)
    noise = np.random.default_rng(1).standard_normal((len(theta), 1))
    attacked = variant.attack(train, theta[:, None] + NOISE_STD * noise)
    order = np.argsort(bounds)
    shown = [int(record) for record in (*order[:SHOWN], *order[-SHOWN:])]

    def picture(pixels: Floats) -> NDArray[np.float32]:
        return pixels.reshape(1, 28, 28).astype(np.float32)

    rows = [
        ("record", [(f"{bounds[record]:.1e}", picture(train.features[record])) for record in shown]),
        ("attack", [("", picture(attacked.estimate(train, record, 0))) for record in shown]),
    ]
    write_leakage(path, rows, data_range=(0.0, 1.0), note="above each record the bound 1/dFIL on the MSE")


def _rows(simple: Floats, exact: Floats, mean: Floats, error: Floats, remark: str) -> list[Finding]:
    below, low, sharp = simple < 1, simple < 1e-2, exact < 1e-3
    beaten = mean + 4 * error < simple  # four standard errors, for the many records
    order = np.argsort(simple)
    ends = [f"{mean[part].mean():.3g}" for part in (order[:SHOWN], order[-SHOWN:])]
    counts = [f"{int((beaten & part).sum())} of {int(part.sum())}" for part in (below, ~below)]
    ratio = f"{np.median(mean[sharp] / exact[sharp]):.3f} ({int(sharp.sum())} records)"
    return [
        Finding("attack below a dFIL bound that is below 1", "0", counts[0], remark),
        Finding("attack below a dFIL bound above 1", "some", counts[1], remark),
        Finding("rank correlation of bound and error", "close", rank_correlation(simple, mean), remark),
        Finding("the same where the bound is below 1e-2", "close", rank_correlation(simple[low], mean[low]), remark),
        Finding("error / (tr(I^-1)/d), median where that is below 1e-3; Cramer-Rao is 1", "-", ratio, remark),
        Finding(f"Figure 4: error of the {SHOWN} most / least exposed", "small / large", " / ".join(ends), remark),
    ]


def rank_correlation(bounds: Floats, errors: Floats) -> Estimate:
    """Spearman's correlation with Fisher's interval and the variance of Bonett and Wright."""
    rank, count = float(spearmanr(bounds, errors).statistic), len(bounds)
    half = 1.96 * math.sqrt((1 + rank**2 / 2) / (count - 3))
    low, high = (math.tanh(math.atanh(rank) + sign * half) for sign in (-1, 1))
    return Estimate(rank, low, high, 0.95, count, "Spearman, Fisher's z")


if __name__ == "__main__":
    sys.exit(reproduce(run))
