"""Noise that differs between parameters, for training with Opacus.

Read ``optimal_noise.py`` (the public function), then ``noise_optimizer.py`` (the optimizer of Opacus in units of that
noise). ``step.py`` reads sampling, clipping and noise of one step from the objects of Opacus.
"""
