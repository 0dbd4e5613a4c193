"""The only place that holds target, attack and bound together."""
