"""Changes of a release before it leaves the machine, each naming the mechanism it implements or None."""

from reconrisk.defenses.noise import clip_and_noise, gaussian_noise
from reconrisk.defenses.pruning import prune_smallest

__all__ = ["clip_and_noise", "gaussian_noise", "prune_smallest"]
