"""Presets: every bundled one is valid and does what its goal says, kinds of figures stay apart, the store follows the
file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from backend.catalog.bundled import evaluations, published
from backend.catalog.bundled import presets as bundled
from backend.domain.errors import InvalidCatalog, InvalidPreset, NotFound, ReadOnly
from backend.domain.planner.presets import GOALS, Preset, labels
from backend.domain.recipe.recipe import Recipe
from backend.service import Workspace
from backend.service.machines import targets
from backend.service.models import models
from backend.service.plans import cases
from backend.service.presets import preset_figures, presets
from backend.service.presets.presets import PresetFilter
from backend.service.studio import demo_export
from backend.store import sync_state
from tests import simulated, studio
from tests.homes import open_home
from tests.measured import probed

PRESETS = list(bundled.load().values())
PUBLISHED = [preset for preset in PRESETS if preset.model in published.published()]
W8A8 = Recipe.model_validate({"name": "w8a8", "steps": [{"quantize": {"method": "w8a8"}}]})


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return probed_home(tmp_path_factory.mktemp("home"))


def probed_home(folder: Path) -> Workspace:
    """Of a machine that was measured before, since figures of presets are estimated for it too."""
    opened = open_home(folder)
    probed(opened)
    return opened


def own(preset_id: str = "mine/fast", **changes: object) -> Preset:
    fields = {"id": preset_id, "model": "starter", "goal": "balanced", "recipe": W8A8, **changes}
    return Preset.model_validate(fields)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.id)
def test_every_bundled_preset_is_valid_on_its_model_and_target(shared_home: Workspace, preset: Preset) -> None:
    verdict = cases.resolve(
        shared_home, models.resolve_facts(shared_home, preset.model), preset.recipe, preset.target
    ).verdict
    assert verdict.valid, [reason.message for reason in verdict.reasons]


def test_each_of_the_eleven_pre_optimized_models_has_a_preset_for_every_goal() -> None:
    names = {name for name, model in published.published().items() if model.preoptimized}
    assert len(names) == 11
    assert {(preset.model, preset.goal) for preset in PUBLISHED} == {(name, goal) for name in names for goal in GOALS}
    assert all(preset.id.endswith(f"/{preset.goal}") for preset in PRESETS)


@pytest.mark.parametrize("model", sorted({preset.model for preset in PUBLISHED}))
def test_a_goal_is_what_the_estimates_and_prices_say(shared_home: Workspace, model: str) -> None:
    own = {preset.goal: preset for preset in PUBLISHED if preset.model == model}
    hours = {goal: targets.find(shared_home, preset.target).price_per_hour or math.inf for goal, preset in own.items()}
    at_one = {goal: preset_figures.estimate(shared_home, preset, concurrencies=(1,)) for goal, preset in own.items()}
    waits = {goal: estimated.levels[0].tpot_ms for goal, estimated in at_one.items()}
    assert min(hours, key=lambda goal: hours[goal]) == "lower-cost"
    middles = {goal: math.sqrt(ends[0] * ends[1]) for goal, ends in waits.items() if ends}
    assert min(middles, key=lambda goal: middles[goal]) == "lower-latency"
    assert hours["balanced"] <= hours["lower-latency"] and middles["balanced"] <= middles["lower-cost"]
    assert (
        own["highest-quality"].recipe.step("quantize") is None and own["highest-quality"].recipe.step("prune") is None
    )


def test_published_figures_are_the_announcements_with_todays_prices_next_to_them(shared_home: Workspace) -> None:
    latency = presets.show(shared_home, "llama-3-70b/lower-latency")
    (claim,) = latency.preset.published
    assert latency.preset.target == "ml.p5.48xlarge" and (claim.value, claim.against, claim.unit) == (
        2400,
        1200,
        "tokens/s",
    )
    assert "~2400 tokens/sec on a ml.p5.48xlarge" in claim.statement and claim.url.startswith("https://aws.amazon.com/")
    cost = presets.show(shared_home, "llama-3-70b-instruct/lower-cost")
    assert cost.preset.target == "ml.g5.12xlarge" and cost.preset.published[0].value == 79.88
    mine, other = (targets.find(shared_home, name).price_per_hour for name in ("ml.g5.12xlarge", "ml.p4d.24xlarge"))
    assert mine and other and cost.today[0] is not None and f"{1 - mine / other:.2%} cheaper" in cost.today[0]
    assert cost.today[1] is None  # the weights' claim is no comparison of prices
    assert [preset.id for preset in PRESETS if preset.published and "llama-3-70b" not in preset.id] == []


def test_every_starter_preset_has_a_bundled_measurement_with_provenance(shared_home: Workspace) -> None:
    evaluated = preset_figures.PresetEvaluations(shared_home)
    starters = [preset for preset in PRESETS if preset not in PUBLISHED]
    assert [preset.goal for preset in starters] == ["lower-cost", "lower-latency", "highest-quality"]
    for preset in starters:
        measurements = evaluated.measurements(preset)
        assert measurements and all(
            one.bundled and one.versions and one.hardware and one.levels for one in measurements
        ), preset.id
        assert measurements[0].baseline == preset.model and measurements[0].verdicts
    assert all(not evaluated.measurements(preset) for preset in PUBLISHED)


def test_no_bundled_figure_without_a_hit_rate_goes_unmarked(shared_home: Workspace) -> None:
    """Times to the first token of prompts that came round were shown as measured."""
    evaluated = preset_figures.PresetEvaluations(shared_home)
    levels = {
        (known.id, result.name): result.levels for known in evaluations.load() for result in known.document.variants
    }
    shown = [result for preset in PRESETS for result in evaluated.measurements(preset)]
    for outcome in shown:
        unknown = any(level.prefix_cache_hit_rate is None for level in levels[outcome.evaluation, outcome.variant])
        assert outcome.provenance.endswith("times to first token are too low.") is unknown, outcome.variant
    assert len(shown) >= 3


def test_an_evaluation_of_the_home_is_attached_by_model_and_recipe(tmp_path: Path) -> None:
    opened = probed_home(tmp_path)
    presets.put(opened, [own(model="starter-draft"), own("mine/original", recipe=Recipe(), model="starter-draft")])
    document = simulated.evaluation()
    variants = list(document.variants)
    first = variants[0].model_copy(update={"name": "starter-draft"})
    second = variants[1].model_copy(
        update={"variant": variants[1].variant.model_copy(update={"recipe_hash": W8A8.hash, "source": "a-0"})}
    )
    studio.evaluation(opened, document.model_copy(update={"variants": [first, second]}), "e-own")
    result = presets.show(opened, "mine/fast").measured
    assert "e-own" in [one.evaluation for one in result] and result[-1].variant is not None
    other = presets.show(opened, "llama-3-8b/lower-cost").measured
    assert other == ()


def test_bundled_presets_were_measured_once_on_the_starter_and_once_in_the_demo() -> None:
    loaded = evaluations.load()
    assert len({known.id for known in loaded}) == len(loaded) and any(known.model == "starter" for known in loaded)
    shown = [row["id"] for row in json.loads((demo_export.FOLDER / "evaluations.json").read_text())]
    assert shown and set(shown) <= {known.id for known in loaded}


def test_a_demonstration_lists_presets_and_refuses_new_ones(tmp_path: Path) -> None:
    shown = demo_export.seed(tmp_path)
    probed(shown)
    assert presets.count(shown) == len(PRESETS)
    result = presets.show(shown, "starter/lower-cost").measured
    assert result and len({one.evaluation for one in result}) == len(result)
    with pytest.raises(ReadOnly):
        presets.put(shown, [own()])
    with pytest.raises(ReadOnly):
        presets.save(shown, "mine/fast", model="starter", goal="balanced", recipe=W8A8)


def test_the_store_follows_the_file_by_content_hash(tmp_path: Path) -> None:
    opened = open_home(tmp_path)
    before = presets.listing(opened, limit=1000)
    assert [known.preset for known in before] == PRESETS and {known.origin for known in before} == {"bundled"}
    changed = before[0].preset.model_copy(update={"summary": "an older wording"})
    removed = own("old/gone")
    with opened.store.session() as session:
        for preset in (changed, removed):
            presets.kept.put(session, presets._row(preset, "bundled", 1))
        sync_state.set_version(session, "presets", "an earlier version's")
    presets.put(opened, [own()])
    after = presets.listing(opened, limit=1000)
    assert [known.preset for known in after] == [own(), *PRESETS]
    assert after[1].created_at >= before[0].created_at and after[2].created_at == before[1].created_at


def test_filters_and_pages(shared_home: Workspace) -> None:
    def ids(**fields: str) -> list[str]:
        return [known.preset.id for known in presets.listing(shared_home, PresetFilter(**fields), limit=1000)]

    assert ids(model="meta-llama/Meta-Llama-3-8B") == [f"llama-3-8b/{goal}" for goal in GOALS]
    assert len(ids(goal="balanced")) == 11 and ids(target="sagemaker:ml.g5.12xlarge", goal="balanced") == [
        "mixtral-8x7b-instruct/balanced",
        "mixtral-8x7b/balanced",
    ]
    assert ids(words="MISTRAL cost") == ["mistral-7b/lower-cost", "mistral-7b-instruct/lower-cost"]
    assert ids(words="100%_") == [] and ids(origin="own") == []
    pages = [
        known.preset.id for start in (0, 20, 40, 60) for known in presets.listing(shared_home, limit=20, offset=start)
    ]
    assert pages == [preset.id for preset in PRESETS] and presets.count(shared_home) == len(PRESETS)


def test_applied_to_another_model_it_is_valid_or_says_why_and_what_would_be(shared_home: Workspace) -> None:
    fine = presets.apply(shared_home, "starter/lower-cost")
    assert fine.case.works and (fine.source, fine.case.target_name) == ("starter", "local") and fine.case.recipe == W8A8
    refused = presets.apply(shared_home, "llama-3-70b/lower-cost", model="starter", target="local").case
    assert not refused.works and refused.verdict.reasons and refused.verdict.suggestion is not None
    assert cases.resolve(shared_home, refused.model, refused.verdict.suggestion, refused.target_name).works
    moved = presets.apply(shared_home, "llama-3-8b/lower-cost", target="ml.g4dn.xlarge").case
    assert moved.target.name == "ml.g4dn.xlarge" and moved.works


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        (own("llama-3-8b/balanced"), "comes with Whetstone and is another preset"),
        (own("taken/one", summary="another"), "There is another preset `taken/one` already"),
    ],
)
def test_an_id_that_is_taken_is_refused_and_nothing_is_written(tmp_path: Path, preset: Preset, message: str) -> None:
    opened = open_home(tmp_path)
    presets.put(opened, [own("taken/one")])
    with pytest.raises(InvalidPreset, match=message):
        presets.put(opened, [own("first/new"), preset])
    assert presets.count(opened, PresetFilter(origin="imported")) == 1


def test_take_again_replace_and_remove(tmp_path: Path) -> None:
    opened = open_home(tmp_path)
    assert presets.put(opened, [own(), PRESETS[0]]) == [("mine/fast", "new"), (PRESETS[0].id, "unchanged")]
    assert presets.find(opened, PRESETS[0].id).origin == "bundled"
    assert presets.put(opened, [own()]) == [("mine/fast", "unchanged")]
    assert presets.put(opened, [own(summary="new")], replace=True) == [("mine/fast", "replaced")]
    presets.remove(opened, "mine/fast")
    with pytest.raises(NotFound, match="the nearest are"):
        presets.find(opened, "mine/fast")
    with pytest.raises(InvalidPreset, match="stays"):
        presets.remove(opened, PRESETS[0].id)


def test_an_own_recipe_is_saved_and_a_wrong_one_refused(tmp_path: Path) -> None:
    opened = open_home(tmp_path)
    known = presets.save(opened, "mine/fast", model="starter", goal="lower-cost", recipe=W8A8, summary="Good here.")
    assert known.origin == "own" and known.preset.recipe == W8A8
    with pytest.raises(InvalidPreset, match="two words of a-z"):
        presets.save(opened, "Mine", model="starter", goal="lower-cost", recipe=W8A8)
    with pytest.raises(InvalidPreset, match="`goal` of the preset is wrong: it must be lower-cost"):
        presets.save(opened, "mine/b", model="starter", goal="fame", recipe=W8A8)


def test_labels_leave_out_what_all_share_and_tell_alike_ones_apart() -> None:
    def labels_of(titles: str, *ids: str) -> list[str]:
        by_name = {preset.id: preset for preset in PRESETS}
        return labels([by_name[name] for name in ids], titles.split())

    assert labels_of("Balanced AWQ", "llama-3-8b/balanced", "llama-3-8b/lower-cost") == ["Balanced", "AWQ"]
    assert labels_of("AWQ AWQ", "llama-3-8b/balanced", "mistral-7b/balanced") == ["llama-3-8b", "mistral-7b"]
    assert labels_of("Balanced AWQ", "llama-3-8b/balanced", "mistral-7b/lower-cost") == [
        "Balanced, llama-3-8b",
        "AWQ, mistral-7b",
    ]
    assert labels_of("AWQ AWQ", "llama-2-7b-chat/lower-cost", "llama-2-7b-chat/balanced") == [
        "AWQ, ml.g6.xlarge",
        "AWQ, ml.g5.xlarge",
    ]
    assert labels([own(), own("mine/other")], ["AWQ", "AWQ"]) == ["mine/fast", "mine/other"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('goal = "lower-cost"', 'goal = "cheap"', "row `llama-3-70b-instruct/lower-cost`: `goal` is wrong"),
        ('id = "llama-3-70b-instruct/lower-latency"', 'id = "llama-3-70b-instruct/lower-cost"', "two rows with id"),
        ('published = ["llama-3-70b-speculation"]', 'published = ["nothing"]', "there is no claim `nothing`"),
        ('source = "announcement"', 'source = "hearsay"', r"\[sources.hearsay\] needs a title and a url"),
        ('method = "awq"', 'method = "awk"', "row `llama-3-70b-instruct/lower-cost`: `recipe"),
    ],
)
def test_a_file_edited_wrongly_is_one_sentence(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = bundled.PATH.read_text()
    assert old in text
    path = tmp_path / "presets.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidCatalog, match=message) as raised:
        bundled.load(path)
    assert "\n" not in str(raised.value)
