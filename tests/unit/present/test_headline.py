"""The top of an evaluation: one line and a word a level, never more than the test said, its figures agreeing with each
other."""

from __future__ import annotations

import re

import pytest

from backend.domain.evaluation.document import Comparison, Evaluation, Quality
from backend.domain.evaluation.outcome import interval_outcome
from backend.domain.load.load import Load
from backend.domain.what_if.slice_means import with_slice_means
from backend.present import variant_tiles
from backend.present.words import headline
from backend.present.words.measurements import throughput
from backend.present.words.verdicts import grid_rows
from tests import simulated


def row(ratio: float, low: float, high: float, outcome: str | None = None) -> Comparison:
    return Comparison.model_validate(
        {
            "load": Load("closed", 1),
            "metric": "output_tokens_per_s",
            "baseline": "original",
            "variant": "v",
            "outcome": outcome or interval_outcome((low, high), ratio > 1),
            "why": None,
            "ratio": ratio,
            "ci95": (low, high),
            "p_value": 0.5,
        }
    )


def sized(document: Evaluation, quality: Quality | None = None, after: int = 143) -> Evaluation:
    first, second = document.variants[:2]
    before = first.model_copy(update={"variant": first.variant.model_copy(update={"bytes_on_disk": 270})})
    changed = {
        "variant": second.variant.model_copy(update={"bytes_on_disk": after}),
        "quality": quality or second.quality,
    }
    return document.model_copy(update={"variants": [before, second.model_copy(update=changed), *document.variants[2:]]})


def test_the_line_of_a_win_says_speed_size_quality_and_price_from_the_document() -> None:
    quality = Quality(kl_mean=0.03, same_top=0.93)
    document = sized(simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 1.9), levels=(1,)), quality)
    win = headline.find_win(document)
    assert win is not None and win.row.ratio is not None
    headline_sentence = headline.headline_sentence(document)
    assert re.fullmatch(
        r"`w8a8` is 1\.\dx faster at 1 stream \(1\.\d to 1\.\d\), 47% smaller, KL 0\.0300: same top token at 93% of "
        r"positions; "
        rf"costs {1 / win.row.ratio:.2f}x as much per token\.",
        headline_sentence,
    )


def test_the_variants_beside_the_winner_are_named_with_their_verdicts() -> None:
    alone = simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 1.9), levels=(1,))
    win = headline.find_win(alone)
    assert win is not None and headline.others_sentence(alone, win) == ""
    document = simulated.evaluation(names=("original", "w8a8", "slow"), speeds=(1.0, 1.9, 0.5), levels=(1, 4))
    win = headline.find_win(document)
    assert win is not None and win.after.name == "w8a8"
    verdict = r"\d\.\d+x slower \(\d\.\d+ to \d\.\d+\) at"
    pattern = rf"Also measured: `slow`, {verdict} 1 stream and {verdict} 4 streams\."
    assert re.fullmatch(pattern, headline.others_sentence(document, win))


def test_the_win_is_the_surest_and_never_one_that_no_test_named() -> None:
    document = simulated.evaluation(
        names=("original", "sure", "wild"), speeds=(1.0, 1.5, 1.6), levels=(1,), with_quality=False
    )
    wild = [
        each.model_copy(update={"ci95": (1.01, 2.5)}) if each.variant == "wild" else each
        for each in document.comparison
    ]
    win = headline.find_win(document.model_copy(update={"comparison": wild}))
    assert win is not None and win.after.name == "sure"
    ruined = [each.model_copy(update={"quality": Quality(kl_mean=1.66)}) for each in document.variants[1:]]
    assert headline.find_win(document.model_copy(update={"variants": [document.variants[0], *ruined]})) is None
    undecided = [each.model_copy(update={"outcome": "same"}) for each in document.comparison]
    assert headline.find_win(document.model_copy(update={"comparison": undecided})) is None


@pytest.mark.parametrize(
    ("sure", "wild", "winner"),
    [
        (0.126, 0.0165, "wild"),
        (0.126, None, "sure"),
        (0.0165, 0.0160, "sure"),
        (0.0165, 0.126, "sure"),
        (None, 0.0165, "wild"),
    ],
)
def test_what_was_measured_faster_and_loses_a_grade_less_wins_before_the_surest(
    sure: float | None, wild: float | None, winner: str
) -> None:
    document = simulated.evaluation(names=("original", "sure", "wild"), speeds=(1.0, 1.4, 1.8), levels=(1,))
    bounds = {"sure": (1.28, 1.62), "wild": (1.17, 2.69)}
    comparison = [each.model_copy(update={"ci95": bounds[each.variant]}) for each in document.comparison]
    qualities = {"original": 0.0, "sure": sure, "wild": wild}
    variants = [
        each.model_copy(update={"quality": Quality(kl_mean=qualities[each.name])}) for each in document.variants
    ]
    win = headline.find_win(document.model_copy(update={"comparison": comparison, "variants": variants}))
    assert win is not None and win.after.name == winner


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (0.97, 1.04, "the same within 4%"),
        (0.952381, 1.01, "the same within 5%"),
        (0.23, 7.98, "too noisy to tell"),
        (0.9, 1.2, "too noisy to tell"),
    ],
)
def test_a_difference_that_is_not_shown_is_the_same_within_so_much_or_too_noisy(
    low: float, high: float, message: str
) -> None:
    call = headline.throughput_verdict(row(1.0, low, high))
    assert call.words == message
    assert call.kind == ("same" if message.startswith("the same") else "noisy")
    assert (call.more is None) or call.kind == "noisy"


def test_the_blocks_that_would_decide_are_those_of_the_test_where_they_are_worth_it() -> None:
    noisy = row(1.2, 0.8, 1.8, "undecided")
    assert [headline.throughput_verdict(noisy.model_copy(update={"more_blocks": n})).more for n in (12, 600, None)] == [
        12,
        None,
        None,
    ]


def test_the_advice_names_the_levels_that_its_number_of_blocks_decides() -> None:
    document = simulated.evaluation(names=("original", "a"), speeds=(1.0, 1.2), levels=(4, 8), noise=0.3)
    rows = []
    for load, needed in ((Load("closed", 4), 52), (Load("closed", 8), 600)):
        changed = {"load": load, "more_blocks": needed, "variant": "a"}
        rows.append(row(1.2, 0.8, 1.8, "undecided").model_copy(update=changed))
    document = document.model_copy(update={"comparison": rows})
    assert headline.headline_sentence(document) == (
        "No clear winner over `original` yet: `a` is too noisy to tell at 4 streams and 8 streams. "
        "Run 52 more blocks on an idle machine to decide `a` at 4 streams; the rest would take too long."
    )
    assert headline.decided_places(headline.throughput_verdicts(document)) == "`a` at 4 streams"


def test_where_nothing_wins_one_line_says_why_and_what_to_try() -> None:
    noisy = simulated.evaluation(names=("original", "a"), speeds=(1.0, 1.2), levels=(1,), noise=0.3)
    headline_sentence = headline.headline_sentence(noisy)
    assert headline_sentence.startswith("No clear winner over `original` yet: `a` is too noisy to tell at 1 stream. ")
    assert re.search(r"Run \d+ more blocks on an idle machine\.|again on an idle machine\.", headline_sentence)
    evidence = headline.evidence_sentence(noisy)
    level = noisy.variants[1].levels[0]
    assert re.fullmatch(
        r"Tried: `a` at 1 stream\. The widest interval, of `a` at 1 stream \(.+ to .+\), "
        rf"rests on {level.requests} requests in {level.repeats} blocks\.",
        evidence,
    )
    same = simulated.evaluation(names=("original", "a", "b"), speeds=(1.0, 1.0, 0.5), levels=(1,))
    assert headline.evidence_sentence(same).startswith("Tried: `a` and `b` at 1 stream.")
    assert re.match(
        r"Nothing is faster than `original` here: `a` is the same within \d%", headline.headline_sentence(same)
    )
    assert headline.TRY in headline.headline_sentence(same) and "`b` is 2.0x slower" in headline.headline_sentence(
        same
    ).replace("1.9x", "2.0x")
    few = simulated.evaluation(names=("original", "a"), speeds=(1.0, 2.0), levels=(1,), repeats=3)
    assert headline.headline_sentence(few) == (
        "There is no verdict against `original`: too few repeats for a verdict (3 of 5)."
    )
    assert "nothing to compare" in headline.headline_sentence(simulated.evaluation(["only"], [1.0]))
    for document in (noisy, same, few):
        assert "\n" not in headline.headline_sentence(document)


def test_the_figures_beside_a_ratio_give_that_ratio() -> None:
    document = with_slice_means(
        simulated.evaluation(names=("original", "a"), speeds=(1.0, 1.3), levels=(1, 4), noise=0.5)
    )
    for each in document.comparison:
        if each.metric != "output_tokens_per_s":
            continue
        before, after = (
            level.output_tokens_per_s
            for result in document.variants
            for level in result.levels
            if level.load == each.load
        )
        assert before and after and each.ratio == pytest.approx(after / before)
    level = document.variants[0].levels[0]
    first = grid_rows(document)[0].cells[level.load]
    assert first.words == throughput(level) == f"{level.output_tokens_per_s:.3g} tokens/s"


def test_the_four_tiles_say_before_and_after() -> None:
    document = sized(simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 2.0), levels=(1,)))
    win = headline.find_win(document)
    assert win is not None
    speed, size, price, quality = headline.tiles(document, win, ("270 MB", "143 MB"))
    assert speed.value.endswith("x faster") and " to " in speed.detail
    assert (size.value, size.detail) == ("47% smaller", "270 MB to 143 MB")
    before, after = (float(words) for words in re.findall(r"[\d.]+", price.detail)[:2])
    assert price.value == f"{1 - after / before:.0%} cheaper"
    assert (quality.value, quality.detail) == (
        "KL 0.0004",
        "loss hardly measurable, 0.00040 of at most 0.03 nats per token",
    )


def test_the_short_sentence_is_one_line_without_advice() -> None:
    quality = Quality(kl_mean=0.03, same_top=0.93)
    won = sized(simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 1.9), levels=(1,)), quality)
    assert re.fullmatch(r"`w8a8` is 1\.\dx faster at 1 stream, 47% smaller, KL 0\.0300\.", headline.short_sentence(won))
    names, speeds = ("original", "a", "b", "c"), (1.0, 1.05, 1.04, 1.06)
    noisy = simulated.evaluation(names=names, speeds=speeds, levels=(1,), noise=0.1)
    assert (
        headline.short_sentence(noisy) == "No clear winner over `original` yet: 3 of 3 variants are too noisy to tell."
    )
    assert headline.headline_sentence(noisy).startswith("No clear winner over `original` yet: `a`, `b` and `c` are")


def tiles_of(document: Evaluation) -> list[tuple[str, str | None]]:
    return [(tile.word, tile.kind) for tile in variant_tiles.variant_tiles(document)]


def test_each_variant_has_a_tile_with_its_outcome_as_a_word() -> None:
    document = simulated.evaluation(names=("original", "fast", "slow"), speeds=(1.0, 1.9, 0.5), levels=(1, 4))
    baseline, fast, slow = variant_tiles.variant_tiles(document)
    win = headline.find_win(document)
    assert win is not None and baseline.detail == f"at {win.row.load.words}"
    assert baseline.value == throughput(win.levels[0])
    assert (
        (fast.word, slow.word) == ("faster", "slower") and fast.value.startswith("1.") and slow.value.startswith("0.")
    )
    assert re.fullmatch(r"\d\.\d+ to \d\.\d+", fast.detail)
    assert "at 1 stream and" in slow.about and "at 4 streams" in slow.about
    same = simulated.evaluation(names=("original", "a"), speeds=(1.0, 1.0), levels=(1,))
    assert tiles_of(same)[1] == ("same", "same")
    noisy = simulated.evaluation(names=("original", "a"), speeds=(1.0, 1.05), levels=(1,), noise=0.1)
    assert tiles_of(noisy)[1] == ("inconclusive", "noisy")
    few = simulated.evaluation(names=("original", "a"), speeds=(1.0, 2.0), levels=(1,), repeats=2)
    assert tiles_of(few)[1] == ("too few repeats", "none")
    assert len(tiles_of(simulated.evaluation(names=("original",), speeds=(1.0,), levels=(1,)))) == 1


def test_tiles_never_praise_ruined_answers_and_leave_the_slowest_out() -> None:
    document = simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 1.9), levels=(1,))
    ruined = sized(document, Quality(kl_mean=9.0, same_top=0.01))
    assert tiles_of(ruined)[1] == ("faster, quality ruined", "slower")
    names, speeds = ("original", "a", "b", "c", "d", "e"), (1.0, 1.5, 0.5, 1.6, 1.7, 1.8)
    many = variant_tiles.variant_tiles(simulated.evaluation(names=names, speeds=speeds, levels=(1,)))
    assert [tile.label for tile in many] == ["original", "c", "d", "e"]


def test_a_variant_that_is_faster_and_slower_is_a_caveat() -> None:
    document = simulated.evaluation(names=("original", "a"), speeds=(1.0, 1.9), levels=(1, 4))
    assert variant_tiles.mixed_sentences(document) == []
    turned = [
        each.model_copy(update={"ratio": 0.5, "ci95": (0.4, 0.6), "outcome": "worse"}) if each.load.value == 4 else each
        for each in document.comparison
    ]
    (sentence,) = variant_tiles.mixed_sentences(document.model_copy(update={"comparison": turned}))
    assert re.fullmatch(
        r"`a` is not faster at every load: 1\.\dx faster \(.*\) at 1 stream and 2\.0x slower \(.*\) at 4 streams\.",
        sentence,
    )
