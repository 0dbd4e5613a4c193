"""Numbers about mechanisms: RDP, zCDP, trade-off curves, subsampling, calibration. NumPy and SciPy, no torch."""
