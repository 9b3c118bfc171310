"""Labels of the models that are here, and the one that a page begins with."""

from __future__ import annotations

from collections.abc import Sequence

from backend.catalog.bundled import models as bundled
from backend.domain.evaluation.document import read_evaluation
from backend.domain.validation import readable_rows
from backend.present.source_names import distinct_labels, short_name
from backend.service.models import models, variants
from backend.service.workspace import Workspace
from backend.store import history
from backend.store import models as imported


def list_present(workspace: Workspace) -> dict[str, str]:
    """Return the label of each model whose files are here, by its source: the newest import first, the models that come
    with Whetstone last."""
    present = [known for known in models.list_known(workspace) if known.present]
    present.sort(key=lambda known: known.card.origin == "starter")
    return distinct_labels({known.source: short_name(known.card.id) for known in present})


def choose_first(workspace: Workspace, sources: Sequence[str]) -> str:
    """Return the source, one of these in the order of `list_present`, that somebody works with: the first one, or the
    model of the latest evaluation if that is newer than its import."""
    # 1. The latest evaluation, and the newest import.
    with workspace.store.read() as session:
        evaluations, import_row = history.list_evaluations(session, limit=1), imported.find(session, sources[0])
    latest = next(iter(readable_rows(evaluations, lambda row: (row.created_at, read_evaluation(row.document)))), None)
    if latest is None or (import_row is not None and import_row.created_at > latest[0]):
        return sources[0]
    # 2. The model of that evaluation: its first variant, or what that was made from.
    first = latest[1].variants[0].variant
    measured = variants.split_engine(first.source)[0] if first.kind == "model" else first.original_path
    if measured is None or measured not in sources or bundled.card(measured) is not None:
        return sources[0]
    return measured
