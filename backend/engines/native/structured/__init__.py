"""Structured pruning: whole layers, neurons, heads, channels or experts are removed, and a smaller dense model is
left."""
