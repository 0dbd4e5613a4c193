from . import prior_success as prior_success
from . import risks as risks
from .analytic_inversion import analytic_inversion_law as analytic_inversion_law
from .analytic_inversion import analytic_inversion_ncc as analytic_inversion_ncc
from .analytic_inversion import neurons_needed as neurons_needed
from .analytic_inversion import noise_multiplier_from_success as noise_multiplier_from_success
from .analytic_inversion import training_run_law as training_run_law
from .calibration import calibrate as calibrate
from .corridor import compare_simple_guesses as compare_simple_guesses
from .corridor import corridor_curve as corridor_curve
from .corridor import crossover_mse as crossover_mse
from .corridor import risk as risk
from .corridor import risk_surface as risk_surface
from .gaussian_prior import gaussian_prior_success as gaussian_prior_success
from .gaussian_prior import linear_gaussian_success as linear_gaussian_success
from .glm.information import glm_information as glm_information
from .glm.problem import fit_glm as fit_glm
from .known_norm import from_scratch_success as from_scratch_success
from .known_norm import known_norm_success as known_norm_success
from .mse.bayesian import bayesian_mse_lower_bound as bayesian_mse_lower_bound
from .mse.fisher import mse_lower_bound_from_fisher as mse_lower_bound_from_fisher
from .mse.output_perturbation import logistic_information as logistic_information
from .mse.output_perturbation import (
    mse_lower_bound_from_output_perturbation as mse_lower_bound_from_output_perturbation,
)
from .mse.renyi import mse_lower_bound_from_rdp as mse_lower_bound_from_rdp
from .success import dp_from_reconstruction_robustness as dp_from_reconstruction_robustness
from .success import success_upper_bound as success_upper_bound
