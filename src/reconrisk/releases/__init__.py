"""Forward maps from a record to what leaves the machine, with their derivatives."""

from reconrisk.releases.clipping import HardClip, SmoothClip
from reconrisk.releases.gradient import GradientMap, GradientRelease
from reconrisk.releases.release import ForwardRelease, Linearized, Release

__all__ = ["ForwardRelease", "GradientMap", "GradientRelease", "HardClip", "Linearized", "Release", "SmoothClip"]
