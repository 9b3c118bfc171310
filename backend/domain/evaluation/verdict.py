"""What came of holding a variant against the baseline: an outcome, or why no test was made. Data; `present.words` says it."""

from __future__ import annotations

from typing import Literal

from backend.domain.frozen import Frozen

Outcome = Literal["better", "worse", "same", "undecided", "not_comparable"]
"""Of a test: `same` is no significant difference. Without one, a verdict is `not_comparable` where the figures themselves are not
the server's, else `undecided`."""

Cause = Literal[
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


NOT_THE_SERVERS: frozenset[Cause] = frozenset({"client_limited", "failed_requests", "silent_answers", "replayed_prompts"})


class Obstacle(Frozen):
    """Why no test was made; `variant` is whose figures stand in the way, where it is one's alone.

    `count` of `of` are the failed of all requests, the empty or one-token (silent) or the uncounted of all answers, the repeats
    of the variant and of the baseline (unequal), the repeats with a figure for both and all of them (missing), the repeats or
    samples and how many a test takes (few). Without spread every repeat gave the same ratio, or every sample the same difference;
    identical figures gave none in any of them.
    """

    cause: Cause
    variant: str | None = None
    count: int | None = None
    of: int | None = None

    @property
    def outcome(self) -> Outcome:
        return "not_comparable" if self.cause in NOT_THE_SERVERS else "undecided"


def outcome(significant: bool, better: bool) -> Outcome:
    """Of a test; `better` is the way in which the figures differ."""
    if not significant:
        return "same"
    return "better" if better else "worse"
