"""What came of holding a variant against the baseline: an outcome, or why no test was made. Data; `present.words` says
it."""

from __future__ import annotations

from typing import Literal

from backend.domain.frozen import Frozen

Outcome = Literal["better", "worse", "same", "undecided", "not_comparable"]
"""Of a test: a difference, the `same` where its interval lies within EQUIVALENCE of 1, else `undecided`: too noisy to
tell. (Of a task's score `same` is no significant difference.) Without a test, a verdict is `not_comparable` where the
figures themselves are not the server's, else `undecided`."""

Cause = Literal[
    "not_as_asked",
    "client_limited",
    "failed_requests",
    "silent_answers",
    "replayed_prompts",
    "uncounted_tokens",
    "no_figures",
    "unequal_repeats",
    "missing_repeats",
    "few_repeats",
    "few_samples",
    "identical",
    "no_spread",
]


NOT_THE_SERVERS: frozenset[Cause] = frozenset(
    {"client_limited", "failed_requests", "silent_answers", "replayed_prompts"}
)
NOT_COMPARABLE: frozenset[Cause] = NOT_THE_SERVERS | {"not_as_asked"}
"""Besides, what was served is not what was asked (`evidence`): its figures are the server's, but of something else."""


class Obstacle(Frozen):
    """Why no test was made; `variant` is whose figures stand in the way, where it is one's alone.

    `count` of `of` are the failed of all requests, the empty or one-token (silent) or the uncounted of all answers, the
    repeats of the variant and of the baseline (unequal), the repeats with a figure for both and all of them (missing),
    the repeats or samples and how many a test takes (few). Without spread every repeat gave the same ratio, or every
    sample the same difference; identical figures gave none in any of them.
    """

    cause: Cause
    variant: str | None = None
    count: int | None = None
    of: int | None = None

    @property
    def outcome(self) -> Outcome:
        return "not_comparable" if self.cause in NOT_COMPARABLE else "undecided"


EQUIVALENCE = 0.1
"""A factor of 1.1 either way: what a machine that is shared drifts by within minutes."""


def interval_outcome(interval: tuple[float, float], better: bool) -> Outcome:
    """Of a ratio's interval; `better` is the way in which the figures differ. Inclusion of the interval in the band is
    the two one-sided tests' way to equivalence (Schuirmann 1987), with 95 % instead of 90 %: stricter."""
    low, high = interval
    if low > 1 or high < 1:
        return "better" if better else "worse"
    return "same" if high <= 1 + EQUIVALENCE and low >= 1 / (1 + EQUIVALENCE) else "undecided"


def significance_outcome(significant: bool, better: bool) -> Outcome:
    """Of a test; `better` is the way in which the figures differ."""
    if not significant:
        return "same"
    return "better" if better else "worse"


class SloCheck(Frozen):
    """Whether one level of a sweep keeps its objectives; `objective` has the rules of each verdict.

    `highest` marks the highest level that was shown to keep them, `knee` the one beyond which more load buys little;
    neither is ever a level that the client held back.
    """

    objectives: tuple[str, ...]
    verdict: Literal["kept", "missed", "undecided"]
    shares: tuple[float, ...]
    """Of requests within each objective's limit, failed requests counting as outside."""
    intervals: tuple[tuple[float, float], ...]
    """95% Wilson interval of each share."""
    highest: bool = False
    knee: bool = False
