"""informed."""
