"""What the adversary believes about records before any release."""

from reconrisk.priors.diffusion import diffusion
from reconrisk.priors.diffusion_prior import DiffusionPrior, denoiser
from reconrisk.priors.gaussian import GaussianPrior, fit_gaussian, gaussian
from reconrisk.priors.generator import GeneratorPrior, generator
from reconrisk.priors.schedule import NoiseSchedule, linear_schedule
from reconrisk.priors.train_diffusion import DiffusionTraining, train_diffusion

__all__ = [
    "DiffusionPrior",
    "DiffusionTraining",
    "GaussianPrior",
    "GeneratorPrior",
    "NoiseSchedule",
    "denoiser",
    "diffusion",
    "fit_gaussian",
    "gaussian",
    "generator",
    "linear_schedule",
    "train_diffusion",
]
