"""Verdicts of evaluations on trained drafts: whether a recipe with only the draft is faster than the model alone."""

from __future__ import annotations

from collections.abc import Iterator

from backend.domain.figures import figure
from backend.domain.frozen import Frozen
from backend.service.evaluations import evaluations
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs import artifacts
from backend.service.workspace import Workspace


class DraftVerdict(Frozen):
    """The outcome of one evaluation for a recipe with only the draft, at one load."""

    evaluation: str
    pays: bool
    sentence: str


def find_verdicts(workspace: Workspace, artifact_id: str) -> list[DraftVerdict]:
    """Return the decided verdicts on tokens per second, newest evaluation first. Recipes with other steps do not count,
    since their speed is not the draft's alone."""
    uses = {
        view.id
        for view in artifacts.variants(workspace)
        if view.manifest.draft and view.manifest.draft.id == artifact_id and len(view.manifest.recipe.steps) == 1
    }
    if not uses:
        return []
    return [verdict for view in evaluations.listing(workspace) for verdict in _verdicts_in(view, uses)]


def _verdicts_in(view: EvaluationView, uses: set[str]) -> Iterator[DraftVerdict]:
    # Find the variants that use the draft.
    names = {result.variant.name for result in view.document.variants[1:] if result.variant.source in uses}
    for comparison in view.document.comparison:
        if (
            comparison.variant in names
            and comparison.metric == "output_tokens_per_s"
            and comparison.ratio
            and comparison.outcome != "undecided"
        ):
            # Say whether it pays at this load.
            pays = comparison.outcome == "better"
            times = (
                f"{figure(comparison.ratio, 3)} times the tokens/s of {comparison.baseline} at {comparison.load.words}"
            )
            words = f"It pays: {times}." if pays else f"It does not pay: {times}. It is not recommended there."
            yield DraftVerdict(evaluation=view.id, pays=pays, sentence=words)
