"""Forward maps from a record to what leaves the machine, with their derivatives."""

from reconrisk.releases.gradient import GradientMap

__all__ = ["GradientMap"]
