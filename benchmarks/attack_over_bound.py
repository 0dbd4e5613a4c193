"""Attack over bound for each guarantee of the package, on the instance where the guarantee is tightest.

Each row simulates releases, runs the best attack known on them and compares it with the guarantee. Success is divided
by its upper bound, and a mean squared error by its lower bound. ``python -m benchmarks.attack_over_bound`` writes the
table to docs/attack_over_bound.md. A test compares the rows with the functions that return a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

import reconrisk as rr
from reconrisk.accounting.events import from_event
from reconrisk.bounds.glm.information import glm_information
from reconrisk.bounds.glm.problem import fit_glm
from reconrisk.bounds.mse.bayesian import gaussian_prior_information
from reconrisk.core.guarantee import Estimate, Guarantee, Quantity, format_rounded_down, format_rounded_up
from reconrisk.core.mechanism import (
    ApproximateDP,
    Gaussian,
    GaussianDP,
    Neighbouring,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
    dp_sgd,
)
from reconrisk.statistics.intervals import clopper_pearson, student_interval

Floats = NDArray[np.float64]
Measured = tuple[Guarantee, Estimate]

PAGE = Path(__file__).parents[1] / "docs" / "attack_over_bound.md"
DRAWS = 100_000
CONFIDENCE = 0.999
"""Of each interval; many bounds are attained exactly, so that chance alone puts half of the estimates beyond them."""

CLOSE = 0.1
"""Distance of attack and bound, relative, that counts as tight."""


@dataclass(frozen=True)
class Row:
    """One guarantee with an attack on it.

    Attributes:
        instance: The mechanism, the prior and the attack, in words.
        function: Name of the function that returns the guarantee.
        run: Simulation that returns the guarantee and the measured success or error.
        missing: Reason for a distance above 10 %; empty if there is none.
    """

    instance: str
    function: str
    run: Callable[[np.random.Generator], Measured]
    missing: str = ""


def _count(hits: NDArray[np.bool_]) -> Estimate:
    return clopper_pearson(int(hits.sum()), len(hits), CONFIDENCE)


def _mean(errors: Floats) -> Estimate:
    return student_interval(errors.tolist(), CONFIDENCE, over="draws")


def _signs(rng: np.random.Generator, draws: int = DRAWS) -> Floats:
    """Two equally likely records, whose contributions are opposite and have norm one."""
    return rng.choice([-1.0, 1.0], size=draws)


def _full_batch(rng: np.random.Generator) -> Measured:
    target = _signs(rng)
    sent = target + rng.normal(size=DRAWS)
    return rr.success_upper_bound(Gaussian(1.0), prior_success=0.5), _count(np.sign(sent) == target)


def _gaussian_dp(rng: np.random.Generator) -> Measured:
    target = _signs(rng)
    sent = target + rng.normal(scale=2.0, size=DRAWS)
    return rr.success_upper_bound(GaussianDP(0.5), prior_success=0.5), _count(np.sign(sent) == target)


def _subsampled(rng: np.random.Generator) -> Measured:
    rate, steps, noise, draws = 0.1, 100, 1.0, 20_000
    target = _signs(rng, draws)
    sent = target[:, None] * (rng.random((draws, steps)) < rate) + rng.normal(scale=noise, size=(draws, steps))

    def score(record: float) -> Floats:
        return np.log1p(rate * np.expm1((record * sent - 0.5) / noise**2)).sum(1)

    run = dp_sgd(noise_multiplier=noise, sampling_probability=rate, steps=steps)
    return rr.success_upper_bound(run, prior_success=0.5), _count(np.sign(score(1.0) - score(-1.0)) == target)


def _laplace(rng: np.random.Generator) -> Measured:
    target = _signs(rng)
    sent = target[:, None] + rng.laplace(scale=2.0, size=(DRAWS, 10))
    score = (np.abs(sent + 1) - np.abs(sent - 1)).sum(1)
    event = dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(2.0), 10)
    return rr.success_upper_bound(from_event(event), prior_success=0.5), _count(np.sign(score) == target)


def _pure_add_or_remove(rng: np.random.Generator) -> Measured:
    target = _signs(rng)
    sent = target + rng.laplace(size=DRAWS)
    bound = rr.success_upper_bound(PureDP(1.0, Neighbouring.ADD_OR_REMOVE), prior_success=0.5)
    return bound, _count(np.sign(sent) == target)


def _answers(rng: np.random.Generator, candidates: int, truth: float) -> NDArray[np.bool_]:
    """Randomised response: the true candidate with probability ``truth``, any other one with the same probability."""
    target = rng.integers(candidates, size=DRAWS)
    other = (target + rng.integers(1, candidates, size=DRAWS)) % candidates
    sent = np.where(rng.random(DRAWS) < truth, target, other)
    return np.asarray(sent == target)


def _pure_replace_one(rng: np.random.Generator) -> Measured:
    truth = math.e / (math.e + 9)
    bound = rr.success_upper_bound(PureDP(1.0, Neighbouring.REPLACE_ONE), prior_success=0.1)
    return bound, _count(_answers(rng, 10, truth))


def _approximate(rng: np.random.Generator) -> Measured:
    # Without the record all ten answers are equally likely. With it, the record is published with probability delta,
    # and its answer has e times the probability.
    delta = 0.05
    published = rng.random(DRAWS) < delta
    answered = _answers(rng, 10, math.e / 10 / (1 - delta))
    return rr.success_upper_bound(ApproximateDP(1.0, delta), prior_success=0.1), _count(published | answered)


def _divergences(truth: float, prior: float, orders: Floats) -> Floats:
    """Renyi divergence of randomised response with this truth and the uniform answer, the larger direction."""

    def one_way(p: float, q: float) -> Floats:
        return np.log(p**orders * q ** (1 - orders) + (1 - p) ** orders * (1 - q) ** (1 - orders)) / (orders - 1)

    return np.maximum(one_way(truth, prior), one_way(prior, truth))


def _renyi(rng: np.random.Generator) -> Measured:
    truth, orders = 0.4, np.array([2.0, 4.0])
    mechanism = RenyiDP(tuple(orders.tolist()), tuple(_divergences(truth, 0.1, orders).tolist()))
    return rr.success_upper_bound(mechanism, prior_success=0.1), _count(_answers(rng, 10, truth))


def _zero_concentrated(rng: np.random.Generator) -> Measured:
    truth, orders = 0.4, 1 + np.geomspace(1e-4, 1e4, 20_001)
    orders = orders[orders < 300]  # the powers overflow beyond; the ratio falls there
    rho = float(np.max(_divergences(truth, 0.1, orders) / orders)) * (1 + 1e-6)
    return rr.success_upper_bound(ZeroConcentratedDP(rho), prior_success=0.1), _count(_answers(rng, 10, truth))


def _sphere(rng: np.random.Generator, dimension: int, draws: int) -> Floats:
    points = rng.normal(size=(draws, dimension))
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))


def _from_scratch(rng: np.random.Generator) -> Measured:
    noise, dimension, square = 0.5, 10, 0.6
    records = _sphere(rng, dimension, DRAWS)
    sent = records + rng.normal(scale=noise, size=records.shape)
    estimates = math.sqrt(1 - square) * sent / np.linalg.norm(sent, axis=1, keepdims=True)
    hits = ((estimates - records) ** 2).sum(1) <= square
    bound = rr.bounds.from_scratch_success(Gaussian(noise), dimension=dimension, norm=1.0, mse=square / dimension)
    return bound, _count(hits)


def _known_norm(rng: np.random.Generator) -> Measured:
    # Gradient of the head of a network with Fourier features, of norm one after clipping. Frequency and threshold
    # are those with the largest ratio among a few.
    noise, square, waves, angles, draws = 0.4, 0.3, 64, 720, 10_000
    turns = 2 * math.pi * np.arange(waves) / waves
    frequencies = 2.5 * np.stack([np.cos(turns), np.sin(turns)])

    def gradients(records: Floats) -> Floats:
        phases = records @ frequencies
        return np.concatenate([np.cos(phases), np.sin(phases)], 1) / math.sqrt(waves)

    grid = 2 * math.pi * np.arange(angles) / angles
    circle = np.stack([np.cos(grid), np.sin(grid)], 1)
    records = _sphere(rng, 2, draws)
    sent = gradients(records) + rng.normal(scale=noise, size=(draws, 2 * waves))
    scores = sent @ gradients(circle).T / noise**2
    posterior = np.exp(scores - scores.max(1, keepdims=True))
    guesses = math.sqrt(1 - square) * circle
    within = ((guesses[:, None] - circle) ** 2).sum(2) <= square
    estimates = guesses[(posterior @ within.T).argmax(1)]
    hits = ((estimates - records) ** 2).sum(1) <= square
    return rr.bounds.known_norm_success(Gaussian(noise), dimension=2, norm=1.0, mse=square / 2), _count(hits)


def _gaussian_prior(rng: np.random.Generator) -> Measured:
    noise, dimension, threshold = 0.7, 8, 0.3
    records = rng.normal(size=(DRAWS, dimension))
    estimates = (records + rng.normal(scale=noise, size=records.shape)) / (1 + noise**2)
    hits = ((estimates - records) ** 2).mean(1) <= threshold
    return rr.bounds.gaussian_prior_success(noise, dimension=dimension, prior_std=1.0, mse=threshold), _count(hits)


_JACOBIAN = np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 0.3], [0.4, 0.0, 0.7], [0.2, 0.1, 0.0]])


def _linear_release(rng: np.random.Generator, records: Floats, noise: float) -> Floats:
    sent = records @ _JACOBIAN.T
    return np.asarray(sent + rng.normal(scale=noise, size=sent.shape))


def _posterior_mean(rng: np.random.Generator, noise: float) -> tuple[Floats, Floats]:
    """Return the information of a linear release of standard normal records, and the squared errors."""
    records = rng.normal(size=(DRAWS, 3))
    information = _JACOBIAN.T @ _JACOBIAN / noise**2
    gain = np.linalg.inv(information + np.eye(3)) @ _JACOBIAN.T / noise**2
    return information, ((_linear_release(rng, records, noise) @ gain.T - records) ** 2).mean(1)


def _linear_gaussian(rng: np.random.Generator) -> Measured:
    information, errors = _posterior_mean(rng, 0.8)
    return rr.bounds.linear_gaussian_success(information, prior_covariance=1.0, mse=0.3), _count(errors <= 0.3)


def _van_trees(rng: np.random.Generator) -> Measured:
    information, errors = _posterior_mean(rng, 0.8)
    prior = gaussian_prior_information(np.ones(3))
    return rr.bounds.bayesian_mse_lower_bound(information, prior_information=prior), _mean(errors)


def _cramer_rao(rng: np.random.Generator) -> Measured:
    noise, record = 0.8, np.array([0.3, -1.0, 2.0])
    sent = _linear_release(rng, np.tile(record, (DRAWS, 1)), noise)
    estimates = sent @ np.linalg.pinv(_JACOBIAN).T  # least squares, which is unbiased
    bound = rr.bounds.mse_lower_bound_from_fisher(_JACOBIAN.T @ _JACOBIAN / noise**2)
    return bound, _mean(((estimates - record) ** 2).mean(1))


def _logistic_regression(rng: np.random.Generator) -> Measured:
    # The adversary knows the other records. The condition of the minimum gives the gradient of the target's loss, whose
    # direction is that of the record; bisection finds its length.
    data, noise, penalty, draws = np.random.default_rng(5), 1e-4, 1.0, 20_000
    features, labels = data.normal(size=(20, 3)), np.arange(20) % 2
    fit = fit_glm(features=features, labels=labels, family="logistic", penalty=penalty)
    theta = np.asarray(fit.coefficients).reshape(-1)
    information = glm_information(
        theta, features=features, labels=labels, family="logistic", penalty=penalty, noise_std=noise
    )
    sent = theta + rng.normal(scale=noise, size=(draws, 3))
    residuals = 1 / (1 + np.exp(-(sent @ features[1:].T))) - labels[1:]
    gradients = -(residuals @ features[1:] + penalty * sent)  # of the target, label 0: s(theta x) x
    slopes = (sent * gradients).sum(1)
    # x = t g with s(t theta g) t = 1. The left side grows up to t theta g = -1.278, beyond which theta g < 0 turns it.
    low, high = np.zeros(draws), np.where(slopes < 0, 1.278 / np.abs(slopes), 1e3)
    for _ in range(60):
        middle = (low + high) / 2
        above = middle / (1 + np.exp(-middle * slopes)) > 1
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    errors = ((low[:, None] * gradients - features[0]) ** 2).mean(1)
    return rr.bounds.mse_lower_bound_from_fisher(information.matrix(0)), _mean(errors)


def _renyi_error(rng: np.random.Generator) -> Measured:
    noise = 4.0
    errors = rng.normal(scale=noise, size=DRAWS) ** 2  # of the release x + noise, which is unbiased, at x = 0 in [0, 1]
    bound = rr.bounds.mse_lower_bound_from_rdp(
        1 / noise**2, low=0.0, high=1.0, record=[0.0], constant_guess_mse=math.inf
    )
    return bound, _mean(errors)


def _output_perturbation(rng: np.random.Generator) -> Measured:
    # One record x in [-1, 1] and the loss -w x: the minimiser is x / regularization, here x itself, which is unbiased.
    noise = 2.2
    errors = rng.normal(scale=noise, size=DRAWS) ** 2
    bound = rr.bounds.mse_lower_bound_from_output_perturbation(noise, records=1, regularization=1.0, diameters=2.0)
    return bound, _mean(errors)


ROWS = (
    Row("Gaussian, full batch, two opposite records", "success_upper_bound", _full_batch),
    Row("Gaussian DP, two opposite records", "success_upper_bound", _gaussian_dp),
    Row("subsampled Gaussian, 100 steps, likelihood ratio", "success_upper_bound", _subsampled),
    Row("10 Laplace releases, likelihood ratio", "success_upper_bound", _laplace),
    Row("pure DP, record added: Laplace", "success_upper_bound", _pure_add_or_remove),
    Row("pure DP, record replaced: randomised response", "success_upper_bound", _pure_replace_one),
    Row("approximate DP: published with probability delta", "success_upper_bound", _approximate),
    Row("Renyi DP: randomised response", "success_upper_bound", _renyi),
    Row("zero-concentrated DP: randomised response", "success_upper_bound", _zero_concentrated),
    Row("release x/|x|, best cap", "from_scratch_success", _from_scratch),
    Row("known norm, any release: Fourier features", "known_norm_success", _known_norm),
    Row("record plus noise, posterior mean", "gaussian_prior_success", _gaussian_prior),
    Row("linear release, posterior mean", "linear_gaussian_success", _linear_gaussian),
    Row("Fisher information, least squares", "mse_lower_bound_from_fisher", _cramer_rao),
    Row("logistic regression, condition of the minimum", "mse_lower_bound_from_fisher", _logistic_regression),
    Row("Bayesian bound, posterior mean", "bayesian_mse_lower_bound", _van_trees),
    Row("Renyi divergence, one value with noise", "mse_lower_bound_from_rdp", _renyi_error),
    Row(
        "output perturbation, one record, linear loss",
        "mse_lower_bound_from_output_perturbation",
        _output_perturbation,
        "the bound moves the record by half of its range, while its divergence is that of the whole range (a factor of "
        "4), and it never exceeds the error of a constant guess",
    ),
)


def compare(row: Row, seed: int = 0) -> tuple[str, ...]:
    """Return the cells of a row: instance, function, bound, attack with interval, ratio and verdict."""
    guarantee, measured = row.run(np.random.default_rng(seed))
    if guarantee.is_contradicted_by(measured):
        raise AssertionError(f"Expected the attack of '{row.instance}' not to beat {guarantee}, found {measured}.")
    upper = guarantee.quantity is Quantity.SUCCESS_PROBABILITY
    shown = format_rounded_up(guarantee.value) if upper else format_rounded_down(guarantee.value)
    ratio = measured.value / guarantee.value
    is_close = ratio >= 1 - CLOSE if upper else ratio <= 1 + CLOSE
    verdict = "within 10 %" if is_close else f"missing: {row.missing or 'not known'}"
    side = "success" if upper else "error"
    attack = f"{measured.value:.4g} [{measured.low:.4g}, {measured.high:.4g}]"
    return row.instance, row.function, side, shown, attack, f"{ratio:.3f}", verdict


def page() -> str:
    """Return the generated page of the documentation."""
    head = (
        "# Attack over bound",
        "",
        "At the end of this page you know how close attacks come to each guarantee of the package.",
        "",
        "`python -m benchmarks.attack_over_bound` generates this table; no cell is written by hand. Each row simulates",
        "releases, runs the best attack known and compares it with the guarantee, on the instance where the guarantee",
        "is tightest. Success has an upper bound, and the ratio is at most 1 up to chance. The mean squared error has",
        "a lower bound, and the ratio is at least 1. Intervals have a confidence of 99.9 %.",
        "",
        "| instance and attack | function | quantity | bound | attack | ratio | result |",
        "|---|---|---|---|---|---|---|",
    )
    cells = (tuple(cell.replace("|", "\\|") for cell in compare(row)) for row in ROWS)
    rows = (f"| {name} | `{function}` | {' | '.join(others)} |" for name, function, *others in cells)
    return "\n".join((*head, *rows)) + "\n"


def _contender(row: Row) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        """Simulate one row of the table."""
        return lambda: ", ".join(compare(row)[3:])

    return prepare


CONTENDERS = {row.instance: _contender(row) for row in ROWS}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
