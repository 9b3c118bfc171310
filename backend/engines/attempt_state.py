"""State that an attempt leaves in a file, from which a later attempt at the same work continues."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError


class AttemptState(BaseModel):
    """Base of such states; `key` names the work, and only an attempt at the same work continues from it."""

    model_config = ConfigDict(extra="forbid")

    key: str

    @classmethod
    def read(cls, path: Path, key: str) -> Self | None:
        """Read the state; None if there is none of this key, or it cannot be read."""
        try:
            state = cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        return state if state.key == key else None
