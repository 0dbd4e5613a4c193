"""What the adversary believes about records before any release."""

from reconrisk.priors.diffusion import diffusion
from reconrisk.priors.diffusion_prior import DiffusionPrior, denoiser
from reconrisk.priors.folders import read_card
from reconrisk.priors.gan import gan
from reconrisk.priors.gaussian import GaussianPrior, fit_gaussian, gaussian
from reconrisk.priors.generator import GeneratorPrior, generator
from reconrisk.priors.quality import denoising_loss, frechet_distance, nearest_distance
from reconrisk.priors.schedule import NoiseSchedule, linear_schedule
from reconrisk.priors.shipped import SHIPPED_DIFFUSION, SHIPPED_GAN, fitting
from reconrisk.priors.train_diffusion import DiffusionTraining, train_diffusion
from reconrisk.priors.train_gan import GanTraining, train_gan

__all__ = [
    "SHIPPED_DIFFUSION",
    "SHIPPED_GAN",
    "DiffusionPrior",
    "DiffusionTraining",
    "GanTraining",
    "GaussianPrior",
    "GeneratorPrior",
    "NoiseSchedule",
    "denoiser",
    "denoising_loss",
    "diffusion",
    "fit_gaussian",
    "fitting",
    "frechet_distance",
    "gan",
    "gaussian",
    "generator",
    "linear_schedule",
    "nearest_distance",
    "read_card",
    "train_diffusion",
    "train_gan",
]
