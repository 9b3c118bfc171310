"""Records in an evaluation of how a variant was really served. The other modules of this package make them."""

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
    "threads",
    "batch_tokens",
    "attention",
    "cache_blocks",
    "performance_mode",
    "pipeline_parallel",
    "data_parallel",
    "expert_parallel",
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
    "threads": "Threads",
    "batch_tokens": "Tokens of a step",
    "attention": "Attention",
    "cache_blocks": "Blocks of the cache",
    "performance_mode": "Performance mode",
    "pipeline_parallel": "Pipeline stages",
    "data_parallel": "Copies of the model",
    "expert_parallel": "Expert parallel",
}


class Finding(Frozen):
    """One thing that was requested of a server, and whether it was done. `proven` None: it could not be seen."""

    what: Aspect
    proven: bool | None
    words: str
    """One sentence: what was seen and where; where it was not done, also what was requested."""
    cause: str = ""
    """Most likely cause, in one sentence, if the check failed."""


class AnswerSteps(Frozen):
    """Answers as a client sees them: the chunks after the first, one for each step of the server, and their tokens."""

    answers: int
    chunks: int
    tokens: float

    @property
    def length(self) -> float | None:
        """Tokens per step."""
        return self.tokens / self.chunks if self.chunks else None


class Drafting(Frozen):
    """Counts of what a server drafted over one level, by its own counters; warm-up is included."""

    drafts: int
    """Steps at which tokens were proposed."""
    drafted_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...] = ()
    """Accepted first proposed tokens, second ones, ...; empty where the server does not report them."""
    generated_tokens: int | None = None
    steps: dict[str, AnswerSteps] = Field(default_factory=dict)
    """Steps of measured answers by kind of prompt, where the workload names kinds."""

    @property
    def length(self) -> float | None:
        """Mean accepted length: tokens per step with a draft, the target's own token included."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def rates(self) -> list[float]:
        """Share of drafts whose token at each position was accepted. A token needs those before it, so the rates
        fall."""
        return [accepted / self.drafts for accepted in self.accepted_by_position] if self.drafts else []

    @property
    def lengths(self) -> list[float]:
        """Share of drafts whose step gave 1, 2, ... tokens, up to one more than there are positions."""
        reached = [1.0, *self.rates, 0.0]
        return [high - low for high, low in pairwise(reached)] if self.rates else []


def failed_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of what was requested and not done."""
    return [finding for finding in findings if finding.proven is False]


def worst_findings(several: Iterable[Iterable[Finding]]) -> list[Finding]:
    """Return the worst finding of each aspect over several starts of a server: not done, then not seen, then done."""
    worst: dict[Aspect, Finding] = {}
    for findings in several:
        for finding in findings:
            previous = worst.get(finding.what)
            if previous is None or _RANK[finding.proven] < _RANK[previous.proven]:
                worst[finding.what] = finding
    return list(worst.values())


_RANK = {False: 0, None: 1, True: 2}


class SampledPosition(Frozen):
    """The test of one position of sampled answers against the same position without speculation."""

    number: int
    """Position in the answer, from 1; no draft affects the first one."""
    p_value: float
    """P-value of the chi-square test of homogeneity over all prompts, adjusted over positions by Holm's procedure."""
    found_distance: float
    """The least total-variation distance, root mean square over the prompts, that the test finds with 80 % power."""


class Lossless(Frozen):
    """Measured test that speculation leaves answers unchanged."""

    prompts: int
    """Greedy answers that were compared, token by token."""
    same: int
    """Answers that are the same to the last token."""
    divergences: tuple[int, ...] = ()
    """The first differing token of each other answer, from 1; rising."""
    itself_same: int
    """Number of as many answers that the variant without speculation repeats when several are requested at once:
    floating point results depend on the size of a batch, without any draft."""
    itself_at_once: int
    p_value: float
    """One-sided, Fisher's exact test: that speculation changes no more answers than that."""
    drafted: int
    """Tokens that were proposed for the greedy answers: without any, nothing was tested."""
    samples: int = 0
    """Samples of each prompt, both with and without speculation."""
    sampled_prompts: int = 0
    sampled_drafted: int = 0
    """Tokens that were proposed for the samples: without any, the samples test nothing."""
    positions: tuple[SampledPosition, ...] = ()

    @property
    def is_tested(self) -> bool:
        """Tell whether anything was proposed at all."""
        return self.drafted > 0 or self.sampled_drafted > 0

    @property
    def differs(self) -> bool:
        """A test found that speculation changes what is answered. An arm for which nothing was proposed tests
        nothing, whatever chance made of it."""
        greedily = self.drafted > 0 and self.p_value < SIGNIFICANT
        sampled = self.sampled_drafted > 0 and any(position.p_value < SIGNIFICANT for position in self.positions)
        return greedily or sampled


SIGNIFICANT = 0.05
