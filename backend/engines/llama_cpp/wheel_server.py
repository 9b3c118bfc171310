"""The server of the wheel xllamacpp, started with the arguments of llama-server that Whetstone gives.

Where no compiler is, an installation puts this script in the place of llama-server. It runs in the environment that
holds the wheel, and imports nothing of Whetstone.
"""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

SCRIPT = "wheel_server.py"
"""Name of this module's copy in the environment that holds the wheel."""

SPECULATION = ("spec-type", "spec-draft-model")
SPECULATION_SIZES = ("spec-draft-n-max", "spec-ngram-simple-size-n", "spec-ngram-simple-size-m", "log-verbosity")


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the arguments of `serving.llama_cpp_options`, and no others."""
    parser = argparse.ArgumentParser(prog="llama-server")
    for name in ("model", "alias", "host", "cache-type-k", "cache-type-v", "reasoning-format", *SPECULATION):
        parser.add_argument(f"--{name}")
    for name in ("port", "threads", "threads-batch", "parallel", "ctx-size", "cache-ram", "top-k", *SPECULATION_SIZES):
        parser.add_argument(f"--{name}", type=int)
    for name in ("temp", "top-p", "min-p"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("metrics", "no-ui", "no-slots", "offline", "kv-unified", "version"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--cache-prompt", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args(arguments)


def set_parameters(library: Any, arguments: argparse.Namespace) -> Any:
    """Return the wheel's parameters with the values of the arguments."""
    chosen = library.CommonParams()
    # 1. The model and its address.
    chosen.model.path = arguments.model
    chosen.model_alias = {arguments.alias}
    chosen.hostnames, chosen.port = [arguments.host], arguments.port
    chosen.api_keys = [os.environ["LLAMA_API_KEY"]]
    chosen.endpoint_metrics, chosen.endpoint_slots, chosen.ui, chosen.offline = True, False, False, True
    # 2. Threads, slots and the cache.
    chosen.cpuparams.n_threads, chosen.cpuparams_batch.n_threads = arguments.threads, arguments.threads_batch
    chosen.n_parallel, chosen.n_ctx, chosen.kv_unified = arguments.parallel, arguments.ctx_size, arguments.kv_unified
    chosen.cache_prompt, chosen.cache_ram_mib = arguments.cache_prompt, arguments.cache_ram
    for name in ("cache_type_k", "cache_type_v"):
        if getattr(arguments, name):
            setattr(chosen, name, getattr(library.ggml_type, f"GGML_TYPE_{getattr(arguments, name).upper()}"))
    _set_speculation(library, chosen.speculative, arguments)
    chosen.verbosity = arguments.log_verbosity or chosen.verbosity
    # 3. Sampling, and thoughts that belong to the answer.
    chosen.reasoning_format = library.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
    sampling = chosen.sampling
    sampling.temp, sampling.top_k, sampling.top_p, sampling.min_p = (
        arguments.temp,
        arguments.top_k,
        arguments.top_p,
        arguments.min_p,
    )
    return chosen


def _set_speculation(library: Any, chosen: Any, arguments: argparse.Namespace) -> None:
    """Set the kind of speculation with its sizes."""
    if arguments.spec_type is None:
        return
    kind = arguments.spec_type.upper().replace("-", "_")
    chosen.types = [getattr(library.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
    if arguments.spec_draft_model:
        draft = chosen.draft
        draft.mparams.path, draft.n_max = arguments.spec_draft_model, arguments.spec_draft_n_max
    else:
        lookup = chosen.ngram_simple
        lookup.size_n, lookup.size_m = arguments.spec_ngram_simple_size_n, arguments.spec_ngram_simple_size_m


def main() -> None:
    """Serve until SIGTERM."""
    import xllamacpp

    arguments = read_arguments()
    if arguments.version:
        print(f"xllamacpp {xllamacpp.__version__}")
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server = xllamacpp.Server(set_parameters(xllamacpp, arguments))
    print(f"xllamacpp {xllamacpp.__version__} listens at {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)


if __name__ == "__main__":
    main()
