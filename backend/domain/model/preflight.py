"""The result of checking a model's files before any job: problems, and notes."""

from __future__ import annotations

from backend.domain.frozen import Frozen


class Preflight(Frozen):
    """Each a sentence, None where nothing is wrong. What was not looked at says nothing."""

    refusal: str | None = None
    """Why the files are no sound model: nothing can be made of it, and it cannot be served."""
    unbuilt: str | None = None
    """Why transformers cannot build it: it can be served, but not scored, and its weights cannot be rewritten."""
    unrewritable: str | None = None
    """Why our engine cannot rewrite its weights; they can be served and scored."""
    further_heads: bool = False
    """Its files hold what predicts further tokens too: heads, or layers behind the last one."""
    no_chat: str | None = None
    """Why it cannot be asked in its chat template: text alone is sent, and calibrates."""
    notes: tuple[str, ...] = ()
    """Notes on what is read in another way than a person may expect."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that a person is told of a model that is not refused."""
        reasons = (self.unbuilt, self.unrewritable, self.no_chat)
        return (*filter(None, reasons), *self.notes)
