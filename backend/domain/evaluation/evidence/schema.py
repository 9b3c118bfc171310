"""What an evaluation document records of how a variant was really served. The other modules of this package make it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

from pydantic import Field

from backend.domain.frozen import Frozen

Aspect = Literal[
    "answer",
    "quantization",
    "kernel",
    "kv_cache",
    "prefix_cache",
    "chunked_prefill",
    "dtype",
    "context",
    "streams",
    "tensor_parallel",
    "compilation",
    "speculation",
]
ASPECT_NAMES: dict[Aspect, str] = {
    "answer": "Answer",
    "quantization": "Weights",
    "kernel": "Kernels",
    "kv_cache": "Key-value cache",
    "prefix_cache": "Prefix cache",
    "chunked_prefill": "Chunked prefill",
    "dtype": "Computed in",
    "context": "Context",
    "streams": "Sequences at once",
    "tensor_parallel": "Tensor parallel",
    "compilation": "Compilation",
    "speculation": "Speculation",
}


class Finding(Frozen):
    """One thing that was asked of a server, and what shows whether it was done. `proven` None: it could not be seen."""

    what: Aspect
    proven: bool | None
    words: str
    """One sentence: what was seen and where; where it was not done also what was asked."""
    cause: str = ""
    """Where it was not done, what is most likely behind it, one sentence."""


class AnswerSteps(Frozen):
    """Answers as a client sees them: chunks after the first, one a step of the server, and the tokens that they
    brought."""

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
    steps: dict[str, AnswerSteps] = Field(default_factory=dict)
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


def failed_findings(findings: Iterable[Finding]) -> list[Finding]:
    """What was asked and not done."""
    return [finding for finding in findings if finding.proven is False]


def worst_findings(several: Iterable[Iterable[Finding]]) -> list[Finding]:
    """Of several starts of one server, what was asked once: not done goes before not seen, that before done."""
    kept: dict[Aspect, Finding] = {}
    for finding in (each for findings in several for each in findings):
        before = kept.get(finding.what)
        if before is None or _RANK[finding.proven] < _RANK[before.proven]:
            kept[finding.what] = finding
    return list(kept.values())


_RANK = {False: 0, None: 1, True: 2}


class SampledPosition(Frozen):
    """One token of sampled answers, held against the same token of the same variant without speculation."""

    number: int
    """Of the answer, from 1; the first one no draft has a part in."""
    p_value: float
    """Of the chi-square test of homogeneity over all prompts, adjusted over the positions by Holm's procedure."""
    found_distance: float
    """The least total-variation distance, root mean square over the prompts, that the test finds with 80 % power."""


class Lossless(Frozen):
    """How far speculation left answers as they are without it: measured, never claimed."""

    prompts: int
    """Greedy answers that were compared, token by token."""
    same: int
    """That are the same to the last token."""
    divergences: tuple[int, ...] = ()
    """Of the others, the first token that differs, from 1; rising."""
    itself_same: int
    """Of as many, those that the variant without speculation gives again when several are asked at once: floating point
    differs with the size of a batch, without any draft."""
    itself_at_once: int
    p_value: float
    """One-sided, Fisher's exact test: that speculation changes no more answers than that."""
    drafted: int
    """Tokens that were proposed for the greedy answers: without any, nothing was tested."""
    samples: int = 0
    """A prompt, with and without speculation each."""
    sampled_prompts: int = 0
    sampled_drafted: int = 0
    positions: tuple[SampledPosition, ...] = ()

    @property
    def is_tested(self) -> bool:
        """Whether anything was proposed at all."""
        return self.drafted > 0

    @property
    def differs(self) -> bool:
        """A test found that speculation changes what is answered."""
        return self.is_tested and (
            self.p_value < SIGNIFICANT or any(each.p_value < SIGNIFICANT for each in self.positions)
        )


SIGNIFICANT = 0.05
