"""The outcomes of comparing a variant with the baseline, and the obstacles to a test. Data; `present.words` says them.

`verdict_kind` is the one place that decides what an outcome and its obstacle mean for a reader.
"""

from __future__ import annotations

from typing import Literal

from backend.domain.frozen import Frozen

Outcome = Literal["better", "worse", "same", "undecided", "not_comparable"]
"""With a test: a difference, `same` where the interval is close enough to 1, or `undecided`: too noisy to tell.
(For a task's score `same` means no significant difference.) Without a test: `not_comparable` where the figures
themselves are not the server's, else `undecided`."""

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
"""With `not_as_asked` the figures are the server's, but it did not serve what was asked (`evidence`)."""


class Obstacle(Frozen):
    """Why no test was made; `variant` is the one whose figures prevent it, None where it concerns both.

    `count` of `of` are the failed of all requests, the empty or one-token (silent) or the uncounted of all answers, the
    repeats of the variant and of the baseline (unequal), the repeats with a figure for both and all of them (missing),
    the repeats or samples and how many a test takes (few). Without spread every repeat gave the same ratio, or every
    sample the same difference; identical figures gave no difference in any of them.
    """

    cause: Cause
    variant: str | None = None
    count: int | None = None
    of: int | None = None

    @property
    def outcome(self) -> Outcome:
        return "not_comparable" if self.cause in NOT_COMPARABLE else "undecided"


VerdictKind = Literal["faster", "slower", "same", "noisy", "none"]
"""Verdict on a variant's speed at one load: `noisy` where the test could not decide, `none` where no test was made."""
VERDICT_KINDS: dict[Outcome, VerdictKind] = {
    "better": "faster",
    "worse": "slower",
    "same": "same",
    "undecided": "noisy",
    "not_comparable": "none",
}


def verdict_kind(outcome: Outcome, why: Obstacle | None) -> VerdictKind:
    """Return what a reader is told. An obstacle means that there was no test, so there is no verdict."""
    return VERDICT_KINDS[outcome] if why is None else "none"


EQUIVALENCE = 0.1
"""Up to a factor of 1.1 either way counts as the same: a shared machine drifts by that much within minutes."""


def interval_outcome(interval: tuple[float, float], better: bool, same_within: float = EQUIVALENCE) -> Outcome:
    """Decide by the interval of a ratio; `better` says whether the measured difference is an improvement, `same_within`
    how far from 1 a ratio counts as the same: 0.1 is a factor of 1.1 either way.

    An interval within the band means the same: the two one-sided tests for equivalence (Schuirmann 1987), at 95 %
    instead of 90 %, which is stricter.
    """
    low, high = interval
    if low > 1 or high < 1:
        return "better" if better else "worse"
    return "same" if high <= 1 + same_within and low >= 1 / (1 + same_within) else "undecided"


def significance_outcome(significant: bool, better: bool) -> Outcome:
    """Decide by a test's significance; `better` says whether the measured difference is an improvement."""
    if not significant:
        return "same"
    return "better" if better else "worse"


class SloCheck(Frozen):
    """Check that one level of a sweep meets its objectives; `limits.objective` has the rules of each verdict.

    `highest` marks the highest level that was shown to meet them, `knee` the one beyond which more load gains little;
    neither is ever a level that the client limited.
    """

    objectives: tuple[str, ...]
    verdict: Literal["kept", "missed", "undecided"]
    shares: tuple[float, ...]
    """Share of requests within each objective's limit; failed requests count as outside."""
    intervals: tuple[tuple[float, float], ...]
    """95% Wilson interval of each share."""
    highest: bool = False
    knee: bool = False
