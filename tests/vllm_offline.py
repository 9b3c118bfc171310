"""What scripts for vLLM's interpreter begin with that load one tiny model after another, of which each takes a second
then."""

from __future__ import annotations

BEGIN = """
import gc, json, sys
# vLLM collects eight times a model, each time through all that it imported: two thirds of what a tiny model takes.
collect, gc.collect = gc.collect, lambda *_: 0
# It asks a process of its own what each architecture can do, so that CUDA is not started, which is not here.
import vllm.model_executor.models.registry as registry
registry._run_in_subprocess = lambda ask: ask()
from vllm import LLM, SamplingParams
"""
"""`collect()` once a model is done with frees its memory."""
