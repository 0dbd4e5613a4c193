"""Results to pictures, text and JSON. No torch, no recomputation."""
