"""A variant's serving settings as options of vLLM's command line: for servers started here and for a person's own."""

from __future__ import annotations

import json
from typing import Any

from backend.domain.evaluation.document import Speculation
from backend.domain.recipe.recipe import Serving

PROMPT_LOOKUP = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
"""n-gram lengths, in tokens (Saxena 2023, prompt lookup decoding; vLLM's documentation uses 4 and 2)."""
SAMPLED = {"draft_sample_method": "probabilistic"}
"""Above temperature 0 the draft samples, and is accepted by the ratio of probabilities (Leviathan et al. 2023, section 2.3);
vLLM's default, an argmax taken for certain, is accepted less often. At temperature 0 both are the same."""


def serving(settings: Serving) -> list[str]:
    """Every setting that is not vLLM's own choice."""
    chosen: list[str] = ["--dtype", settings.dtype, "--kv-cache-dtype", settings.kv_cache_dtype]
    chosen += ["--tensor-parallel-size", str(settings.tensor_parallel)]
    for name, value in (("max-model-len", settings.max_model_len), ("max-num-seqs", settings.max_num_seqs)):
        chosen += [f"--{name}", str(value)] if value is not None else []
    for name, flag in (("prefix-caching", settings.prefix_caching), ("chunked-prefill", settings.chunked_prefill)):
        chosen += [f"--enable-{name}" if flag else f"--no-enable-{name}"] if flag is not None else []
    return chosen + (["--enforce-eager"] if settings.enforce_eager else [])


def speculating(speculation: Speculation | None, draft: str) -> list[str]:
    """--speculative-config, where there is one. `draft` is the folder of the draft model as the server is to find it."""
    return ["--speculative-config", json.dumps(speculative_config(speculation, draft))] if speculation else []


def speculative_config(speculation: Speculation, draft: str) -> dict[str, Any]:
    """The document that vLLM's `--speculative-config` takes."""
    if speculation.method == "ngram":
        return {"method": "ngram", "num_speculative_tokens": speculation.tokens, **PROMPT_LOOKUP}
    if speculation.method != "draft":
        return {"method": speculation.method, "model": draft, "num_speculative_tokens": speculation.tokens}
    return {"method": "draft_model", "model": draft, "num_speculative_tokens": speculation.tokens, **SAMPLED}
