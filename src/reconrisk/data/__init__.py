"""Datasets in the wheel, and loaders for the usual files on disk."""
