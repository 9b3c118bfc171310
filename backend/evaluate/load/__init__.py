"""The load generator: streams of requests against an OpenAI-compatible endpoint, measured by the rules of
docs/measuring.md.

Knows nothing of models or servers beyond their HTTP interface. Callers use `run_level` or `run_alternating`, which
start `python -m backend.evaluate.load`.
"""

from backend.evaluate.load.runner import read_level, run_alternating, run_level

__all__ = ["read_level", "run_alternating", "run_level"]
