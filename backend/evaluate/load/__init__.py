"""The load generator: a closed loop of streams against an OpenAI-compatible endpoint, measured by the rules of
measuring.md.

Knows nothing of models or servers beyond their HTTP interface. `run_level` is the door; `python -m
backend.evaluate.load` is what it starts.
"""

from backend.evaluate.load.runner import read_level, run_level

__all__ = ["read_level", "run_level"]
