"""Artifacts on disk: publish, verify, remove."""
