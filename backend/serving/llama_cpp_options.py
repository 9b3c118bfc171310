"""Turns a variant's serving settings into options of llama.cpp's server, which serves a GGUF file on a processor.

Options of llama.cpp 0c1e57098 (tools/server/README.md). Knows nothing of processes, free ports or HTTP.
"""

from __future__ import annotations

import os
from pathlib import Path

from backend.domain.evaluation import llama_cpp_speculation
from backend.domain.evaluation.document import Variant
from backend.domain.needs.kv_cache_tokens import POOL_SLOTS, pooled_tokens
from backend.domain.needs.serving_memory import BLOCK_BYTES, BLOCK_ELEMENTS, stored_cache
from backend.domain.recipe.serving import chosen_flags
from backend.serving import vllm_options

MARGIN = 256
"""Tokens of the cache beyond those of a known load: its greedy answers and warm-up are a little longer."""
NEUTRAL_SAMPLING = ("--temp", "1.0", "--top-k", "0", "--top-p", "1.0", "--min-p", "0.0")
"""Sampling as vLLM has it where a request says nothing; llama.cpp's own is temperature 0.8, top-k 40, min-p 0.05."""
DRAFT = "draft-"
"""Before the name of a draft's file in the server's working directory, where the model's own file is too."""
SPINS = "10000"
"""Turns of a thread at a barrier before it sleeps (libgomp's GOMP_SPINCOUNT).

Threads that never sleep wait for one that does not run where other programs use the cores too (a load of 15 on two
cores: 285 to 940 ms a token, 15 to 45 where all sleep at once). Threads that sleep at once take 2.4 times as long on a
machine with nothing else to do: benchmarks/results/llama_cpp_settings.md.
"""


def server_arguments(
    variant: Variant, *, port: int, served_name: str, tokens_in_flight: int | None = None, streams: int | None = None
) -> list[str]:
    """Return the arguments after `llama-server`. The cache is one pool that all slots share."""
    serving = variant.serving
    threads = serving.threads or cores()
    arguments = ["--model", f"./{Path(variant.gguf or '').name}", "--alias", served_name]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--metrics", "--no-ui", "--no-slots", "--offline"]
    arguments += ["--threads", str(threads), "--threads-batch", str(serving.batch_threads or threads)]
    arguments += ["--parallel", str(slots(variant, streams)), "--kv-unified"]
    arguments += ["--ctx-size", str(pool_tokens(variant, tokens_in_flight, streams))]
    arguments += chosen_flags.llama_cpp_flags(serving)
    draft = variant.speculation.draft_gguf if variant.speculation else None
    arguments += llama_cpp_speculation.flags(variant.speculation, f"./{DRAFT}{Path(draft or '').name}")
    # Its second cache, in main memory and of 8 GiB, would answer from earlier levels.
    arguments += ["--cache-ram", "0"]
    if serving.prefix_caching is not None:
        arguments.append("--cache-prompt" if serving.prefix_caching else "--no-cache-prompt")
    # Its log says threads, cache and speculation from this level on, a few lines a request. Thoughts belong to the
    # answer, as in the other engines.
    return [*arguments, "--log-verbosity", "4", "--reasoning-format", "none", *NEUTRAL_SAMPLING]


def slots(variant: Variant, streams: int | None = None) -> int:
    """Return the requests that are answered at one time."""
    return variant.serving.max_num_seqs or max(POOL_SLOTS, streams or 0)


def pool_tokens(variant: Variant, tokens_in_flight: int | None = None, streams: int | None = None) -> int:
    """Return the tokens that the cache holds: at least one full sequence, which is also what one slot may use.

    A known load decides how many more; else each slot has a full sequence, within a few GiB.
    """
    sequence = variant.serving.max_model_len or vllm_options.context_length(variant)
    if tokens_in_flight is not None:
        return max(sequence, tokens_in_flight + MARGIN * slots(variant, streams))
    element = BLOCK_BYTES.get(stored_cache(variant.serving), 2 * BLOCK_ELEMENTS) / BLOCK_ELEMENTS
    return pooled_tokens(vllm_options.cache_elements(variant) * element, sequence, slots(variant, streams))


def environment() -> dict[str, str]:
    """Return the server's whole environment without its key. `SPINS` says how its threads wait."""
    inherited = {name: os.environ[name] for name in vllm_options.INHERITED if name in os.environ}
    return {**inherited, "GOMP_SPINCOUNT": SPINS}


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))
