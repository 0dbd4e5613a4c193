"""Priors: distributions of records that an adversary knows before any release.

Start with ``gaussian.py``: its posterior has a closed form, so it tests all others. ``diffusion.py`` turns any denoiser
into a prior, with its noise schedule and its samplers; ``generator.py`` does the same for any function of latent
values. ``network.py`` checks networks that become priors: their mode, precision, device and units. ``load/`` reads
priors from folders, ``train/`` trains small ones, and ``quality.py`` measures a prior on held-out records. ``bundled/``
holds the priors in the package.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
