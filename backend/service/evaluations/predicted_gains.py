"""Gains that a payoff map predicts for the drafts of an evaluation, at their measured acceptance."""

from __future__ import annotations

from pathlib import Path

from backend.catalog.cards.card import read_card
from backend.catalog.cards.draft_head import read_head
from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.document import Evaluation, Variant
from backend.domain.evaluation.evidence.speculation_gains import PredictedGain, PredictedGains, drafted_levels
from backend.domain.planner.draft_payoff import DraftShape, PayoffMap, map_key, weights_hash
from backend.domain.recipe.speculation import SPECULATE
from backend.service.evaluations import payoff
from backend.service.plans import payoff_maps
from backend.service.workspace import Workspace


def predict(workspace: Workspace, document: Evaluation) -> PredictedGains:
    """Return predictions by (variant, load). It needs a map measured on the same machine with the same vLLM, and the
    draft's files. Methods without a draft model, such as n-gram, have none."""
    gains = {}
    for drafted in drafted_levels(document):
        matched = _find_map(workspace, document, drafted.result.variant)
        speculation, length = drafted.result.variant.speculation, drafted.drafting.length
        if matched is not None and speculation is not None and length is not None:
            payoff_map, draft = matched
            gain = payoff_map.gain_at(drafted.level.concurrency, speculation.tokens, draft, length)
            gains[drafted.result.name, drafted.level.load.key] = PredictedGain(gain, payoff_map.interval(gain))
    return gains


def _find_map(workspace: Workspace, document: Evaluation, variant: Variant) -> tuple[PayoffMap, DraftShape] | None:
    """Return the map of the variant's target and the size of its draft; None if either is missing."""
    if variant.speculation is None or variant.speculation.draft_path is None or variant.kind == "url":
        return None
    method = SPECULATE[variant.speculation.method]
    if method.once:  # all its tokens by one step, where a map counts a step for each
        return None
    try:
        card, recipe = payoff.require_original(workspace, variant.model_copy(update={"speculation": None}))
        read = read_head if method.needs == "head" else read_card
        draft = read(Path(variant.speculation.draft_path))
    except WhetstoneError:  # the artifact or its draft is gone: nothing is predicted
        return None
    target_key = map_key(card.revision, weights_hash(recipe), variant.serving, document.versions, document.hardware)
    payoff_map = payoff_maps.find_by_key(workspace, target_key)
    return (
        (payoff_map, DraftShape(parameters=draft.parameters, layers=draft.layers)) if payoff_map is not None else None
    )
