"""The load that a person plans for: tokens of a request, concurrent requests, limits, and where it runs. Pure.

Every page that predicts, prices or compares uses this one record; `PROFILES` has the named loads.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.limits.latency_limit import USUAL_PERCENTILE, Percentile
from backend.domain.limits.slo import Slo
from backend.domain.planner.roofline import MOST_RATE, ExpectedLoad
from backend.domain.planner.target_choice import TargetGoal

MOST_TOKENS, MOST_CONCURRENCY = 1_000_000, 4096
LEAST_RATE = 0.001
"""Requests per second."""
HIGHEST_LIMIT_MS = 1e9
MOST_KL = 20.0
"""Nats per token; a model that knows nothing loses about 12."""
MOST_DISCOUNT = 0.99
MOST_NAME = 80
"""Characters of a name in an address."""


class LoadProfile(NamedTuple):
    """A named kind of requests; `about` says who sends such requests and where the numbers come from."""

    title: str
    input_tokens: int
    output_tokens: int
    about: str


PROFILES: dict[str, LoadProfile] = {
    "chat": LoadProfile("Chat", 622, 250, "questions with some context, as in AWS's announcement of its toolkit"),
    "short-chat": LoadProfile("Short chat", 161, 338, "means of ShareGPT; Kwon et al. 2023"),
    "code": LoadProfile("Code completion", 1500, 13, "medians of Azure's coding service; Patel et al. 2024"),
    "long-document": LoadProfile("Long document", 8192, 1024, "a round figure: 8k tokens in, 1k out"),
}
DEFAULT_PROFILE = "chat"
CONCURRENCY = 16
"""Concurrent requests where nobody chose a number."""


class PlannedLoad(Frozen):
    """The load, the latency limits and the quality floor of one person, and where it runs.

    `workload`: the name of an uploaded workload whose lengths the tokens are, None for tokens of a profile or typed.
    `rate`: requests per second, in place of `concurrency`. `percentile`: of both latency limits, where requests were
    measured. `max_kl`: the largest mean KL divergence in nats per token. `target`: an instance or `local`; None leaves
    it to each page. `region`: AWS region of the prices; None: the one that was refreshed last. `discount`: share off
    every hourly price; None is that of the settings.
    """

    input_tokens: int = Field(PROFILES[DEFAULT_PROFILE].input_tokens, ge=1, le=MOST_TOKENS)
    output_tokens: int = Field(PROFILES[DEFAULT_PROFILE].output_tokens, ge=1, le=MOST_TOKENS)
    workload: str | None = Field(None, min_length=1, max_length=MOST_NAME)
    concurrency: int = Field(CONCURRENCY, ge=1, le=MOST_CONCURRENCY)
    rate: float | None = Field(None, ge=LEAST_RATE, le=MOST_RATE)
    max_ttft_ms: float | None = Field(None, ge=0, le=HIGHEST_LIMIT_MS)
    max_tpot_ms: float | None = Field(None, ge=0, le=HIGHEST_LIMIT_MS)
    percentile: Percentile = USUAL_PERCENTILE
    max_kl: float | None = Field(None, ge=0, le=MOST_KL)
    target: str | None = Field(None, min_length=1, max_length=MOST_NAME)
    region: str | None = Field(None, min_length=1, max_length=MOST_NAME)
    discount: float | None = Field(None, ge=0, le=MOST_DISCOUNT)

    @property
    def profile(self) -> str | None:
        """The name of the profile with these tokens; None for a load of one's own."""
        if self.workload is not None:
            return None
        for name, known in PROFILES.items():
            if (known.input_tokens, known.output_tokens) == (self.input_tokens, self.output_tokens):
                return name
        return None

    @property
    def expected(self) -> ExpectedLoad:
        """The part that an estimate needs."""
        return ExpectedLoad(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            concurrency=self.concurrency,
            rate=self.rate,
        )

    @property
    def goal(self) -> TargetGoal:
        """The instance to look for: the lowest price per token within the latency limits."""
        return TargetGoal(
            wanted="throughput", max_ttft_ms=self.max_ttft_ms or None, max_tpot_ms=self.max_tpot_ms or None
        )

    @property
    def limits(self) -> Slo:
        """The latency limits, for measured levels."""
        return Slo(ttft_ms=self.max_ttft_ms, tpot_ms=self.max_tpot_ms, percentile=self.percentile)


def fit_context(load: ExpectedLoad, positions: int) -> ExpectedLoad:
    """Return the load, shortened in its own ratio of tokens if a request is longer than `positions`."""
    tokens = load.input_tokens + load.output_tokens
    if positions >= tokens:
        return load
    answer = max(1, positions * load.output_tokens // tokens)
    return load.model_copy(update={"input_tokens": max(1, positions - answer), "output_tokens": answer})
