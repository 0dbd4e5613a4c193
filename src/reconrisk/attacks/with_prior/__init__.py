"""Attacks with a generative prior.

Start with ``gaussian_posterior.py``: it is exact for a Gaussian prior and a linear release, and so a test of the
others. Diffusions: ``guided_diffusion.py`` samples under guidance by the residual (GGSS-R); ``plug_and_play.py``
refines such samples; ``finetuned_diffusion.py`` tunes weights. Generators: ``latents.py`` makes them parametrizations
of the matching loop, which ``gias.py`` and ``gifd.py`` use; ``ggl.py`` evolves latent values. ``unknown_noise.py``
estimates noise that is not known. With known noise these attacks fit a posterior: the likelihood times the law of the
latent values.
"""
