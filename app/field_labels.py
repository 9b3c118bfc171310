"""Labels of fields on pages. No page words a field elsewhere."""

from __future__ import annotations

from backend.domain.errors import WhetstoneError, plain_name

LABELS = {
    # the load of an evaluation
    "concurrency": "Concurrency (streams)",
    "rate": "Requests per second",
    "process": "Arrival process",
    "ramp": "The ramp",
    "trace": "A trace",
    "sweep": "The search",
    "sweep_to": "Up to",
    "requests": "Requests per run",
    "seconds": "Seconds per run",
    "repeats": "Repeats",
    "until_decided": "Repeat until conclusive",
    "max_blocks": "Maximum repeats",
    "same_within": "Counts as the same (share)",
    "max_tokens": "Longest answer (tokens)",
    "temperature": "Temperature",
    "endpoint": "Endpoint",
    "stream": "Stream the answers",
    "connections": "Maximum connections",
    "interleave": "Servers",
    "starts_apart": "Start servers one after the other",
    "prefix_cache": "Prefix cache",
    "ignore_eos": "Length of answers",
    "warmup_requests": "Warm-up requests per stream",
    "warmup_seconds": "Warm-up (seconds)",
    "timeout_s": "Answer timeout (s)",
    "workload": "Workload",
    "columns": "Column of the prompts",
    "seed": "Seed",
    "time_unit": "Unit of the times",
    "tasks": "Tasks",
    "task_limit": "Samples per task",
    "quality": "Include quality",
    "quality_text": "Held-out text",
    "quality_prompts": "Prompts whose answers are compared",
    "lossless": "Check that speculation does not change the answers",
    "bearer_env": "Environment variable with the bearer token of the endpoints",
    "price_per_hour": "Price per hour (USD)",
    "discount": "Discount (%)",
    "input_output_ratio": "Input:output ratio",
    # elsewhere
    "aws": "the AWS setting",
    "target": "Target",
    "anyway": "Use it anyway",
    "accept_licence": "I have read this licence and accept it",
    "replace": "Replace presets of the same id",
    "min_parameters": "Parameters (billions), at least",
    "max_parameters": "Parameters (billions), at most",
    "min_context": "Context (tokens), at least",
    "max_context": "Context (tokens), at most",
}


def label(field: str) -> str:
    """Return the label of a dotted field: its own, or that of the field that contains it."""
    return LABELS.get(field.partition(".")[0]) or plain_name(field)


def error_sentence(error: WhetstoneError) -> str:
    """Return the error as a page shows it."""
    return error.worded(label)
