"""Guarantees from numbers about mechanisms: reconstruction robustness, analytic inversion, Fisher, Bayesian. No torch."""
