"""Guarantees from numbers about mechanisms: reconstruction robustness, inversion, Fisher, Bayesian. No torch."""

from reconrisk.bounds import prior_success, risks
from reconrisk.bounds.analytic_inversion import (
    analytic_inversion_law,
    neurons_needed,
    noise_multiplier_from_success,
    training_run_law,
)
from reconrisk.bounds.calibration import calibrate
from reconrisk.bounds.correlation import analytic_inversion_ncc
from reconrisk.bounds.corridor import corridor_curve, crossover_mse, risk_corridor, risk_surface
from reconrisk.bounds.gaussian_prior import gaussian_prior_success, linear_gaussian_success
from reconrisk.bounds.glm import fit_glm
from reconrisk.bounds.glm_information import glm_information
from reconrisk.bounds.known_norm import from_scratch_success
from reconrisk.bounds.mean_squared_error_bayesian import bayesian_mse_lower_bound
from reconrisk.bounds.mean_squared_error_fisher import mse_lower_bound_from_fisher
from reconrisk.bounds.mean_squared_error_output_perturbation import (
    logistic_information,
    mse_lower_bound_from_output_perturbation,
)
from reconrisk.bounds.mean_squared_error_rdp import mse_lower_bound_from_rdp
from reconrisk.bounds.simple_guesses import what_simple_guesses_reach
from reconrisk.bounds.success import dp_from_reconstruction_robustness, success_upper_bound

__all__ = [
    "analytic_inversion_law",
    "analytic_inversion_ncc",
    "bayesian_mse_lower_bound",
    "calibrate",
    "corridor_curve",
    "crossover_mse",
    "dp_from_reconstruction_robustness",
    "fit_glm",
    "from_scratch_success",
    "gaussian_prior_success",
    "glm_information",
    "linear_gaussian_success",
    "logistic_information",
    "mse_lower_bound_from_fisher",
    "mse_lower_bound_from_output_perturbation",
    "mse_lower_bound_from_rdp",
    "neurons_needed",
    "noise_multiplier_from_success",
    "prior_success",
    "risk_corridor",
    "risk_surface",
    "risks",
    "success_upper_bound",
    "training_run_law",
    "what_simple_guesses_reach",
]
