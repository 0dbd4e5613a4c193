"""with_prior."""
