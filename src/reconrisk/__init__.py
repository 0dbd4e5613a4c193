"""How much of a private training record can be rebuilt from what you release, at most and in practice."""
