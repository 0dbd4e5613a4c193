"""prior_value."""
