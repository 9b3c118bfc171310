"""Every field of the options of an evaluation is an option of the command line, and what the page shows is read back
the same."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from backend.cli.flag_names import error_text
from backend.cli.options import load_options
from backend.domain.errors import InvalidOptions
from backend.domain.evaluation.document import EvaluateOptions
from backend.present.evaluate_command import command, flag

NOT_DEFAULT: dict[str, Any] = {
    "sweep_to": 64.0,
    "workload": "chat",
    "columns": {"prompt": "question"},
    "time_unit": "ms",
    "requests": 7,
    "seconds": 3.5,
    "repeats": 2,
    "max_tokens": 9,
    "temperature": 0.25,
    "endpoint": "chat",
    "stream": False,
    "connections": 3,
    "warmup_requests": 1,
    "warmup_seconds": 0.5,
    "timeout_s": 1.5,
    "seed": 6,
    "quality": False,
    "tasks": ("next-line", "b c"),
    "task_limit": 2,
    "quality_text": "prose",
    "quality_prompts": 8,
    "price_per_hour": 1.25,
    "discount": 0.1,
    "input_output_ratio": 4.0,
    "bearer_env": "KEY",
    "interleave": "restart",
    "prefix_cache": "off",
    "ignore_eos": True,
    "until_decided": True,
    "starts_apart": True,
    "same_within": 0.05,
    "lossless": True,
}
LOADS: tuple[dict[str, Any], ...] = (
    {"concurrency": (2, 16)},
    {"rate": (2.0, 0.125), "process": "poisson"},
    {"ramp": (1.0, 20.0), "seconds": 2.0},
    {"trace": True, "workload": "mine.jsonl"},
    {"concurrency": (1,), "sweep": ("latency_p90<=1s", "latency_p50<=500ms")},
    {"until_decided": True, "max_blocks": 40},
)


def run(*words: str) -> tuple[list[EvaluateOptions], Result]:
    read: list[EvaluateOptions] = []
    app = typer.Typer()

    @app.command()
    @load_options.with_load_options()
    def evaluate(sources: list[str], chosen: EvaluateOptions) -> None:
        read.append(chosen)

    return read, CliRunner().invoke(app, words)


def test_every_field_has_its_flag_and_its_words_in_the_help() -> None:
    shown = run("--help")[1].stdout
    for name, field in EvaluateOptions.model_fields.items():
        assert field.description, f"{name} has no words"
        assert flag(name).partition("/")[0][:20] in shown


@pytest.mark.parametrize(
    "values", [*LOADS, *({name: value} for name, value in NOT_DEFAULT.items() if name != "sweep_to")]
)
def test_the_command_that_the_page_shows_is_read_back_as_what_was_asked(values: dict[str, Any]) -> None:
    options = EvaluateOptions(**values)
    _, verb, *words = shlex.split(command(["starter"], options))
    read, result = run(*words)
    assert verb == "evaluate" and result.exit_code == 0, result.output
    assert read == [options]


def test_every_field_is_tried() -> None:
    assert {name for request in LOADS for name in request} | set(NOT_DEFAULT) == set(EvaluateOptions.model_fields)


def test_concurrency_beside_a_clock_is_refused() -> None:
    _, result = run("starter", "--concurrency", "4", "--rate", "2")
    assert isinstance(result.exception, InvalidOptions)
    assert error_text(result.exception) == "--concurrency is for a closed loop: leave it out with --rate."


@pytest.mark.parametrize(
    ("words", "streams"),
    [(["--concurrency", "1,8"], 8), (["--concurrency", "8,16", "--sweep", "latency_p90<=1s"], 8)],
)
def test_fewer_requests_than_streams_are_refused_before_anything_starts(words: list[str], streams: int) -> None:
    _, result = run("starter", *words, "--requests", "6")
    assert isinstance(result.exception, InvalidOptions)
    assert error_text(result.exception) == (
        f"--requests is wrong: 6 requests cannot keep {streams} streams busy. Give at least {streams}, or leave it out "
        "for three a stream."
    )
    for fine in (["--rate", "20"], ["--concurrency", "1,6"]):
        assert run("starter", *fine, "--requests", "6")[1].exit_code == 0
