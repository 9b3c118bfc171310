"""The command-line flag of each field of a model, used wherever an error names a field."""

from __future__ import annotations

from backend.cli.options import job_options
from backend.domain.errors import WhetstoneError
from backend.present import evaluate_command

FLAGS = {
    # load options, of a switch the end that may be wrong
    **evaluate_command.FLAGS,
    **job_options.FLAGS,
    "endpoint": "--chat",
    "stream": "--no-stream",
    "quality": "--no-quality",
    # what is wanted of an instance that `auto` chooses
    "wanted": "--goal",
    "min_output_tokens_per_s": "--min-tokens-per-s",
    # what a report is made anew with
    "ttft_ms": "--ttft",
    "tpot_ms": "--tpot",
    "request_limits.ttft_ms": "--request-ttft",
    "request_limits.tpot_ms": "--request-tpot",
    "per_hour": "--price-per-hour",
    # a search
    "budget_min": "--budget",
    "disk_gb": "--disk",
    "streams": "--concurrency",
    # a catalog's filter
    "origins": "--origin",
    "techniques": "--technique",
    "families": "--family",
    "licences": "--licence",
    "min_parameters": "--min-size",
    "max_parameters": "--max-size",
}
"""Fields whose flag is not their own name."""


def flag_name(field: str) -> str:
    """Return the flag of a dotted field: its own, or the flag of its parent (`rate.0` is set by `--rate`)."""
    whole = field.partition(".")[0]
    return FLAGS.get(field) or FLAGS.get(whole) or f"--{whole.replace('_', '-')}"


def error_text(error: WhetstoneError) -> str:
    """Return the error's sentence with fields named as flags."""
    return error.worded(flag_name)
