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
from reconrisk.attacks.finetuned_diffusion import finetuned_diffusion
from reconrisk.attacks.gauss_newton import gauss_newton
from reconrisk.attacks.gaussian_posterior import gaussian_posterior
from reconrisk.attacks.ggl import ggl
from reconrisk.attacks.ggss_r import ggss_r
from reconrisk.attacks.gias import gias
from reconrisk.attacks.gifd import gifd
from reconrisk.attacks.glm import GlmReconstruction, glm
from reconrisk.attacks.glm_candidates import GlmMatch, glm_attributes, glm_candidates
from reconrisk.attacks.glm_observed import glm_observed
from reconrisk.attacks.grad_inversion import grad_inversion
from reconrisk.attacks.imprint import imprint
from reconrisk.attacks.informed_membership import Membership, informed_membership
from reconrisk.attacks.invert_training import invert_training
from reconrisk.attacks.inverting_gradients import inverting_gradients
from reconrisk.attacks.jensen_gap import JensenGap, jensen_gap
from reconrisk.attacks.match_candidates import Identification, match_candidates
from reconrisk.attacks.optimal_analytic import neurons_for_clipping, optimal_analytic
from reconrisk.attacks.plug_and_play import plug_and_play
from reconrisk.attacks.prior_alone import prior_alone
from reconrisk.attacks.reconstructor import Reconstructor, fine_tuned_reconstructor, reconstructor
from reconrisk.attacks.reconstructor_file import load_reconstructor, save_reconstructor
from reconrisk.attacks.reconstructor_knowledge import ShadowKnowledge
from reconrisk.attacks.reconstructor_settings import (
    ReconstructorSettings,
    balle2022_reconstructor,
    linear_reconstructor,
    residual_reconstructor,
)
from reconrisk.attacks.span_inversion import span_inversion
from reconrisk.attacks.tabular import tabular
from reconrisk.attacks.trap_weights import trap_weights

__all__ = [
    "GlmMatch",
    "GlmReconstruction",
    "Identification",
    "JensenGap",
    "Membership",
    "Reconstructor",
    "ReconstructorSettings",
    "ShadowKnowledge",
    "analytic",
    "average_observations",
    "balle2022_reconstructor",
    "best_candidate",
    "class_mean",
    "constant_guess",
    "dlg",
    "fine_tuned_reconstructor",
    "finetuned_diffusion",
    "gauss_newton",
    "gaussian_posterior",
    "ggl",
    "ggss_r",
    "gias",
    "gifd",
    "glm",
    "glm_attributes",
    "glm_candidates",
    "glm_observed",
    "grad_inversion",
    "idlg",
    "imprint",
    "informed_membership",
    "invert_training",
    "inverting_gradients",
    "james_stein",
    "jensen_gap",
    "known_norm",
    "known_scale",
    "least_squares",
    "linear_reconstructor",
    "load_reconstructor",
    "match_candidates",
    "neurons_for_clipping",
    "optimal_analytic",
    "plug_and_play",
    "posterior_mean",
    "prior_alone",
    "prior_mean",
    "ratio",
    "reconstructor",
    "residual_reconstructor",
    "save_reconstructor",
    "span_inversion",
    "tabular",
    "total_least_squares",
    "trap_weights",
]
