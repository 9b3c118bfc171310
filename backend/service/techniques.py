"""Each technique alone on one model and one target: works, or why not and what would."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from backend.domain.model import ModelFacts
from backend.domain.recipe import Recipe
from backend.domain.techniques import supported
from backend.service import recipes
from backend.service.workspace import Workspace

TITLES = {
    ("quantize", "w8a8"): "INT8 (W8A8)",
    ("quantize", "awq"): "INT4 (AWQ)",
    ("speculate", "draft"): "Draft model",
    ("speculate", "ngram"): "N-gram speculation",
    ("compile", None): "Ahead-of-time compile",
}


class TechniqueCheck(BaseModel):
    """`reasons` is empty where it works; `nearest` names the steps of the nearest valid recipe."""

    model_config = ConfigDict(frozen=True)

    title: str
    technique: str
    method: str | None
    works: bool
    reasons: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    nearest: str | None = None


def titles() -> list[str]:
    return [_title(technique, method) for technique, method, _, _ in supported()]


def checks(workspace: Workspace, model: ModelFacts, target: str = "local") -> list[TechniqueCheck]:
    """One a row of the capability table, in its order. Raises InvalidRecipe for an unknown target."""
    return [_check(workspace, model, technique, method, target) for technique, method, _, _ in supported()]


def _check(workspace: Workspace, model: ModelFacts, technique: str, method: str | None, target: str) -> TechniqueCheck:
    step = {technique: {"method": method} if method else {}}
    verdict, _ = recipes.check(workspace, model, Recipe.model_validate({"name": technique, "steps": [step]}), target)
    suggestion = verdict.suggestion
    nearest = None
    if suggestion is not None and suggestion.steps:
        nearest = ", ".join(" ".join(filter(None, (s.technique, getattr(s, "method", None)))) for s in suggestion.steps)
    return TechniqueCheck(
        title=_title(technique, method), technique=technique, method=method, works=verdict.valid, nearest=nearest,
        reasons=tuple(reason.message for reason in verdict.reasons),
        sources=tuple(reason.source for reason in verdict.reasons),
    )  # fmt: skip


def _title(technique: str, method: str | None) -> str:
    return TITLES.get((technique, method), " ".join(filter(None, (technique, method))))
