"""gauss_newton."""
