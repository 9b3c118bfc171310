"""Speculation of an evaluation in words: what was accepted, and whether the answers stayed as they are."""

from __future__ import annotations

from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.evaluation.evidence.schema import Lossless
from backend.domain.evaluation.evidence.speculation_gains import drafted_levels
from backend.domain.figures import counted, figure, listed

NOT_MEASURED = "not measured: evaluate with `--lossless`"
NOTHING_DRAFTED = "nothing was drafted for these prompts, so nothing was tested"
MEANING = (
    "Greedy answers are compared token by token with those of the same variant without speculation; beside it stands how many "
    "of its own that variant repeats when several are asked at once, as floating point alone changes some. Samples at "
    "temperature 1 are compared token by token of the answer by chi-square tests, from the second on, the first that a draft "
    "has a part in."
)


def speculating(evaluation: Evaluation) -> list[VariantResult]:
    """Variants that guess ahead and were served here."""
    return [each for each in evaluation.variants if each.variant.speculation is not None and each.variant.kind != "url"]


def rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """One a variant and load: what was accepted."""
    return [
        {
            "Variant": result.name,
            "Load": level.load.words,
            "Drafts": f"{drafting.drafts:,}",
            "Tokens a draft's step": figure(drafting.length),
            "Accepted by position": ", ".join(f"{rate:.0%}" for rate in drafting.rates) or "not told",
            "Tokens accepted": f"{drafting.accepted_tokens:,} of {drafting.drafted_tokens:,}",
            "Tokens a step by kind": ", ".join(f"{kind} {figure(each.length)}" for kind, each in drafting.steps.items())
            or "no kinds",
        }
        for result, level, drafting in drafted_levels(evaluation)
    ]


def lossless_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """One a variant that speculates; that it was not measured is said too."""
    return [
        {
            "Variant": each.name,
            "Answers": verdict(each.lossless),
            "Greedy": greedy(each.lossless),
            "Sampled": sampled(each.lossless),
        }
        for each in speculating(evaluation)
    ]


def lossless_sentences(evaluation: Evaluation) -> list[str]:
    """For a terminal."""
    return [
        f"{row['Variant']}: {'. '.join(filter(None, (row['Answers'], row['Greedy'], row['Sampled'])))}."
        for row in lossless_rows(evaluation)
    ]


def verdict(found: Lossless | None) -> str:
    if found is None:
        return NOT_MEASURED
    if not found.is_tested:
        return NOTHING_DRAFTED
    return "changed by speculation" if found.differs else "no difference found"


def greedy(found: Lossless | None) -> str:
    """`23 of 24 the same, first differing at token 17; without speculation 22 of 24 when 8 are asked at once (p =
    0.70)`."""
    if found is None:
        return ""
    where = f", first differing at {_tokens(found.divergences)}" if found.divergences else ""
    itself = f"without speculation {found.itself_same} of {found.prompts} when {found.itself_at_once} are asked at once"
    return f"{found.same} of {found.prompts} the same{where}; {itself} (p = {found.p_value:.2f}, {found.drafted:,} tokens drafted)"


def _tokens(places: tuple[int, ...]) -> str:
    return f"{'token' if len(places) == 1 else 'tokens'} {listed([str(place) for place in places])}"


def sampled(found: Lossless | None) -> str:
    """`tokens 2 to 4 of 12 prompts x 128 samples: p = 0.48 at the least; a distance of 13% would be found with 80%
    power`."""
    if found is None or not found.positions:
        return ""
    least = min(each.p_value for each in found.positions)
    distance = max(each.found_distance for each in found.positions)
    first, last = found.positions[0].number, found.positions[-1].number
    tokens = f"token {first}" if first == last else f"tokens {first} to {last}"
    of = f"{tokens} of {counted(found.sampled_prompts, 'prompt')} x {found.samples} samples"
    power = f"a total-variation distance of {distance:.0%} would be found with 80% power"
    return f"{of}: p = {least:.2f} at the least; {power} ({found.sampled_drafted:,} tokens drafted)"
