"""The options of a recipe that belong to no step: serving settings and quality limits."""

from __future__ import annotations

from app.builder.option import TRI, Option

SERVING_OPTIONS = (
    Option(
        "engine",
        "Engine",
        "vllm serves safetensors; llama.cpp and openvino serve GGUF files: one that a step makes, or the one imported.",
        "choice",
        ("vllm", "llama.cpp", "openvino"),
    ),
    Option(
        "dtype",
        "Number format",
        "For activations and unquantized weights. auto: the model's own.",
        "choice",
        ("auto", "bfloat16", "float16", "float32"),
    ),
    Option(
        "max_model_len",
        "Longest context (tokens)",
        "Prompt and answer together. Empty: the model's own limit.",
        "whole",
        low=16,
    ),
    Option(
        "max_num_seqs",
        "Concurrent requests",
        "How many requests the server batches; empty is the engine's default.",
        "whole",
        low=1,
    ),
    Option("tensor_parallel", "Accelerators to split over", "1: no splitting.", "whole", low=1),
    Option(
        "kv_cache_dtype",
        "Key-value cache",
        "fp8 (vLLM) halves the cache where the hardware has it; q8_0 and q4_0 are llama.cpp's, u8 and u4 OpenVINO's.",
        "choice",
        ("auto", "fp8", "q8_0", "q4_0", "u8", "u4"),
    ),
    Option(
        "prefix_caching",
        "Prefix caching",
        "Reuses the work of prompts that begin alike; empty is vLLM's default.",
        "choice",
        TRI,
    ),
    Option(
        "chunked_prefill",
        "Chunked prefill",
        "Long prompts no longer hold up running answers; empty is vLLM's default.",
        "choice",
        TRI,
    ),
    Option(
        "enforce_eager",
        "Skip compilation at start",
        "Starts sooner, answers slower; cannot go with a compile step.",
        "flag",
    ),
    Option("threads", "Threads (llama.cpp, openvino)", "Threads that generate. Empty: one per core.", "whole", low=1),
    Option(
        "batch_threads",
        "Threads for prompts (llama.cpp)",
        "Threads that read prompts. Empty: as many as generate.",
        "whole",
        low=1,
    ),
    Option("device", "Device (openvino)", "CPU, GPU or GPU.0 by OpenVINO's names. Empty: the processor.", "text"),
    Option(
        "max_num_batched_tokens",
        "Tokens of a step",
        "The most tokens of one step, over all requests: fewer keep answers flowing while a prompt is read, more read "
        "prompts faster. Empty: the engine's own.",
        "whole",
        low=16,
    ),
    Option(
        "micro_batch_tokens",
        "Tokens of a pass (llama.cpp)",
        "The most tokens that go through the layers at once: larger reads prompts faster where the cores are wide. "
        "Empty: 512.",
        "whole",
        low=16,
    ),
    Option(
        "flash_attention",
        "Flash attention (llama.cpp)",
        "Attention without the whole matrix of scores: less memory, and faster with long contexts. Empty: the engine "
        "decides.",
        "choice",
        TRI,
    ),
    Option(
        "block_size",
        "Tokens of a cache block (vllm)",
        "Larger blocks have less bookkeeping, smaller ones share more beginnings of prompts. Empty: the engine's own.",
        "whole",
        low=1,
    ),
    Option(
        "attention_backend",
        "Attention kernels (vllm, GPU)",
        "vLLM's name, such as FLASH_ATTN, FLASHINFER or TRITON_ATTN: the fastest depends on the card. On a processor "
        "there is only one.",
        "text",
    ),
    Option(
        "performance_mode",
        "Performance mode (vllm)",
        "interactivity favours the latency of few requests, throughput the tokens of many. Empty: balanced.",
        "choice",
        (None, "balanced", "interactivity", "throughput"),
    ),
    Option(
        "pipeline_parallel",
        "Pipeline stages (vllm)",
        "Layers are split into so many stages, each on accelerators of its own: for a model that does not fit, or "
        "where links are slow. Empty: one stage.",
        "whole",
        low=2,
    ),
    Option(
        "data_parallel",
        "Copies of the model (vllm)",
        "Copies behind one address share the requests: more throughput, the latency of one. Empty: one copy.",
        "whole",
        low=2,
    ),
    Option(
        "expert_parallel",
        "Expert parallel (vllm, mixture of experts)",
        "Each accelerator holds whole experts: less traffic between them than a part of every expert on each. Empty: "
        "off.",
        "choice",
        TRI,
    ),
    Option(
        "cache_eviction_tokens",
        "Cache eviction (openvino)",
        "The most tokens of a request that the cache keeps while it generates, in blocks of 32: memory stays small "
        "with long answers, and quality falls. Empty: all are kept.",
        "whole",
        low=96,
    ),
    Option(
        "sparse_attention",
        "Sparse attention (openvino)",
        "Long prompts are read with attention to a part of the tokens before each: faster from about 2,000 tokens, and "
        "less accurate.",
        "choice",
        (None, "trishape", "xattention"),
    ),
)
LIMIT_OPTIONS = (
    Option(
        "max_kl",
        "Most KL divergence (nats per token)",
        "The job fails above this. Empty: no limit.",
        "number",
        low=0.0,
    ),
    Option(
        "max_perplexity_increase",
        "Most perplexity increase (share)",
        "0.01 allows 1 %; empty is no limit.",
        "number",
        low=0.0,
    ),
    Option(
        "fall_back",
        "Fall back",
        "Instead of failing, raise the precision of the groups that lose most, in a few tries, until the limits "
        "are met.",
        "flag",
    ),
)
