"""Result files of vLLM bench and GuideLLM as recorded, and evaluations imported from them."""

from __future__ import annotations

from pathlib import Path

from backend.domain.imported.imported_result import ImportedResult
from backend.domain.imported.importer import parse_results

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
CONCURRENT, CONSTANT = "guidellm-0.8.1-concurrent.json", "guidellm-0.8.1-constant.json"
BENCH = ("vllm-bench-1.json", "vllm-bench-4.json")


def content(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def imported(*names: str) -> ImportedResult:
    return parse_results([(name, content(name)) for name in names])
