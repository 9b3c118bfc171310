"""Endpoints of this machine in words, and as configuration of other programs."""
