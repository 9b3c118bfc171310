"""Results of load generators that are not read here, recognised so that they can be refused by name. Pure.

Their figures are defined in other ways, or their files do not say how, so that they cannot stand beside ours.
"""

from __future__ import annotations

from typing import Any

SIGNS: dict[str, frozenset[str]] = {
    "AIPerf": frozenset({"aiperf_version"}),
    "GenAI-Perf": frozenset({"time_to_first_token", "inter_token_latency", "input_config"}),
    "SGLang's bench_serving": frozenset({"total_throughput", "request_throughput", "output_throughput"}),
    "LLMPerf": frozenset({"results_number_errors"}),
    "Locust": frozenset({"response_times", "num_requests", "num_failures"}),
    "k6": frozenset({"metrics", "root_group"}),
}
"""Tool -> fields that all of its results have; the first match counts."""
INSTEAD = "measure with `whetstone bench URL`, GuideLLM 0.8 or `vllm bench serve --save-result`, and give its result"


def find_unsupported_tool(document: Any) -> str | None:
    """The tool that wrote a result which is not read here; None where none is known."""
    rows = document if isinstance(document, list) else [document]
    first = rows[0] if rows else None
    if not isinstance(first, dict):
        return None
    return next((tool for tool, signs in SIGNS.items() if signs <= set(first)), None)
