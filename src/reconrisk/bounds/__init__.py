"""Guarantees from numbers about mechanisms: reconstruction robustness, inversion, Fisher, Bayesian. No torch."""
