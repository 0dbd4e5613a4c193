"""Observation to reconstruction: one file per algorithm, assembled from parts."""

from reconrisk.attacks.analytic import analytic
from reconrisk.attacks.analytic_average import average_observations
from reconrisk.attacks.analytic_estimates import (
    james_stein,
    known_norm,
    known_scale,
    least_squares,
    posterior_mean,
    ratio,
    total_least_squares,
)
from reconrisk.attacks.gauss_newton import gauss_newton
from reconrisk.attacks.optimal_analytic import neurons_for_clipping, optimal_analytic

__all__ = [
    "analytic",
    "average_observations",
    "gauss_newton",
    "james_stein",
    "known_norm",
    "known_scale",
    "least_squares",
    "neurons_for_clipping",
    "optimal_analytic",
    "posterior_mean",
    "ratio",
    "total_least_squares",
]
