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
from reconrisk.attacks.baselines import class_mean, constant_guess, prior_mean
from reconrisk.attacks.best_candidate import best_candidate
from reconrisk.attacks.deep_leakage import dlg, idlg
from reconrisk.attacks.gauss_newton import gauss_newton
from reconrisk.attacks.glm import GlmReconstruction, glm
from reconrisk.attacks.grad_inversion import grad_inversion
from reconrisk.attacks.imprint import imprint
from reconrisk.attacks.invert_training import invert_training
from reconrisk.attacks.inverting_gradients import inverting_gradients
from reconrisk.attacks.match_candidates import Identification, match_candidates
from reconrisk.attacks.optimal_analytic import neurons_for_clipping, optimal_analytic
from reconrisk.attacks.span_inversion import span_inversion
from reconrisk.attacks.tabular import tabular
from reconrisk.attacks.trap_weights import trap_weights

__all__ = [
    "GlmReconstruction",
    "Identification",
    "analytic",
    "average_observations",
    "best_candidate",
    "class_mean",
    "constant_guess",
    "dlg",
    "gauss_newton",
    "glm",
    "grad_inversion",
    "idlg",
    "imprint",
    "invert_training",
    "inverting_gradients",
    "james_stein",
    "known_norm",
    "known_scale",
    "least_squares",
    "match_candidates",
    "neurons_for_clipping",
    "optimal_analytic",
    "posterior_mean",
    "prior_mean",
    "ratio",
    "span_inversion",
    "tabular",
    "total_least_squares",
    "trap_weights",
]
