"""Statements about what is served on this studio's machines."""
