"""Tests of the guarantees."""
