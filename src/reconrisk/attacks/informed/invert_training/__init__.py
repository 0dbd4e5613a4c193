"""invert_training."""
