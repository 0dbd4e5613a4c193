"""Estimate and target to one score per record, and the matching of batches."""
