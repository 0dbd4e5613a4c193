"""What the adversary believes about records before any release."""

from reconrisk.priors.diffusion import diffusion
from reconrisk.priors.diffusion_prior import DiffusionPrior, denoiser
from reconrisk.priors.gan import gan
from reconrisk.priors.gaussian import GaussianPrior, fit_gaussian, gaussian
from reconrisk.priors.generator import GeneratorPrior, generator
from reconrisk.priors.schedule import NoiseSchedule, linear_schedule
from reconrisk.priors.train_diffusion import DiffusionTraining, train_diffusion
from reconrisk.priors.train_gan import GanTraining, train_gan

__all__ = [
    "DiffusionPrior",
    "DiffusionTraining",
    "GanTraining",
    "GaussianPrior",
    "GeneratorPrior",
    "NoiseSchedule",
    "denoiser",
    "diffusion",
    "fit_gaussian",
    "gan",
    "gaussian",
    "generator",
    "linear_schedule",
    "train_diffusion",
    "train_gan",
]
