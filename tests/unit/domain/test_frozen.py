"""The base of every document: frozen, closed, finite; and nothing beside it makes a frozen model of its own."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from backend.domain.frozen import Frozen

BACKEND = Path(__file__).resolve().parents[3] / "backend"


class Figure(Frozen):
    model_name: str = "m"
    value: float = 0.0
    by_name: dict[str, float] = Field(default_factory=dict)


@pytest.mark.parametrize(
    "fields", [{"value": math.nan}, {"value": math.inf}, {"by_name": {"a": math.nan}}, {"vale": 1.0}]
)
def test_unknown_fields_and_what_json_cannot_hold_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Figure.model_validate(fields)


def test_a_field_never_changes() -> None:
    with pytest.raises(ValidationError):
        Figure().value = 1.0  # type: ignore[misc]


def test_nothing_else_makes_a_frozen_base() -> None:
    """But the settings, which import nothing of the house."""
    names = {path.name for path in BACKEND.rglob("*.py") if re.search(r"ConfigDict\(.*frozen=True", path.read_text())}
    assert names == {"frozen.py", "settings.py"}
