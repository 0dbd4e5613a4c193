"""Thin adapters to other libraries, each behind its extra."""
