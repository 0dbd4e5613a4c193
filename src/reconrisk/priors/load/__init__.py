"""Priors from folders: those of the user, and those in the package.

``folders.py`` finds a folder by path or name; ``diffusers.py`` reads a diffusion prior, and is the only file that
imports that library; ``gan.py`` reads a generator; ``bundled.py`` picks the bundled prior that fits given records.
"""
