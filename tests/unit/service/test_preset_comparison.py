"""What a model and its presets cost a token, and that a preset's name goes by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.catalog.bundled import presets as bundled
from backend.domain.planner.planned_load import PlannedLoad
from backend.domain.planner.preset_titles import FIGURES, PresetRow, title_presets
from backend.domain.planner.presets import CONCURRENCIES, GOALS
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe import recipe, step_words
from backend.service import Workspace
from backend.service.machines import targets
from backend.service.models import models
from backend.service.plans import auto_target, token_prices
from backend.service.presets import preset_comparison as beside
from tests.homes import open_home
from tests.measured import probed

LLAMA_8B, LLAMA_70B, STARTER = "meta-textgeneration-llama-3-8b", "meta-textgeneration-llama-3-70b", "starter"
CHAT = PlannedLoad().expected


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Of a machine that was measured before."""
    opened = open_home(Path(tmp_path_factory.mktemp("prices")))
    probed(opened)
    return opened


def at_level(concurrency: int) -> ExpectedLoad:
    return CHAT.model_copy(update={"concurrency": concurrency})


def presets_of(name: str) -> list[bundled.Preset]:
    return [preset for preset in bundled.load().values() if preset.model == name]


@pytest.mark.parametrize("concurrency", [1, 16, 64])
@pytest.mark.parametrize("name", [LLAMA_8B, LLAMA_70B, STARTER])
def test_no_preset_is_called_cheaper_or_faster_than_its_figures(
    workspace: Workspace, name: str, concurrency: int
) -> None:
    comparison = beside.compare(workspace, presets_of(name), at_level(concurrency))
    assert comparison.original is not None and (name == STARTER) == (
        comparison.original.price_per_million_output is None
    )
    for row, preset in zip(comparison.rows, presets_of(name), strict=True):
        if preset.goal in {"lower-cost", "lower-latency"}:
            if row.ratio is None:
                assert name == STARTER and preset.goal == "lower-cost" and row.title == "INT8 (W8A8)", (
                    "this machine has no price"
                )
                continue
            assert row.holds == (row.ratio[0] * row.ratio[1] < 0.98**2)
            assert name != STARTER or row.title == "INT8 (W8A8) + draft", "slower a token than the original"
            named = row.title in {GOALS[preset.goal].title, "Lowest cost", "Lowest latency"}
            assert named == (bool(row.holds) and not row.beaten_by), row
            assert f"{concurrency} stream" in row.note and FIGURES[preset.goal].name in row.note


@pytest.mark.parametrize("name", [LLAMA_8B, LLAMA_70B, STARTER])
def test_compare_names_a_presets_goal_only_where_figures_hold_at_every_load(workspace: Workspace, name: str) -> None:
    chosen = presets_of(name)
    at_loads = [beside.compare(workspace, chosen, at_level(concurrency)) for concurrency in CONCURRENCIES]
    for preset, named in zip(chosen, beside.short_names(workspace, chosen, CHAT), strict=True):
        holds = [row.holds and not row.beaten_by for at in at_loads if (row := at.row(preset.id))]
        if preset.goal in {"lower-cost", "lower-latency"}:
            called = named in {GOALS[preset.goal].title, "Lowest cost", "Lowest latency"}
            assert called == all(holds), (preset.id, named, holds)
            assert called or named.startswith(step_words.recipe_title(preset.recipe))
        else:
            assert named == GOALS[preset.goal].title
    cheap = next(preset for preset in presets_of(LLAMA_70B) if preset.goal == "lower-cost")
    assert beside.short_names(workspace, [cheap], CHAT) == ["INT4 (AWQ)"], "dearer than the original at 64 streams"


def test_only_the_cheapest_of_all_is_the_lowest(workspace: Workspace) -> None:
    original, cheap = (
        token_prices.estimate_tokens(workspace, models.resolve_facts(workspace, LLAMA_8B), created, None, CHAT)
        for created in (token_prices.ORIGINAL, recipe.read({"steps": [{"quantize": {"method": "awq"}}]}))
    )
    rows = title_presets(
        [PresetRow("dear", "lower-cost", "as it was", original), PresetRow("cheap", "lower-cost", "AWQ", cheap)],
        original,
    )
    assert [(row.title, row.holds) for row in rows] == [("as it was", False), ("Lowest cost", True)]
    (unknown,) = title_presets([PresetRow("none", "lower-cost", "AWQ", None)], original)
    assert unknown.holds is None and unknown.title == "AWQ"


def test_no_preset_is_called_lower_cost_beside_one_of_another_goal_that_costs_less(workspace: Workspace) -> None:
    """`lower-cost` was dearer per token than `balanced` at both ends."""
    dear, cheap = (
        token_prices.estimate_tokens(workspace, models.resolve_facts(workspace, LLAMA_8B), created, None, CHAT)
        for created in (token_prices.ORIGINAL, recipe.read({"steps": [{"quantize": {"method": "awq"}}]}))
    )
    assert dear and cheap and dear.price_per_million_output
    original = dear.model_copy(
        update={"price_per_million_output": tuple(2 * end for end in dear.price_per_million_output)}
    )
    rows = [PresetRow("m/lower-cost", "lower-cost", "W8A8", dear), PresetRow("m/balanced", "balanced", "AWQ", cheap)]
    first, second = title_presets(rows, original)
    assert first.holds and first.beaten_by == "m/balanced" and first.title == "W8A8"
    assert first.note.endswith("`m/balanced` has the lowest price per token.")
    assert second.title == "Balanced"
    (alone,) = title_presets(rows[:1], original)
    assert alone.title == "Lowest cost" and not alone.beaten_by


def test_presets_are_priced_in_one_region(workspace: Workspace) -> None:
    """Two regions were mixed in one list."""
    known = targets.hardwares(workspace)
    matches = [known.find(preset.target) for preset in bundled.load().values()]
    assert {where.instance.price_region for where in matches if where and where.instance} == {"us-west-2"}


def test_a_model_has_a_price_a_million_tokens_with_its_region_and_load(workspace: Workspace) -> None:
    model = models.resolve_facts(workspace, LLAMA_8B)
    best, named = (
        token_prices.find_price(workspace, model),
        token_prices.find_price(workspace, model, target="ml.g5.12xlarge"),
    )
    assert best is not None and named is not None and named.chosen and not best.chosen
    assert best.per_million_output[1] <= named.per_million_output[1]
    ranked = auto_target.rank_instances(workspace, model, recipe.ORIGINAL, CHAT, token_prices.CHEAPEST_TOKEN)
    assert ranked[0].target == best.target, "the instance of the price is the first of the list"
    ends = [estimate.price_per_million_output[1] for estimate in ranked if estimate.price_per_million_output]
    assert ends == sorted(ends) and len(ends) == len(ranked)
    assert best.region and best.region in best.words and "16 streams" in best.words and "estimated" in best.words
    assert token_prices.find_price(workspace, model, target="ml.nothing") is None
    assert (
        token_prices.find_price(workspace, models.resolve_facts(workspace, LLAMA_70B), target="ml.g5.xlarge") is None
    ), "it does not fit"
