"""What a kept payoff map predicts of a draft that was measured, at the acceptance that it had."""

from __future__ import annotations

import json

import pytest

from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.evaluation.evidence.schema import Drafting
from backend.domain.jobs.jobs import JobState, PayoffSpec
from backend.domain.planner import draft_payoff
from backend.domain.recipe.recipe import ORIGINAL
from backend.service import Workspace
from backend.service.evaluations import predicted_gains
from backend.service.models import models, variants
from backend.settings import ASSETS
from tests import payoffs, simulated, studio


def test_a_draft_is_predicted_by_the_map_of_its_target_and_a_lookup_by_none(home: Workspace) -> None:
    card, target = models.resolve(home, "starter"), variants.resolve(home, "starter")
    evaluation = simulated.evaluation(names=("original", "draft", "lookup"), speeds=(1.0, 1.4, 1.2), levels=(4,))
    drafting = Drafting(drafts=100, drafted_tokens=400, accepted_tokens=200, accepted_by_position=(90, 60, 30, 20))
    drafted = Speculation(method="draft", tokens=4, draft_path=str(ASSETS / "starter" / "draft"))
    chosen: list[Variant] = [
        target,
        target.model_copy(update={"speculation": drafted}),
        target.model_copy(update={"speculation": Speculation(method="ngram", tokens=4)}),
    ]
    results = [
        each.model_copy(
            update={
                "variant": variant,
                "levels": [level.model_copy(update={"drafting": drafting}) for level in each.levels],
            }
        )
        for each, variant in zip(evaluation.variants, chosen, strict=True)
    ]
    document = evaluation.model_copy(update={"variants": results})
    assert predicted_gains.predict(home, document) == {}, "no map yet"
    key = draft_payoff.map_key(
        card.revision, draft_payoff.weights_hash(ORIGINAL), target.serving, document.versions, document.hardware
    )
    map_document = payoffs.payoff_map(key)
    spec = PayoffSpec(
        variants=(target,),
        probes=draft_payoff.make_probes(card),
        prompts="p",
        revision=card.revision,
        weights=key.weights,
    )
    studio.put(home, spec, "Map", JobState.SUCCEEDED, result=json.dumps({"map": map_document.model_dump(mode="json")}))
    ((name, load), result), *others = predicted_gains.predict(home, document).items()
    assert (name, load, others) == ("draft", results[1].levels[0].load.key, [])
    assert result.interval is not None
    assert result.gain == pytest.approx(result.interval[0] * 1.08) == pytest.approx(result.interval[1] / 1.08)
