"""A preset: a named recipe for a model, a goal and a target, with what others published of it. Pure and content-hashed.

What is estimated of a preset is computed when it is asked for and never part of it; what was measured is found by model
and recipe. Knows nothing of files, YAML or the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen, digest
from backend.domain.recipe import step_words
from backend.domain.recipe.recipe import Recipe
from backend.domain.validation import matching

Goal = Literal["lower-cost", "lower-latency", "balanced", "highest-quality"]
Origin = Literal["bundled", "imported", "own"]
"""`bundled` comes with Whetstone, `imported` was read from a file, `own` was saved here."""

PresetId = Annotated[
    str,
    matching(
        r"[a-z0-9][a-z0-9._-]{0,59}/[a-z0-9][a-z0-9._-]{0,59}",
        "it must be two words of a-z, 0-9, dot, dash and underscore with a slash between, such as `my-model/fast`",
    ),
]
"""`llama-3-70b-instruct/lower-cost`: what it is for, a slash, which one."""
CONCURRENCIES = (1, 4, 16, 64)
"""Concurrent requests at which a preset is estimated, besides those of the load."""


class GoalWords(NamedTuple):
    title: str
    meaning: str


GOALS: dict[Goal, GoalWords] = {
    "lower-cost": GoalWords("Lower cost", "the lowest price per hour that still serves many concurrent requests"),
    "lower-latency": GoalWords("Lower latency", "the lowest latency per user"),
    "balanced": GoalWords("Balanced", "between the lowest price and the lowest latency"),
    "highest-quality": GoalWords(
        "Highest quality", "the original's weights, and only what does not change its answers"
    ),
}


class Claim(Frozen):
    """One figure as somebody published it, word for word, with the conditions they state. Nothing here was checked by
    running it.

    `against` is what they compare `value` with. `cheaper_than` names an instance where the figure is a price against
    its: then today's prices can be held against it.
    """

    metric: str = Field(min_length=1, max_length=200)
    value: float
    against: float | None = None
    unit: str = Field(min_length=1, max_length=40)
    statement: str = Field(min_length=1, max_length=2000)
    conditions: str = Field("", max_length=2000)
    source: str = Field(min_length=1, max_length=400)
    url: Annotated[str, matching(r"(https?://\S+)?", "it must be a web address")] = Field("", max_length=2000)
    cheaper_than: str | None = Field(None, max_length=80)

    @property
    def figures(self) -> str:
        """`2,400 tokens/s, against 1,200`, or `79.88 %`."""
        against = "" if self.against is None else f", against {self.against:,.4g}"
        return f"{self.value:,.4g} {self.unit}{against}"


class Preset(Frozen):
    """`model` is an id or a folder, as `--model` takes it; `target` as `--target` takes it."""

    id: PresetId
    model: str = Field(min_length=1, max_length=500)
    goal: Goal
    target: str = Field("local", min_length=1, max_length=80)
    summary: str = Field("", max_length=1000)
    recipe: Recipe
    published: tuple[Claim, ...] = Field((), max_length=20)

    @property
    def hash(self) -> str:
        """sha256 over the canonical JSON of all of it, names too: another hash is another preset under that id."""
        return digest(self.model_dump(mode="json"))


def names(presets: Sequence[Preset]) -> list[str]:
    """Return the names of presets of one model side by side: what they do, where an id only names a goal, which figures
    may deny; else the id's own word."""
    words = [preset.id.partition("/")[2] for preset in presets]
    own = [
        step_words.recipe_title(preset.recipe) if word in GOALS else word
        for preset, word in zip(presets, words, strict=True)
    ]
    return labels(presets, own)


def labels(presets: Sequence[Preset], titles: Sequence[str]) -> list[str]:
    """Short names to tell presets apart side by side, from a title each: what all share is left out, what tells alike
    ones apart is added; the id where that is not enough."""
    models = [preset.id.partition("/")[0] for preset in presets]
    if len(set(models)) == 1:
        names = list(titles)
    elif len(set(titles)) == 1:
        names = models
    else:
        names = [f"{title}, {model}" for title, model in zip(titles, models, strict=True)]
    names = [
        f"{name}, {preset.target}" if names.count(name) > 1 else name
        for name, preset in zip(names, presets, strict=True)
    ]
    return names if len(set(names)) == len(names) else [preset.id for preset in presets]
