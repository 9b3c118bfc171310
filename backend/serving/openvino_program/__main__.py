"""Starts the server: `python -m backend.serving.openvino_program --model FILE.gguf --tokenizer FOLDER --alias NAME`.

The key is WHETSTONE_SERVER_KEY of the environment. SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

from backend.serving.openvino_program.app import App
from backend.serving.openvino_program.cache_layout import find_cache_type
from backend.serving.openvino_program.model_text import ModelText
from backend.serving.openvino_program.pipeline import BLOCK, Pipeline, PipelineOptions, check_device

KEY = "WHETSTONE_SERVER_KEY"


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the arguments of `serving.openvino.options`, and no others."""
    parser = argparse.ArgumentParser(prog="openvino-server")
    for name in ("model", "tokenizer"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--kv-cache-type", default="auto", choices=("auto", "u8", "u4"))
    cores = len(os.sched_getaffinity(0))
    numbers = {"port": 8000, "threads": cores, "cache-tokens": 16384, "context": 2048, "max-num-seqs": 256}
    unset = dict.fromkeys(("ngram-tokens", "ngram-max", "max-num-batched-tokens", "cache-eviction-tokens"), 0)
    for name, usual in {**numbers, **unset}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--sparse-attention", default="", choices=("", "trishape", "xattention"))
    return parser.parse_args(arguments)


def describe(pipeline: Pipeline, tokenizer: Path) -> dict[str, Any]:
    """Return what the server says of itself: the file that it read, and what the pipeline set up."""
    options = pipeline.options
    config = json.loads((tokenizer / "config.json").read_text())
    return {
        "engine": f"OpenVINO GenAI {importlib.metadata.version('openvino-genai')}",
        "device": options.device,
        "file_bytes": options.model.stat().st_size,
        "slots": options.most_sequences,
        "cache_tokens": -(-options.cache_tokens // BLOCK) * BLOCK,
        "cache_type": find_cache_type(config, pipeline.cache_bytes_per_token),
        "prefix_caching": options.prefix_caching,
        "prompt_lookup": bool(options.ngram_tokens),
        **describe_scheduler(pipeline.scheduler),
    }


def describe_scheduler(scheduler: Any) -> dict[str, Any]:
    """Return the settings of GenAI's scheduler that have no figure of their own, as the scheduler has them."""
    eviction = scheduler.cache_eviction_config.get_max_cache_size() if scheduler.use_cache_eviction else None
    sparse = scheduler.sparse_attention_config.mode.name.lower() if scheduler.use_sparse_attention else None
    return {
        "step_tokens": scheduler.max_num_batched_tokens,
        "eviction_tokens": eviction,
        "sparse_attention": sparse,
    }


def main() -> None:
    """Load the model, then serve until SIGTERM."""
    import uvicorn

    # 1. The key, which no process below this one needs.
    arguments = read_arguments()
    key = os.environ.pop(KEY, "")
    if not key:
        raise SystemExit(f"{KEY} is not set, so nobody could be told from anybody else")
    # 2. The model, before the port is open: a server that answers is ready.
    check_device(arguments.device)
    text = ModelText(arguments.tokenizer)
    pipeline = Pipeline(
        PipelineOptions(
            model=arguments.model,
            device=arguments.device,
            threads=arguments.threads,
            cache_type=arguments.kv_cache_type,
            cache_tokens=arguments.cache_tokens,
            most_sequences=arguments.max_num_seqs,
            prefix_caching=arguments.prefix_caching,
            ngram_tokens=arguments.ngram_tokens,
            ngram_most=arguments.ngram_max,
            step_tokens=arguments.max_num_batched_tokens,
            eviction_tokens=arguments.cache_eviction_tokens,
            sparse_attention=arguments.sparse_attention,
        )
    )
    facts = describe(pipeline, arguments.tokenizer)
    app = App(pipeline, text, name=arguments.alias, context=arguments.context, key=key, facts=facts)
    # 3. The routes.
    print(f"{facts['engine']} serves {arguments.model} on {facts['device']}", flush=True)
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        log_level="warning",
        access_log=False,
        lifespan="on",
        loop="uvloop",
        http="httptools",
        ws="none",
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main()
