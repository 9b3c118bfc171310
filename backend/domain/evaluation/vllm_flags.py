"""A variant's serving settings as options of vLLM's command line: for servers started here and for a person's own."""

from __future__ import annotations

import json
from typing import Any

from backend.domain.evaluation.document import Speculation
from backend.domain.recipe.recipe import Serving
from backend.domain.recipe.speculation import PROMPT_LOOKUP, SPECULATE, Schedule

DRAFT_LINK = "draft-model"
"""The name of the draft in the working directory of a server that was started here."""
SAMPLED = {"draft_sample_method": "probabilistic"}
"""Above temperature 0 the draft samples, and is accepted by the ratio of probabilities (Leviathan et al. 2023, section
2.3); vLLM's default, an argmax taken for certain, is accepted less often. At temperature 0 both are the same."""


def serving_flags(settings: Serving) -> list[str]:
    """Every setting that is not vLLM's own choice."""
    chosen: list[str] = ["--dtype", settings.dtype, "--kv-cache-dtype", settings.kv_cache_dtype]
    chosen += ["--tensor-parallel-size", str(settings.tensor_parallel)]
    for name, value in (
        ("pipeline-parallel-size", settings.pipeline_parallel),
        ("data-parallel-size", settings.data_parallel),
        ("max-model-len", settings.max_model_len),
        ("max-num-seqs", settings.max_num_seqs),
        ("max-num-batched-tokens", settings.max_num_batched_tokens),
        ("block-size", settings.block_size),
        ("attention-backend", settings.attention_backend),
        ("performance-mode", settings.performance_mode),
    ):
        chosen += [f"--{name}", str(value)] if value is not None else []
    for name, flag in (("prefix-caching", settings.prefix_caching), ("chunked-prefill", settings.chunked_prefill)):
        chosen += [f"--enable-{name}" if flag else f"--no-enable-{name}"] if flag is not None else []
    chosen += ["--enable-expert-parallel"] if settings.expert_parallel else []
    return chosen + (["--enforce-eager"] if settings.enforce_eager else [])


def speculation_flags(speculation: Speculation | None, draft: str) -> list[str]:
    """--speculative-config, where there is one. `draft` is the folder of the draft model as the server is to find
    it."""
    return ["--speculative-config", json.dumps(speculative_config(speculation, draft))] if speculation else []


def speculative_config(speculation: Speculation, draft: str) -> dict[str, Any]:
    """The document that vLLM's `--speculative-config` takes."""
    row = SPECULATE[speculation.method]
    config: dict[str, Any] = {"method": row.engine_method}
    if proposer := speculation.proposer or row.engine_class:
        config["model"] = proposer
    elif speculation.draft_path is not None:
        config["model"] = draft
    config["num_speculative_tokens"] = speculation.tokens
    if speculation.method == "ngram":
        least, most = speculation.prompt_lookup or PROMPT_LOOKUP
        config |= {"prompt_lookup_max": most, "prompt_lookup_min": least}
    if speculation.heterogeneous_vocab:  # with which vLLM 0.32 takes an argmax of the draft alone
        config["use_heterogeneous_vocab"] = True
    elif speculation.method == "draft":
        config |= SAMPLED
    if speculation.tokens_by_batch:
        config["num_speculative_tokens_per_batch_size"] = _ranges(speculation.tokens_by_batch)
    if speculation.synthetic is not None:
        # the chance that the first token of a guess is accepted, that the first two are, and so on
        rates = [speculation.synthetic**place for place in range(1, speculation.tokens + 1)]
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    return config


def _ranges(schedule: Schedule) -> list[list[int]]:
    """(first, last, tokens), both included; what lies beyond the last range keeps its tokens."""
    ends = [start - 1 for start, _ in schedule[1:]] + [schedule[-1][0]]
    return [[start, end, tokens] for (start, tokens), end in zip(schedule, ends, strict=True)]
