"""Changes of a release before it leaves the machine, each naming the mechanism it implements or None."""

from reconrisk.defenses.budget import TargetBound
from reconrisk.defenses.chain import chain
from reconrisk.defenses.clipping import clip
from reconrisk.defenses.local import local_optimal_noise, local_optimal_pruning
from reconrisk.defenses.masks import optimal_pruning, random_pruning
from reconrisk.defenses.noise import clip_and_noise, dp_sgd_noise, gaussian_noise, laplace_noise
from reconrisk.defenses.optimal_noise import equal_noise, optimal_noise
from reconrisk.defenses.pruned_noise import optimal_pruning_and_noise
from reconrisk.defenses.pruning import prune
from reconrisk.defenses.quantisation import quantise, sign
from reconrisk.defenses.refreshed import refreshed

__all__ = [
    "TargetBound",
    "chain",
    "clip",
    "clip_and_noise",
    "dp_sgd_noise",
    "equal_noise",
    "gaussian_noise",
    "laplace_noise",
    "local_optimal_noise",
    "local_optimal_pruning",
    "optimal_noise",
    "optimal_pruning",
    "optimal_pruning_and_noise",
    "prune",
    "quantise",
    "random_pruning",
    "refreshed",
    "sign",
]
