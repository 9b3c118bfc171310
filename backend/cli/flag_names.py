"""What a field of a model is called on the command line. Nothing else words a field as a flag."""

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
    "limits.ttft_p95_ms": "--ttft-p95",
    "limits.tpot_p95_ms": "--tpot-p95",
    "request_limits.ttft_ms": "--request-ttft",
    "request_limits.tpot_ms": "--request-tpot",
    "per_hour": "--price-per-hour",
    # a catalog's filter
    "origins": "--origin",
    "techniques": "--technique",
    "families": "--family",
    "licences": "--licence",
    "min_parameters": "--min-size",
    "max_parameters": "--max-size",
}
"""Of fields whose flag is not their own name."""


def flag_name(field: str) -> str:
    """Of a dotted field: its own, or that of what holds it (`rate.0` is given by `--rate`)."""
    whole = field.partition(".")[0]
    return FLAGS.get(field) or FLAGS.get(whole) or f"--{whole.replace('_', '-')}"


def error_text(error: WhetstoneError) -> str:
    """The error as it is printed."""
    return error.worded(flag_name)
