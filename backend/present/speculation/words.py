"""Speculative decoding of an evaluation in words: what was accepted, and whether answers changed."""

from __future__ import annotations

from collections.abc import Mapping

from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.evaluation.evidence.schema import AnswerSteps, Lossless
from backend.domain.evaluation.evidence.speculation_gains import drafted_levels
from backend.domain.figures import counted, figure, listed

NOT_MEASURED = "not measured: evaluate with `--lossless`"
NOTHING_DRAFTED = "not tested: no tokens were drafted for these prompts"
MEANING = (
    "Greedy answers are compared token by token with those of the same variant without speculation. For reference, "
    "that variant is also compared with itself under concurrent requests, since rounding alone changes some answers. "
    "Samples at temperature 1 are compared by a chi-square test for each position, from the second token on, the first "
    "that a draft can change."
)


def speculating(evaluation: Evaluation) -> list[VariantResult]:
    """Return the variants with speculation that were served here."""
    variants = evaluation.variants
    return [result for result in variants if result.variant.speculation is not None and result.variant.kind != "url"]


def rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Return one row per variant and load: what was accepted."""
    return [
        {
            "Variant": result.name,
            "Load": level.load.words,
            "Drafts": f"{drafting.drafts:,}",
            "Tokens per drafted step": figure(drafting.length),
            "Accepted by position": ", ".join(f"{rate:.0%}" for rate in drafting.rates) or "not reported",
            "Tokens accepted": f"{drafting.accepted_tokens:,} of {drafting.drafted_tokens:,}",
            "Tokens per step by kind": _by_kind(drafting.steps) or "no kinds",
        }
        for result, level, drafting in drafted_levels(evaluation)
    ]


def lossless_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Return one row per variant with speculation, also if losslessness was not measured."""
    return [
        {
            "Variant": result.name,
            "Answers": verdict(result.lossless),
            "Greedy": greedy(result.lossless),
            "Sampled": sampled(result.lossless),
        }
        for result in speculating(evaluation)
    ]


def lossless_sentences(evaluation: Evaluation) -> list[str]:
    """Return the rows as sentences, for a terminal."""
    return [
        f"{row['Variant']}: {'. '.join(filter(None, (row['Answers'], row['Greedy'], row['Sampled'])))}."
        for row in lossless_rows(evaluation)
    ]


def _by_kind(steps: Mapping[str, AnswerSteps]) -> str:
    return ", ".join(f"{kind} {figure(kind_steps.length)}" for kind, kind_steps in steps.items())


def verdict(lossless: Lossless | None) -> str:
    if lossless is None:
        return NOT_MEASURED
    if not lossless.is_tested:
        return NOTHING_DRAFTED
    return "changed by speculation" if lossless.differs else "no difference found"


def greedy(lossless: Lossless | None) -> str:
    """`23 of 24 the same, first differing at token 17; without speculation 22 of 24 with 8 concurrent requests
    (p = 0.70)`."""
    if lossless is None:
        return ""
    where = f", first differing at {_tokens(lossless.divergences)}" if lossless.divergences else ""
    concurrent = f"with {lossless.itself_at_once} concurrent requests"
    itself = f"without speculation {lossless.itself_same} of {lossless.prompts} {concurrent}"
    same = f"{lossless.same} of {lossless.prompts} the same{where}"
    return f"{same}; {itself} (p = {lossless.p_value:.2f}, {lossless.drafted:,} tokens drafted)"


def _tokens(places: tuple[int, ...]) -> str:
    return f"{'token' if len(places) == 1 else 'tokens'} {listed([str(place) for place in places])}"


def sampled(lossless: Lossless | None) -> str:
    """`tokens 2 to 4 of 12 prompts x 128 samples: smallest p = 0.48; a distance of 13% would be detected with
    80% power`."""
    if lossless is None or not lossless.positions:
        return ""
    if not lossless.sampled_drafted:
        return "no token was drafted in the samples, so they test nothing"
    least = min(position.p_value for position in lossless.positions)
    distance = max(position.found_distance for position in lossless.positions)
    first, last = lossless.positions[0].number, lossless.positions[-1].number
    tokens = f"token {first}" if first == last else f"tokens {first} to {last}"
    tested = f"{tokens} of {counted(lossless.sampled_prompts, 'prompt')} x {lossless.samples} samples"
    power = f"a total-variation distance of {distance:.0%} would be detected with 80% power"
    return f"{tested}: smallest p = {least:.2f}; {power} ({lossless.sampled_drafted:,} tokens drafted)"
