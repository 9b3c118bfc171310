"""Evidence that an endpoint serves what was deployed: its answer to a probe, and the engine's log.

SageMaker lets only /ping and /invocations through, so the container's counters cannot be read; vLLM writes its
configuration and, while it speculates, its counts of drafted and accepted tokens into its log (vLLM 0.32.0,
`v1/engine/core.py` and `v1/spec_decode/metrics.py`), and SageMaker stores that in CloudWatch Logs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from backend.domain.deploy.container import SERVED_NAME
from backend.domain.evaluation.evidence import engine_log, speculation_findings, weight_findings
from backend.domain.evaluation.evidence.engine_log import EngineLog
from backend.domain.evaluation.evidence.schema import Finding
from backend.domain.frozen import Frozen

PATTERN = '?"LLM engine" ?"SpecDecoding metrics"'
"""A filter of CloudWatch Logs: lines with one of these."""
QUESTION = {
    "model": SERVED_NAME,
    "prompt": "Count from one to twenty: one, two, three,",
    "max_tokens": 48,
    "temperature": 0,
}
"""A continuation that a draft, and a look-up in the prompt, can guess."""
VARIABLES = ("OPTION_SPECULATIVE_CONFIG", "SM_VLLM_SPECULATIVE_CONFIG")


class ExpectedServing(Frozen):
    """Serving that was deployed: the weights' own `quant_method`, and the container's speculation settings."""

    quantized: str | None
    speculation: dict[str, Any] | None


def read_speculation(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the speculation settings in a container's variables; None where there are none."""
    config = next((environment[name] for name in VARIABLES if name in environment), None)
    return None if config is None else dict(json.loads(config))


def check_answer(body: bytes) -> Finding:
    """Return the finding of the probe: the answer must be a text that is not empty."""
    try:
        document = json.loads(body)
        text = document["choices"][0]["text"] if "choices" in document else document["generated_text"]
    except (ValueError, KeyError, TypeError, IndexError):
        text = None
    if not isinstance(text, str) or not text.strip():
        return Finding(what="answer", proven=False, words=f"The answer to a probe holds no text: {body[:120]!r}.")
    return Finding(what="answer", proven=True, words="A probe was answered with text.")


def is_settled(expected: ExpectedServing, lines: Iterable[str]) -> bool:
    """Return whether these lines show all that can be known: more may come later."""
    log = engine_log.parse_engine_log(lines)
    return bool(log.settings) and (expected.speculation is None or log.drafted > 0)


def check_log(expected: ExpectedServing, lines: Iterable[str]) -> list[Finding]:
    """Return the findings from the engine's log; the last start counts."""
    log = engine_log.parse_engine_log(lines)
    findings = [weight_findings.quantization_finding(expected.quantized, log, "deployed")]
    if expected.speculation is not None:
        findings.append(_speculation(expected.speculation, log))
    return findings


def _speculation(expected: Mapping[str, Any], log: EngineLog) -> Finding:
    """Return the finding on speculation from the log alone, since the counters cannot be reached."""
    if log.drafted:
        return speculation_findings.acceptance_finding(log.accepted, log.drafted, "the engine's log")
    wrong = speculation_findings.check_configuration(expected, log)
    if wrong is not None:
        return wrong
    method = log.speculation.method if log.speculation else "no"
    words = f"The engine started with {method} speculation; that it drafts cannot be proven, as no count is logged yet."
    return Finding(what="speculation", proven=None, words=words)
