"""Attacks that hold a generative prior.

Start with ``gaussian_posterior.py``: exact for a Gaussian prior and a linear release, and so the test of the others.
Diffusions: ``guided_diffusion.py`` samples, guided by the residual (GGSS-R); ``plug_and_play.py`` refines such runs;
``finetuned_diffusion.py`` tunes weights. Generators: ``latents.py`` makes them parametrizations of the matching loop,
which ``gias.py`` and ``gifd.py`` assemble; ``ggl.py`` evolves latent values. ``unknown_noise.py`` is the noise they
assume where none is known. With known noise they fit a posterior: likelihood and law of the latent values.
"""
