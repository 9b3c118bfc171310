"""Whether a level's figures are the server's, and why not, in words. Knows nothing of how levels are measured or
drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import computed_field, model_validator

from backend.domain.figures import figure
from backend.domain.frozen import Frozen
from backend.domain.load.prompt_lines import default_requests

if TYPE_CHECKING:  # the level of a document is made of this module's class
    from backend.domain.evaluation.document import Level, VariantResult

Validity = Literal["yes", "in part", "no"]
"""`in part`: its figures are the server's, and its tokens a second or the time between its tokens is not known."""


SHARED_PROCESSORS = "Load generator and server share this machine's processors."
"""Holds of every server that is started on the machine of the load generator: a condition rather than a warning."""


class WithValidity(Frozen):
    """A level whose written form also has `valid` and `reasons`.

    They follow from its other fields, so they are computed anew when a level is read, also one that was stored without
    them.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_validity(cls, value: Any) -> Any:
        return (
            {name: each for name, each in value.items() if name not in COMPUTED} if isinstance(value, dict) else value
        )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def valid(self) -> Validity:
        """Whether its figures are the server's."""
        return level_validity(cast("Level", self))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def reasons(self) -> list[str]:
        """Why it is not valid, or only in part."""
        return invalidity_reasons(cast("Level", self))


COMPUTED = {"valid", "reasons"}


def level_validity(level: Level) -> Validity:
    """What a table of validity says of it."""
    if not is_sound(level):
        return "no"
    return "in part" if is_uncounted(level) or is_buffered(level) else "yes"


def invalidity_reasons(level: Level) -> list[str]:
    """Why it is not valid, or only in part: none where it is."""
    limited = list(level.audit.reasons) or ["the load generator held it back"] * level.client_limited
    failed = [f"{level.invocation_errors} of {level.invocations} requests failed"] if has_many_errors(level) else []
    silent = [silent_words(level)] if is_silent(level) else []
    replayed = [replayed_words(level)] if is_replayed(level) else []
    buffered = [buffered_words(level)] if is_buffered(level) else []
    return limited + failed + silent + replayed + _unknown(level) + buffered


def _unknown(level: Level) -> list[str]:
    if level.tokenizer_failed:
        return [f"{uncounted_words(level)}, so tokens/s and prices are not known"]
    return (
        ["no answer told its tokens, so tokens/s and prices are not known"] if level.output_tokens_per_s is None else []
    )


def is_uncounted(level: Level) -> bool:
    """Tokens a second are not known, since answers came without their token count."""
    return bool(level.tokenizer_failed) or level.output_tokens_per_s is None


def is_sound(level: Level) -> bool:
    """Its figures are the server's, of the prompts that were asked, and nearly every request was answered, with
    words."""
    return not (level.client_limited or has_many_errors(level) or is_silent(level) or is_replayed(level))


MAX_ERROR_SHARE = 0.01
MAX_EMPTY_SHARE, MAX_SHORT_SHARE, MAX_BUFFERED_SHARE = 0.05, 0.5, 0.5
MARGIN, OF_EXPECTED = 0.02, 0.1
"""A hit rate may be above the expected one by 0.02 and a tenth of it: shared beginnings are estimated by characters."""


def has_many_errors(level: Level) -> bool:
    """More than one request in a hundred failed: the rest is not a fair sample."""
    return level.invocation_errors > MAX_ERROR_SHARE * level.invocations


def is_silent(level: Level) -> bool:
    """More than one answer in twenty is empty, or more than half are empty or of one token though more were asked for:
    latencies and prices are of the few others. An answer whose tokens were not counted is no empty one."""
    empty = level.empty_responses - level.tokenizer_failed
    return empty > MAX_EMPTY_SHARE * level.answers or empty + level.short_responses > MAX_SHORT_SHARE * max(
        level.answers, 1
    )


def silent_words(level: Level) -> str:
    """`31 of 32 answers were empty, 0 had one token`."""
    empty = level.empty_responses - level.tokenizer_failed
    return f"{empty:,} of {level.answers:,} answers were empty, {level.short_responses:,} had one token"


def is_buffered(level: Level) -> bool:
    """More than half of the answers came at once although they had several chunks: something on the way holds them
    back."""
    return level.buffered_responses > MAX_BUFFERED_SHARE * max(level.answers, 1)


def buffered_words(level: Level) -> str:
    """`40 of 40 answers came in one piece: ...`"""
    return (
        f"{level.buffered_responses:,} of {level.answers:,} answers came in one piece: a proxy or the server holds the stream "
        "back, so the time between tokens is not known and the first token comes with the last"
    )


FIRST_OF: dict[Validity, str] = {
    "no": "are not the server's figures",
    "in part": "are valid in part",
}


def validity_warnings(results: Sequence[VariantResult]) -> list[str]:
    """One sentence for all levels that are not valid, one for those that are in part: how many, the first of them, and
    why."""
    levels = [(result.name, level) for result in results for level in result.levels]
    sentences = []
    for answer, words in FIRST_OF.items():
        doubtful = [(name, level) for name, level in levels if level_validity(level) == answer]
        if doubtful:
            name, level = doubtful[0]
            why = "; ".join(invalidity_reasons(level))
            sentences.append(
                f"{len(doubtful)} of {len(levels)} levels {words} (`{name}` at {level.load.words}: {why})."
            )
    return sentences


def is_replayed(level: Level) -> bool:
    """The server had kept more of the prompts than the workload itself repeats."""
    rate, expected = level.prefix_cache_hit_rate, level.prefix_cache_expected
    return rate is not None and expected is not None and rate > expected * (1 + OF_EXPECTED) + MARGIN


def replayed_words(level: Level) -> str:
    """`55% of the prompts' tokens came from the server's prefix cache, where the workload repeats 3% at most`."""
    rate, expected = level.prefix_cache_hit_rate or 0.0, level.prefix_cache_expected or 0.0
    came = f"{rate:.0%} of the prompts' tokens came from the server's prefix cache"
    return f"{came}, where the workload repeats {expected:.0%} at most"


def uncounted_words(level: Level) -> str:
    """`2 of 40 answers came without a token count`."""
    return f"{level.tokenizer_failed:,} of {level.answers:,} answers came without a token count"


LEAST_BUSY = 0.7
"""Of the streams that are asked, on average over the time that throughput counts."""


def busy_streams(level: Level) -> float | None:
    """Requests under way, on average over the level's whole duration: requests x mean time / duration (J. D. C. Little,
    A proof for the queuing formula L = lambda W, Operations Research 9, 1961). None where it was no closed loop, or
    nothing was timed."""
    if not level.load.is_closed or level.client_latency_ms is None or level.duration_s <= 0:
        return None
    return level.answers * level.client_latency_ms.mean / 1000 / level.duration_s


def idle_streams_warning(results: Sequence[VariantResult]) -> str | None:
    """One sentence where a level's throughput is that of clearly fewer streams than were asked, its end being most of
    it: of all that are, the one with the fewest."""
    levels = [
        (share / level.load.value, level)
        for result in results
        for level in result.levels
        if (share := busy_streams(level)) is not None and not has_many_errors(level)
    ]
    share, level = min(levels, key=lambda pair: pair[0], default=(1.0, None))
    if level is None or share >= LEAST_BUSY:
        return None
    return (
        f"At {level.load.words} only {figure(share * level.load.value)} were busy on average, since a block's last answers run "
        "alone: its throughput is of fewer streams than it says. "
        f"Ask for {default_requests(level.load)} requests a level, or for more seconds."
    )
