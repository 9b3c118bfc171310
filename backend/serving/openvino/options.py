"""Turns a variant's serving settings into arguments of the OpenVINO server. Knows nothing of processes or HTTP."""

from __future__ import annotations

import os
from pathlib import Path

from backend.domain.evaluation.document import Variant
from backend.domain.recipe.serving import chosen_flags
from backend.domain.recipe.speculation import PROMPT_LOOKUP
from backend.serving import llama_cpp_options, vllm_options
from backend.settings import CHECKOUT

PROGRAM = "backend.serving.openvino_program"
SEQUENCES = 256
"""Requests that run at one time where the recipe does not say: GenAI's own choice (SchedulerConfig)."""
TOKENIZER_LINK = "tokenizer"
"""Name of the model's folder in the server's working directory."""


def server_arguments(
    variant: Variant, *, port: int, served_name: str, tokens_in_flight: int | None = None, streams: int | None = None
) -> list[str]:
    """Return the arguments after `python`. The cache is one pool of blocks that all requests share."""
    serving = variant.serving
    arguments = ["-m", PROGRAM, "--model", f"./{Path(variant.gguf or '').name}", "--tokenizer", TOKENIZER_LINK]
    arguments += [f"--alias={served_name}", "--port", str(port), "--device", serving.device or "CPU"]
    arguments += ["--threads", str(serving.threads or llama_cpp_options.cores())]
    arguments += ["--context", str(serving.max_model_len or vllm_options.context_length(variant))]
    arguments += ["--cache-tokens", str(llama_cpp_options.pool_tokens(variant, tokens_in_flight, streams))]
    arguments += ["--max-num-seqs", str(serving.max_num_seqs or SEQUENCES)]
    arguments += ["--kv-cache-type", serving.kv_cache_dtype]
    # The prefix cache is off unless it is asked for: GenAI does not say which tokens its cache answered.
    arguments += chosen_flags.openvino_flags(serving)
    if variant.speculation is not None:
        arguments += ["--ngram-tokens", str(variant.speculation.tokens)]
        arguments += ["--ngram-max", str((variant.speculation.prompt_lookup or PROMPT_LOOKUP)[1])]
    return arguments


def environment() -> dict[str, str]:
    """Return the server's whole environment without its key: the program is a package of this checkout."""
    inherited = {name: os.environ[name] for name in vllm_options.INHERITED if name in os.environ}
    return {**inherited, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
