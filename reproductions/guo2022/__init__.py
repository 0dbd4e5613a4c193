"""Guo et al., Bounding training data reconstruction in private (deep) learning (2022)."""
