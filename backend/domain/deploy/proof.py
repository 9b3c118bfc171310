"""What shows that an endpoint serves what was deployed: its answer to a question, and what the engine wrote into its log.

SageMaker lets only /ping and /invocations through, so the container's counters cannot be read; vLLM writes its configuration and,
while it speculates, its counts of drafted and accepted tokens into its log (vLLM 0.32.0, `v1/engine/core.py` and
`v1/spec_decode/metrics.py`), and SageMaker keeps that in CloudWatch Logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from backend.domain.deploy.container import SERVED_NAME
from backend.domain.frozen import Frozen

PATTERN = '?"LLM engine" ?"SpecDecoding metrics"'
"""Of CloudWatch Logs: lines with one of these."""
QUESTION = {"model": SERVED_NAME, "prompt": "Count from one to twenty: one, two, three,", "max_tokens": 48, "temperature": 0}
"""A continuation that a draft and a look into the prompt can guess."""
VARIABLES = ("OPTION_SPECULATIVE_CONFIG", "SM_VLLM_SPECULATIVE_CONFIG")
_CONFIGURED = re.compile(r"LLM engine .*? with config: (?P<settings>.*)")
_QUANTIZED = re.compile(r"\bquantization=(?P<method>[\w.-]+)")
_SPECULATES = re.compile(r"\bspeculative_config=SpeculativeConfig\(method='(?P<method>[^']*)', model=(?P<model>[^,]*),")
_COUNTED = re.compile(r"SpecDecoding metrics: .*?Accepted: (?P<accepted>\d+) tokens, Drafted: (?P<drafted>\d+) tokens")


class Finding(Frozen):
    """`proven` None: it could not be seen; `words` is one sentence."""

    what: Literal["answer", "quantization", "speculation"]
    proven: bool | None
    words: str


class Expected(Frozen):
    """What was deployed: the weights' own `quant_method`, and the speculation that the container was told."""

    quantized: str | None
    speculation: dict[str, Any] | None


def speculation_of(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """What a container's variables say of it."""
    told = next((environment[name] for name in VARIABLES if name in environment), None)
    return None if told is None else dict(json.loads(told))


def answered(body: bytes) -> Finding:
    """Of the probe: a text that is not empty."""
    try:
        document = json.loads(body)
        text = document["choices"][0]["text"] if "choices" in document else document["generated_text"]
    except (ValueError, KeyError, TypeError, IndexError):
        text = None
    if not isinstance(text, str) or not text.strip():
        return Finding(what="answer", proven=False, words=f"The answer to a probe holds no text: {body[:120]!r}.")
    return Finding(what="answer", proven=True, words="A probe was answered with text.")


def settled(expected: Expected, lines: Iterable[str]) -> bool:
    """Whether these lines say all that can be known: more may come later."""
    found = _of_last_start(lines)
    counted = expected.speculation is None or any(_COUNTED.search(line) for line in found)
    return counted and any(_CONFIGURED.search(line) for line in found)


def logged(expected: Expected, lines: Iterable[str]) -> list[Finding]:
    """Of what the engine wrote since it started; the last start counts."""
    found = _of_last_start(lines)
    configured = next((m["settings"] for line in found if (m := _CONFIGURED.search(line))), None)
    findings = [_quantization(expected.quantized, configured)]
    if expected.speculation is not None:
        findings.append(_speculation(expected.speculation, configured, found))
    return findings


def _of_last_start(lines: Iterable[str]) -> list[str]:
    """What an engine counted before is of another configuration."""
    found = list(lines)
    first = max((number for number, line in enumerate(found) if _CONFIGURED.search(line)), default=0)
    return found[first:]


def _quantization(wanted: str | None, configured: str | None) -> Finding:
    read = _QUANTIZED.search(configured or "")
    if read is None:
        words = "What the weights are served as cannot be proven: the engine's log does not say it."
        return Finding(what="quantization", proven=None, words=words)
    stated = read["method"]
    # kernels have names of their own after the format's: awq becomes awq_marlin
    same = stated == "None" if wanted is None else stated.partition("_")[0] == wanted
    words = f"The engine's log says quantization={stated}" + ("." if same else f", where {wanted or 'none'} was deployed.")
    return Finding(what="quantization", proven=same, words=words)


def _speculation(wanted: Mapping[str, Any], configured: str | None, lines: list[str]) -> Finding:
    counts = [(int(m["accepted"]), int(m["drafted"])) for line in lines if (m := _COUNTED.search(line))]
    accepted, drafted = sum(pair[0] for pair in counts), sum(pair[1] for pair in counts)
    if drafted:
        words = f"It speculates: the engine's log counts {accepted} of {drafted} drafted tokens accepted."
        return Finding(what="speculation", proven=True, words=words)
    if configured is None:
        words = "Whether it speculates cannot be proven: the engine's log does not say it, and its counters cannot be reached."
        return Finding(what="speculation", proven=None, words=words)
    read = _SPECULATES.search(configured)
    if read is None or ("model" in wanted and str(wanted["model"]) not in read["model"]):
        return Finding(what="speculation", proven=False, words="It does not speculate: the engine started without the draft.")
    words = f"The engine started with {read['method']} speculation; that it drafts cannot be proven, as no count is logged yet."
    return Finding(what="speculation", proven=None, words=words)
