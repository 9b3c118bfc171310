"""An evaluation of variants that guess tokens with a draft."""

from __future__ import annotations

from backend.domain.evaluation.document import Evaluation, Speculation
from backend.domain.evaluation.evidence.schema import AnswerSteps, Drafting, Lossless, SampledPosition
from tests import simulated

KINDS = {
    "code": AnswerSteps(answers=8, chunks=100, tokens=260.0),
    "writing": AnswerSteps(answers=8, chunks=100, tokens=150.0),
}
LOSSLESS = Lossless(
    prompts=24,
    same=23,
    divergences=(17,),
    itself_same=22,
    itself_at_once=8,
    p_value=0.7,
    drafted=900,
    samples=128,
    sampled_prompts=12,
    sampled_drafted=4000,
    positions=(SampledPosition(number=2, p_value=0.4, found_distance=0.13),),
)


def document() -> Evaluation:
    evaluation = simulated.evaluation(names=("original", "draft"), speeds=(1.0, 1.4), levels=(1, 4))
    drafting = Drafting(
        drafts=1000,
        drafted_tokens=3000,
        accepted_tokens=1500,
        accepted_by_position=(800, 500, 200),
        generated_tokens=2600,
        steps=KINDS,
    )
    first, second = evaluation.variants
    levels = [level.model_copy(update={"drafting": drafting}) for level in second.levels]
    variant = second.variant.model_copy(update={"speculation": Speculation(method="draft", tokens=3, draft_path="/d")})
    changed = second.model_copy(update={"variant": variant, "levels": levels, "lossless": LOSSLESS})
    return evaluation.model_copy(update={"variants": [first, changed]})
