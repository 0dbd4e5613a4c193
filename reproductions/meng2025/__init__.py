"""Meng, Huang, Chen, Hou, Zheng (2025)."""
