"""An evaluation in plain words: what came of each variant and load in one, the whole of it in one line, and four
figures before and after. For the top of a page and the end of a demo; the full verdicts are `verdicts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, Evaluation, Level, Quality, VariantResult
from backend.domain.evaluation.prices import price_per_million
from backend.domain.figures import code, counted, factor_and_bounds, figure, listed, small
from backend.domain.limits.quality_loss import LossGrade, loss_grade, loss_nats
from backend.domain.load.load import Load
from backend.domain.what_if.costs import WhatIf, choose_pricing
from backend.present.words import quality_loss
from backend.present.words.measurements import typical
from backend.present.words.verdicts import (
    IN_SHORT,
    TOO_NOISY,
    describe_obstacle,
    factor_above_one,
    same_within,
    sameness_words,
)

MOST_BLOCKS = 60
"""More blocks than this are not worth asking for: the machine is too busy."""
TRY = "Try another technique, more streams, or a larger model: on a small one most of a step is overhead."
Kind = Literal["faster", "slower", "same", "noisy", "none"]


class ThroughputVerdict(NamedTuple):
    """What is said of one variant's throughput at one load. `more` blocks may decide it; None where that is not what it
    lacks."""

    variant: str
    load: Load
    kind: Kind
    words: str
    bounds: str = ""
    more: int | None = None

    @property
    def text(self) -> str:
        """`1.9x faster (1.8 to 2.0)`."""
        return f"{self.words} ({self.bounds})" if self.bounds else self.words


def throughput_verdicts(evaluation: Evaluation) -> list[ThroughputVerdict]:
    """One a variant and load that was compared, in the order of the comparison."""
    return [throughput_verdict(row) for row in evaluation.comparison if higher_is_better(row.metric)]


def throughput_verdict(row: Comparison) -> ThroughputVerdict:
    """Of a throughput."""
    if row.why is not None:
        few = max(2, (row.why.of or 0) - (row.why.count or 0)) if row.why.cause == "few_repeats" else None
        return ThroughputVerdict(row.variant, row.load, "none", IN_SHORT.get(row.why.cause, "no verdict"), more=few)
    if row.significant:
        kind: Kind = "faster" if row.outcome == "better" else "slower"
        factor, bounds = short_factor(*factor_above_one(row))
        return ThroughputVerdict(row.variant, row.load, kind, f"{factor} {kind}", bounds)
    bounds = factor_and_bounds(row.ratio or 1.0, row.ci95)[1]
    if same_within(row) is not None:
        return ThroughputVerdict(row.variant, row.load, "same", sameness_words(row), bounds)
    worth = row.more_blocks if (row.more_blocks or 0) <= MOST_BLOCKS else None
    return ThroughputVerdict(row.variant, row.load, "noisy", TOO_NOISY, bounds, worth)


def short_factor(ratio: float, interval: tuple[float, float] | None) -> tuple[str, str]:
    """`1.9x` and `1.8 to 2.0`; more digits where one would round onto 1."""
    if interval is None or not all(1.05 < end < 1000 for end in (ratio, *interval)):
        return factor_and_bounds(ratio, interval)
    return f"{ratio:.1f}x", f"{interval[0]:.1f} to {interval[1]:.1f}"


class Win(NamedTuple):
    """A variant that a test names faster than the baseline at a load: the comparison, both results, their levels
    there."""

    row: Comparison
    before: VariantResult
    after: VariantResult
    levels: tuple[Level, Level]


def find_win(evaluation: Evaluation) -> Win | None:
    """The one that is surely the most times faster: by the lower end of its interval, over all variants and loads.
    Another stands in its place where it was measured faster still and its loss is of a better grade. What is ruined
    wins nothing."""
    wins = _wins(evaluation)
    if not wins:
        return None
    surest = wins[0]
    better = (
        each
        for each in wins
        if (each.row.ratio or 0) > (surest.row.ratio or 0) and _grade(each.after.quality) < _grade(surest.after.quality)
    )
    return next(better, surest)


def _wins(evaluation: Evaluation) -> list[Win]:
    """Every throughput that a test names better, the surest first."""
    faster = [
        row for row in evaluation.comparison if higher_is_better(row.metric) and row.outcome == "better" and row.ci95
    ]
    results, wins = {result.name: result for result in evaluation.variants}, []
    for row in sorted(faster, key=lambda row: row.ci95[0] if row.ci95 else 0.0, reverse=True):
        before, after = results.get(row.baseline), results.get(row.variant)
        if before is None or after is None or is_ruined(after.quality):
            continue
        levels = [next((level for level in each.levels if level.load == row.load), None) for each in (before, after)]
        if levels[0] is not None and levels[1] is not None:
            wins.append(Win(row, before, after, (levels[0], levels[1])))
    return wins


def _lost(quality: Quality | None) -> float | None:
    return loss_nats(quality.kl_mean, quality.perplexity_original, quality.perplexity) if quality else None


def _grade(quality: Quality | None) -> int:
    """0 where nothing is lost; what nobody measured stands behind every grade."""
    lost = _lost(quality)
    return len(get_args(LossGrade)) if lost is None else get_args(LossGrade).index(loss_grade(lost))


def is_ruined(quality: Quality | None) -> bool:
    lost = _lost(quality)
    return lost is not None and loss_grade(lost) == "ruined"


def headline_sentence(evaluation: Evaluation) -> str:
    """The hero line, from measured fields: `w8a8 is 1.9x faster at 1 stream (1.8 to 2.0), 47% smaller, KL 0.03: keeps
    93% of the words; costs 0.52 of the original a token.` Where nothing wins, why, and what to try."""
    found = find_win(evaluation)
    if found is None:
        return no_win_sentence(evaluation)
    factor, bounds = short_factor(found.row.ratio or 1.0, found.row.ci95)
    parts = [f"{code(found.after.name)} is {factor} faster at {found.row.load.words} ({bounds})"]
    parts += [size] if (size := size_change(found)) else []
    parts += [short_quality(found.after.quality)]
    share = cost_share(evaluation, found)
    return f"{', '.join(parts)}{f'; costs {share:.2f} of the original a token' if share is not None else ''}."


def size_change(found: Win) -> str:
    """`47% smaller` on disk; empty where it is the same or not known."""
    before, after = found.before.variant.bytes_on_disk, found.after.variant.bytes_on_disk
    if not before or not after or abs(after / before - 1) < 0.005:
        return ""
    return f"{abs(after / before - 1):.0%} {'smaller' if after < before else 'larger'}"


def short_quality(quality: Quality | None) -> str:
    """`KL 0.03: keeps 93% of the words`, the places where the most probable one is the original's; else how grave the
    loss is."""
    if quality is None or quality.kl_mean is None:
        return "quality not measured"
    kept = quality_loss.words(quality) if quality.same_top is None else f"keeps {quality.same_top:.0%} of the words"
    return f"KL {small(quality.kl_mean)}{f': {kept}' if kept else ''}"


def cost_share(evaluation: Evaluation, found: Win) -> float | None:
    """What a token costs of what it did: an hour gives so many times the tokens, and that of an endpoint's own
    instances costs so many times as much. None where only one of the two hours has a price."""
    before, after = (evaluation.options.hourly_price(each.variant) for each in (found.before, found.after))
    if before is None and after is None:
        apart = found.before.variant.remote or found.after.variant.remote  # nobody says that both cost the same
        return None if apart else 1 / (found.row.ratio or 1.0)
    return after / before / (found.row.ratio or 1.0) if before and after is not None else None


def no_win_sentence(evaluation: Evaluation) -> str:
    """Why no variant is called faster, and what to try, in one line."""
    said = throughput_verdicts(evaluation)
    if not said:
        return "One variant was measured, so there is nothing to compare: measure it beside another."
    baseline = code(evaluation.variants[0].name)
    noisy = [each for each in said if each.kind == "noisy"]
    if noisy:
        return f"Nothing is shown to be faster than {baseline}: {_some(noisy)}. {more_blocks_advice(noisy)}"
    if all(each.kind == "none" for each in said):
        why = next((row.why for row in evaluation.comparison if row.why is not None), None)
        reason = f": {describe_obstacle(why)}" if why else ""
        return f"There is no verdict against {baseline}{reason}."
    return f"Nothing is faster than {baseline} here: {_some([each for each in said if each.kind != 'none'])}. {TRY}"


def _some(said: Sequence[ThroughputVerdict]) -> str:
    """What is said of each variant at its highest load, alike ones together: ``a` and `b` are too noisy to tell at 4
    streams`."""
    last = {each.variant: each for each in sorted(said, key=lambda each: each.load)}
    alike: dict[tuple[str, Load], list[str]] = {}
    for name, each in last.items():
        alike.setdefault((each.words, each.load), []).append(code(name))
    return ", ".join(
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} {words} at {load.words}"
        for (words, load), names in alike.items()
    )


def more_blocks_advice(noisy: Sequence[ThroughputVerdict]) -> str:
    """How many more blocks would tell, or that it takes a quieter machine."""
    more = more_blocks(noisy)
    if more is None:
        return "More blocks would take too long: measure again while the machine is quiet."
    return f"Measure {counted(more, 'more block')}, if the machine is quiet."


def more_blocks(said: Sequence[ThroughputVerdict]) -> int | None:
    """What decides each one that can be decided; None where none can, or none needs it."""
    wanted = [each.more for each in said if each.more is not None]
    return max(wanted, default=None)


class Tile(NamedTuple):
    """One figure: what it came to, and before and after."""

    label: str
    value: str
    detail: str


def tiles(evaluation: Evaluation, found: Win, size: Sequence[str]) -> list[Tile]:
    """Speed, size, price and quality. `size`: both weights on disk in words."""
    factor, bounds = short_factor(found.row.ratio or 1.0, found.row.ci95)
    before, after = (typical(level) for level in found.levels)
    quality = short_quality(found.after.quality).partition(": ")[0]
    more = quality_loss.words(found.after.quality)
    return [
        Tile(
            f"Speed, {found.row.load.words}",
            f"{factor} faster",
            f"{figure(before)} to {figure(after)} tokens/s; 95% {bounds}",
        ),
        Tile("Size", size_change(found) or "the same", f"{size[0]} to {size[1]}"),
        Tile("Price a token", _cheaper(cost_share(evaluation, found)), _prices(evaluation, found, (before, after))),
        Tile("Quality", quality, more or "against the original, over the whole vocabulary"),
    ]


def _cheaper(share: float | None) -> str:
    return "not known" if share is None else f"{abs(1 - share):.0%} {'cheaper' if share <= 1 else 'dearer'}"


def _prices(evaluation: Evaluation, found: Win, tokens_per_s: tuple[float | None, float | None]) -> str:
    first, second = (choose_pricing(evaluation, WhatIf(), each.variant) for each in (found.before, found.after))
    if first is None or second is None:
        return "at the same price an hour" if first is second else "only one of them has a price an hour"
    before, after = (
        figure(price_per_million(each.hour, rate)) for each, rate in zip((first, second), tokens_per_s, strict=True)
    )
    words = " and ".join(dict.fromkeys(f"{each.per_hour:g}" for each in (first, second)))
    return f"{before} to {after} a million, at {words} an hour"
