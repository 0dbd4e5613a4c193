"""Riess et al., From mean to extreme: formal differential privacy bounds on data reconstruction (2025)."""
