"""Chen et al., Optimal defenses against gradient reconstruction attacks (2025)."""
