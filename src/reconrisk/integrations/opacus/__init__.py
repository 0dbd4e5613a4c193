"""Opacus: noise that differs between parameters, and steps that can be repeated.

Read ``optimal_noise.py`` (the public function), then ``noise_optimizer.py`` (the optimizer of Opacus in units of that
noise). ``step.py`` reads sampling, clipping and noise of one step from the objects of Opacus. ``repeated_steps.py``
takes steps from the same weights again and again, to examine their noise.
"""
