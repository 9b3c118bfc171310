"""What an evaluation keeps of how a variant was really served: data of its document. `findings` and `drafting` make it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

from pydantic import Field

from backend.domain.frozen import Frozen

What = Literal[
    "answer", "quantization", "kernel", "kv_cache", "prefix_cache", "chunked_prefill", "dtype", "context", "streams",
    "tensor_parallel", "compilation", "speculation",
]  # fmt: skip
NAMES: dict[What, str] = {
    "answer": "Answer", "quantization": "Weights", "kernel": "Kernels", "kv_cache": "Key-value cache",
    "prefix_cache": "Prefix cache", "chunked_prefill": "Chunked prefill", "dtype": "Computed in", "context": "Context",
    "streams": "Sequences at once", "tensor_parallel": "Tensor parallel", "compilation": "Compilation",
    "speculation": "Speculation",
}  # fmt: skip


class Finding(Frozen):
    """One thing that was asked of a server, and what shows whether it was done. `proven` None: it could not be seen."""

    what: What
    proven: bool | None
    words: str
    """One sentence: what was seen and where; where it was not done also what was asked."""
    cause: str = ""
    """Where it was not done, what is most likely behind it, one sentence."""


class Steps(Frozen):
    """Answers as a client sees them: chunks after the first, one a step of the server, and the tokens that they brought."""

    answers: int
    chunks: int
    tokens: float

    @property
    def length(self) -> float | None:
        """Tokens a step."""
        return self.tokens / self.chunks if self.chunks else None


class Drafting(Frozen):
    """What a server guessed ahead over one level, by its own counters; warm-up is in it, as in the server's time."""

    drafts: int
    """Steps at which something was proposed."""
    drafted_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...] = ()
    """Of the first proposed token, the second, ...; empty where the server does not tell."""
    generated_tokens: int | None = None
    steps: dict[str, Steps] = Field(default_factory=dict)
    """By kind of prompt, where the workload names kinds; of measured answers."""

    @property
    def length(self) -> float | None:
        """Mean accepted length: tokens a step with a draft, the target's own token included."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def rates(self) -> list[float]:
        """Of each position: accepted of all drafts. An accepted token needs those before it, so they fall."""
        return [accepted / self.drafts for accepted in self.accepted_by_position] if self.drafts else []

    @property
    def lengths(self) -> list[float]:
        """Share of drafts by tokens that their step gave: 1, 2, ... up to one more than there are positions."""
        reached = [1.0, *self.rates, 0.0]
        return [high - low for high, low in pairwise(reached)] if self.rates else []


def off(findings: Iterable[Finding]) -> list[Finding]:
    """What was asked and not done."""
    return [finding for finding in findings if finding.proven is False]


def worst(several: Iterable[Iterable[Finding]]) -> list[Finding]:
    """Of several starts of one server, what was asked once: not done goes before not seen, that before done."""
    kept: dict[What, Finding] = {}
    for finding in (each for findings in several for each in findings):
        before = kept.get(finding.what)
        if before is None or _RANK[finding.proven] < _RANK[before.proven]:
            kept[finding.what] = finding
    return list(kept.values())


_RANK = {False: 0, None: 1, True: 2}
