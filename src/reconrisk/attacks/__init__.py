"""Observation to reconstruction: one file per algorithm, assembled from parts."""
