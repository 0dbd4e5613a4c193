from .release import ForwardRelease as ForwardRelease
from .release import Linearized as Linearized
from .release import Release as Release
from .updates.clipping import HardClip as HardClip
from .updates.clipping import SmoothClip as SmoothClip
from .updates.gradient import GradientMap as GradientMap
from .updates.gradient import GradientRelease as GradientRelease
from .updates.local_update import LocalTraining as LocalTraining
