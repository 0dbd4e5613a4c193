"""Balle, Cherubin, Hayes (2022)."""
