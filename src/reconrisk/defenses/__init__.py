"""Changes of a release before it leaves the machine, each naming the mechanism it implements or None."""

from reconrisk.defenses.chain import chain
from reconrisk.defenses.clipping import clip
from reconrisk.defenses.masks import optimal_pruning, random_pruning
from reconrisk.defenses.noise import clip_and_noise, dp_sgd_noise, gaussian_noise, laplace_noise
from reconrisk.defenses.optimal_noise import optimal_noise
from reconrisk.defenses.pruning import prune_smallest
from reconrisk.defenses.quantisation import quantise, sign

__all__ = [
    "chain",
    "clip",
    "clip_and_noise",
    "dp_sgd_noise",
    "gaussian_noise",
    "laplace_noise",
    "optimal_noise",
    "optimal_pruning",
    "prune_smallest",
    "quantise",
    "random_pruning",
    "sign",
]
