"""One error, two readers: the command line names a field by its flag, a page by its widget's label, the rest by
neither."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from app import field_labels
from backend.cli import flag_names
from backend.cli.main import app
from backend.domain import errors
from backend.domain.evaluation.document import EvaluateOptions
from backend.service.evaluations import evaluations

BACKEND = Path(__file__).resolve().parents[2] / "backend"
FLAG = re.compile(r"(?<![\w-])--[a-z]")
FLAGS_OF_ENGINES = {"vllm_flags.py", "llama_cpp_speculation.py"}
"""Modules that write options of vLLM and llama.cpp."""
OTHER_TOOLS = re.compile(r"`vllm bench serve [^`]*`|vLLM, --\S+|arg\.cpp, --\S+")
"""Commands of others are called what they are called."""


@pytest.mark.parametrize(
    ("fields", "command", "page"),
    [
        (
            {"ramp": (1, 5)},
            "--ramp needs --seconds: the time over which the rate changes.",
            "The ramp needs Seconds per run: the time over which the rate changes.",
        ),
        (
            {"rate": (1,), "ramp": (1, 5), "trace": True, "seconds": 1},
            "--rate and --ramp and --trace cannot be combined: each says when requests are sent.",
            "Requests per second and The ramp and A trace cannot be combined: each says when requests are sent.",
        ),
        (
            {"rate": (2, 2)},
            "--rate is wrong: a rate is given twice.",
            "Requests per second is wrong: a rate is given twice.",
        ),
        ({"rate": (0,)}, "--rate is wrong: it must be above 0.", "Requests per second is wrong: it must be above 0."),
        (
            {"warmup_requests": -1},
            "--warmup is wrong: it must be at least 0.",
            "Warm-up requests per stream is wrong: it must be at least 0.",
        ),
        (
            {"discount": 1},
            "--discount is wrong: it must be below 1.",
            "Discount (%) is wrong: it must be below 1.",
        ),
        (
            {"sweep": ("ttft_p95<=1s",), "sweep_to": 1, "concurrency": (4,)},
            "--sweep-to is wrong: 1 is below the first level, 4.",
            "Up to is wrong: 1 is below the first level, 4.",
        ),
        (
            {"process": "poisson"},
            "--poisson needs --rate or --ramp: it spreads requests that are sent by the clock.",
            "Arrival process needs Requests per second or The ramp: it spreads requests that are sent by the clock.",
        ),
    ],
)
def test_the_same_error_for_both_readers(fields: dict[str, Any], command: str, page: str) -> None:
    with pytest.raises(errors.InvalidOptions) as refused:
        evaluations.read_options(**fields)
    assert flag_names.error_text(refused.value) == command
    assert field_labels.error_sentence(refused.value) == page
    assert "--" not in str(refused.value)


def test_what_a_person_wrote_is_not_filled_in() -> None:
    error = errors.RequestError("is wrong: `{}` is no name, as `{ramp}` is.", field="rate")
    assert flag_names.error_text(error) == "--rate is wrong: `{}` is no name, as `{ramp}` is."


def test_every_load_option_has_a_flag_of_the_command_and_a_label() -> None:
    commands = typer.main.get_command(app)
    options = {name for each in commands.commands["evaluate"].params for name in (*each.opts, *each.secondary_opts)}  # type: ignore[attr-defined]
    for field in EvaluateOptions.model_fields:
        assert flag_names.flag_name(field) in options, field
        assert field in field_labels.LABELS


def test_no_flag_stands_in_a_message_outside_the_command_line() -> None:
    pairs = [
        (path.name, text)
        for path in sorted(BACKEND.rglob("*.py"))
        if "cli" not in path.parts
        and path.name not in FLAGS_OF_ENGINES
        and "launch_commands" not in path.parts  # whose texts are commands of other engines
        for text in _messages(ast.parse(path.read_text()), whole="domain" in path.parts)
        if FLAG.search(OTHER_TOOLS.sub("", text))
    ]
    assert pairs == []


def _messages(tree: ast.Module, whole: bool) -> Iterator[str]:
    """What is raised; of the domain every text but docstrings, and the docstrings of errors, which are messages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) or (whole and isinstance(node, ast.stmt) and not _is_docstring(node)):
            yield from (
                each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr | ast.ClassDef | ast.FunctionDef)


def test_no_flag_stands_in_a_default_message() -> None:
    for kind in (each for each in vars(errors).values() if isinstance(each, type)):
        assert not FLAG.search(OTHER_TOOLS.sub("", kind.__doc__ or "")), kind.__name__
