"""The choice of an engine that a person left open: each rule in turn, and the sentence that says why."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.recipe.engine_choice import RECORD_WORDS, EngineComparison, OpenChoice, choose
from backend.domain.recipe.serving_engines import ENGINES

BOTH = {"able": ("vllm", "llama.cpp"), "installed": frozenset({"vllm", "llama.cpp"})}
SLOWER = EngineComparison("llama.cpp", "vllm", 0.55, "4 streams", "2026-11-26")
FASTER = SLOWER._replace(ratio=1.674, load="1 stream")


def facts(**changes: Any) -> OpenChoice:
    usual = OpenChoice(able=("vllm",), only_reads=None, installed=frozenset(), measured=(), hardware="cpu", streams=1)
    return usual._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"able": ("llama.cpp",), "only_reads": "GGUF files"},
            "llama.cpp, because only it reads GGUF files here.",
        ),
        ({}, "vLLM, because no other engine serves this here."),
        (
            {**BOTH, "installed": frozenset({"vllm"}), "measured": (FASTER,)},
            "vLLM, because it is the only installed engine that serves this.",
        ),
        (
            {**BOTH, "measured": (FASTER, SLOWER)},
            "llama.cpp, because it gave 1.67 times the output tokens/s of vLLM at 1 stream (measured on this machine, "
            "2026-11-26).",
        ),
        (
            {**BOTH, "measured": (SLOWER, FASTER), "streams": 4},
            "vLLM, because llama.cpp gave 0.55 times its output tokens/s at 4 streams (measured on this machine, "
            "2026-11-26).",
        ),
        (
            BOTH,
            f"llama.cpp, because it gave 1.67 times the output tokens/s of vLLM at 1 stream ({RECORD_WORDS}).",
        ),
        (
            {**BOTH, "streams": 6},
            f"vLLM, because it gave 1.82 times the output tokens/s of llama.cpp at 4 streams ({RECORD_WORDS}).",
        ),
        ({**BOTH, "hardware": "cuda"}, "vLLM, because nothing measured or recorded shows another to be faster."),
    ],
)
def test_each_rule_decides_in_its_turn_and_says_why(changes: dict[str, Any], sentence: str) -> None:
    assert choose(facts(**changes)).sentence == sentence


def test_the_default_is_an_engine_of_the_table() -> None:
    assert choose(facts(able=tuple(ENGINES), hardware="neuron")).engine == next(iter(ENGINES))
