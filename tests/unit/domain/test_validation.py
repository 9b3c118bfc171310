"""pydantic's errors as sentences: where, what is wrong, what to write instead, and nothing of pydantic."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from backend.domain.frozen import Frozen
from backend.domain.recipe import recipe
from backend.domain.validation import LONGEST, first_flaw, matching


class Load(Frozen):
    """With a field of every kind that the documents have."""

    streams: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = ()
    rate: float | None = Field(None, gt=0)
    share: float = Field(0.5, lt=1)
    mode: Literal["closed", "open"] = "closed"
    exact: bool = False
    name: str = Field("x", min_length=1, max_length=3)
    columns: dict[str, str] = Field(default_factory=dict)
    day: date | None = None
    variable: Annotated[str, matching(r"[A-Z_]+", "it must be a variable's name")] = "A"


class Plan(Frozen):
    load: Load


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "`load` of the plan is missing: add it."),
        ({"load": {"stream": 1}}, "`load.stream` of the plan is unknown: remove it or correct its spelling."),
        ({"load": {"streams": 4}}, "`load.streams` of the plan is wrong: it must be a list."),
        ({"load": {"streams": [1, 0]}}, "`load.streams.1` of the plan is wrong: it must be at least 1."),
        ({"load": {"streams": [9999]}}, "`load.streams.0` of the plan is wrong: it must be at most 4,096."),
        ({"load": {"streams": [1.5]}}, "`load.streams.0` of the plan is wrong: it must be a whole number."),
        ({"load": {"streams": ["many"]}}, "`load.streams.0` of the plan is wrong: it must be a whole number."),
        ({"load": {"rate": 0}}, "`load.rate` of the plan is wrong: it must be above 0."),
        ({"load": {"rate": "fast"}}, "`load.rate` of the plan is wrong: it must be a number."),
        ({"load": {"rate": float("nan")}}, "`load.rate` of the plan is wrong: it must be a finite number."),
        ({"load": {"share": 1}}, "`load.share` of the plan is wrong: it must be below 1."),
        ({"load": {"mode": "shut"}}, "`load.mode` of the plan is wrong: it must be closed or open."),
        ({"load": {"exact": "maybe"}}, "`load.exact` of the plan is wrong: it must be true or false."),
        ({"load": {"name": 3}}, "`load.name` of the plan is wrong: it must be text."),
        ({"load": {"name": ""}}, "`load.name` of the plan is wrong: it must not be empty."),
        ({"load": {"name": "long"}}, "`load.name` of the plan is wrong: it may have at most 3 characters."),
        ({"load": {"columns": []}}, "`load.columns` of the plan is wrong: it must be a mapping."),
        ({"load": {"columns": {"prompt": 1}}}, "`load.columns.prompt` of the plan is wrong: it must be text."),
        ({"load": {"day": "soon"}}, "`load.day` of the plan is wrong: it must be a day such as 2026-01-31."),
        ({"load": {"variable": "no name"}}, "`load.variable` of the plan is wrong: it must be a variable's name."),
        ({"load": 7}, "`load` of the plan is wrong: it must be a mapping."),
        (7, "The plan is wrong: it must be a mapping."),
    ],
)
def test_a_sentence_says_where_what_and_what_instead(document: Any, sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Plan.model_validate(document)
    assert first_flaw(refused.value).sentence("the plan") == sentence


def test_a_place_comes_before_the_field() -> None:
    with pytest.raises(ValidationError) as refused:
        Plan.model_validate({})
    assert first_flaw(refused.value).sentence_at("Row 2 of a.toml") == "Row 2 of a.toml: `load` is missing: add it."


def test_a_long_name_is_cut() -> None:
    with pytest.raises(ValidationError) as refused:
        Plan.model_validate({"load": {}, "x" * 10_000: 1})
    assert len(first_flaw(refused.value).field) == LONGEST + 1


@given(
    st.dictionaries(
        st.sampled_from(["name", "steps", "serving", "limits"]), st.none() | st.integers() | st.text(max_size=9)
    )
)
def test_nothing_of_pydantic_is_in_a_recipes_refusal(document: dict[str, Any]) -> None:
    try:
        recipe.read(document)
    except recipe.InvalidRecipe as refused:
        assert not re.search("input should|valid |pydantic|value error|extra inputs", str(refused), re.IGNORECASE)
