"""Observation to reconstruction: one file per algorithm, assembled from parts."""

from reconrisk.attacks.analytic import analytic
from reconrisk.attacks.gauss_newton import gauss_newton

__all__ = ["analytic", "gauss_newton"]
