"""Decides whether a level's figures are the server's, and says why not. Knows nothing of how levels are measured or
drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import computed_field, model_validator

from backend.domain.figures import counted, figure
from backend.domain.frozen import Frozen
from backend.domain.load.prompt_lines import default_requests

if TYPE_CHECKING:  # the level of a document is made of this module's class
    from backend.domain.evaluation.document import Level, VariantResult

Validity = Literal["yes", "in part", "no"]
"""`in part`: the figures are the server's, but tokens per second or the time between tokens is not known."""


SHARED_PROCESSORS = "Load generator and server share this machine's processors."
"""True of every server that is started on the load generator's machine: a condition rather than a warning."""


class WithValidity(Frozen):
    """A level whose written form also has `valid` and `reasons`.

    They follow from its other fields, so they are computed anew when a level is read, also one that was stored without
    them.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_validity(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: field for name, field in value.items() if name not in COMPUTED}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def valid(self) -> Validity:
        """Tell whether its figures are the server's."""
        return level_validity(cast("Level", self))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def reasons(self) -> list[str]:
        """Why the level is not valid, or only in part."""
        return invalidity_reasons(cast("Level", self))


COMPUTED = {"valid", "reasons"}


def level_validity(level: Level) -> Validity:
    """Return whether the level's figures are the server's."""
    if not is_sound(level):
        return "no"
    return "in part" if is_uncounted(level) or is_buffered(level) else "yes"


def invalidity_reasons(level: Level) -> list[str]:
    """Say why the level is not valid, or only in part; empty where it is."""
    reasons: list[str] = []
    # 1. The figures are not the server's.
    if level.audit.reasons:
        reasons += level.audit.reasons
    elif level.client_limited:
        reasons.append("the load generator limited it")
    if has_many_errors(level):
        reasons.append(f"{level.invocation_errors} of {level.invocations} requests failed")
    if is_silent(level):
        reasons.append(silent_words(level))
    if is_replayed(level):
        reasons.append(replayed_words(level))
    # 2. Some figures are not known.
    if level.tokenizer_failed:
        reasons.append(f"{uncounted_words(level)}, so tokens/s and prices are not known")
    elif level.output_tokens_per_s is None:
        reasons.append("no answer came with a token count, so tokens/s and prices are not known")
    if is_buffered(level):
        reasons.append(buffered_words(level))
    return reasons


def is_uncounted(level: Level) -> bool:
    """Tell whether tokens per second are unknown because answers came without token counts."""
    return bool(level.tokenizer_failed) or level.output_tokens_per_s is None


def is_sound(level: Level) -> bool:
    """Tell whether the figures are the server's for these prompts, and nearly every request was answered with words."""
    return not (level.client_limited or has_many_errors(level) or is_silent(level) or is_replayed(level))


MAX_ERROR_SHARE = 0.01
MAX_EMPTY_SHARE, MAX_SHORT_SHARE, MAX_BUFFERED_SHARE = 0.05, 0.5, 0.5
MARGIN, OF_EXPECTED = 0.02, 0.1
"""A hit rate may exceed the expected one by 0.02 and a tenth of it: shared beginnings are estimated from characters."""


def has_many_errors(level: Level) -> bool:
    """Tell whether more than one request in a hundred failed: the rest is not a fair sample."""
    return level.invocation_errors > MAX_ERROR_SHARE * level.invocations


def is_silent(level: Level) -> bool:
    """Tell whether more than one answer in twenty is empty, or more than half are empty or of one token though more
    were requested: latencies and prices would describe the few others.

    An answer whose tokens were not counted is not an empty one.
    """
    empty = level.empty_responses - level.tokenizer_failed
    many_empty = empty > MAX_EMPTY_SHARE * level.answers
    return many_empty or empty + level.short_responses > MAX_SHORT_SHARE * max(level.answers, 1)


def silent_words(level: Level) -> str:
    """Say `31 of 32 answers were empty, 0 had one token`."""
    empty = level.empty_responses - level.tokenizer_failed
    return f"{empty:,} of {level.answers:,} answers were empty, {level.short_responses:,} had one token"


def is_buffered(level: Level) -> bool:
    """Tell whether more than half of the answers came at once although in several chunks: something buffers them."""
    return level.buffered_responses > MAX_BUFFERED_SHARE * max(level.answers, 1)


def buffered_words(level: Level) -> str:
    """Say `40 of 40 answers came in one piece: ...`."""
    return (
        f"{level.buffered_responses:,} of {level.answers:,} answers came in one piece: a proxy or the server buffers "
        "the "
        "stream, so the time between tokens is not known and the first token comes with the last"
    )


VALIDITY_WORDS: dict[Validity, str] = {
    "no": "are not the server's figures",
    "in part": "are valid in part",
}


def validity_warnings(results: Sequence[VariantResult]) -> list[str]:
    """Write one sentence for all levels that are not valid, one for those valid in part: how many, the first, and
    why."""
    levels = [(result.name, level) for result in results for level in result.levels]
    sentences = []
    for validity, words in VALIDITY_WORDS.items():
        doubtful = [(name, level) for name, level in levels if level_validity(level) == validity]
        if doubtful:
            name, level = doubtful[0]
            why = "; ".join(invalidity_reasons(level))
            sentences.append(
                f"{len(doubtful)} of {len(levels)} levels {words} (`{name}` at {level.load.words}: {why})."
            )
    return sentences


def late_warning(levels: Iterable[Level]) -> str | None:
    """Say `The load generator was late in 1 of 6 blocks at 1 stream: ...`; None where no block is left out."""
    late = {level.load: level for level in levels if level.audit.late_blocks}
    counts = [
        f"{len(level.audit.late_blocks)} of {counted(measured_blocks(level), 'block')} at {load.words}"
        for load, level in late.items()
    ]
    if not counts:
        return None
    return f"The load generator was late in {', in '.join(counts)}: what was measured then is left out everywhere."


def measured_blocks(level: Level) -> int:
    """Return the number of blocks that were measured, those that are left out included."""
    return level.repeats + len(level.audit.late_blocks)


def is_replayed(level: Level) -> bool:
    """Tell whether the server found more of the prompts in its prefix cache than the workload itself repeats."""
    rate, expected = level.prefix_cache_hit_rate, level.prefix_cache_expected
    return rate is not None and expected is not None and rate > expected * (1 + OF_EXPECTED) + MARGIN


def replayed_words(level: Level) -> str:
    """Say `55% of the prompts' tokens came from the server's prefix cache, where the workload repeats at most 3%`."""
    rate, expected = level.prefix_cache_hit_rate or 0.0, level.prefix_cache_expected or 0.0
    cached = f"{rate:.0%} of the prompts' tokens came from the server's prefix cache"
    return f"{cached}, where the workload repeats at most {expected:.0%}"


def uncounted_words(level: Level) -> str:
    """Say `2 of 40 answers came without a token count`."""
    return f"{level.tokenizer_failed:,} of {level.answers:,} answers came without a token count"


LEAST_BUSY = 0.7
"""Least share of the requested streams that must be busy on average."""


def busy_streams(level: Level) -> float | None:
    """Return the mean number of requests under way over the level's whole duration: requests x mean time / duration (J.
    D. C. Little, A proof for the queuing formula L = lambda W, Operations Research 9, 1961).

    None outside a closed loop, and where nothing was timed.
    """
    if not level.load.is_closed or level.client_latency_ms is None or level.duration_s <= 0:
        return None
    return level.answers * level.client_latency_ms.mean / 1000 / level.duration_s


def idle_streams_warning(results: Sequence[VariantResult]) -> str | None:
    """Warn in one sentence where a level's throughput is that of clearly fewer streams than were requested.

    That happens where the end of a run, with the last answers alone, is most of it. Names the level with the lowest
    share of busy streams.
    """
    # 1. The level with the lowest share.
    lowest_share, lowest = 1.0, None
    for result in results:
        for level in result.levels:
            busy = busy_streams(level)
            if busy is None or has_many_errors(level):
                continue
            share = busy / level.load.value
            if share < lowest_share:
                lowest_share, lowest = share, level
    if lowest is None or lowest_share >= LEAST_BUSY:
        return None
    # 2. The warning.
    return (
        f"At {lowest.load.words} only {figure(lowest_share * lowest.load.value)} were busy on average, since a "
        "block's last "
        "answers run alone: its throughput is that of fewer streams. "
        f"Use {default_requests(lowest.load)} requests per level, or more seconds."
    )
