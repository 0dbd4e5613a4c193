"""Priors from folders: the user's, and those in the package.

``folders.py`` finds a folder by path or name; ``diffusers.py`` reads a diffusion, and is the only file that imports
that library; ``gan.py`` reads a generator; ``bundled.py`` picks the bundled prior that fits given records.
"""
