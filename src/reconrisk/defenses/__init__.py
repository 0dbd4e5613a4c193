"""Gradients to gradients, each naming the mechanism it implements or saying that it is heuristic."""
