"""opacus."""
