"""The catalog's page in every state, and the page of a model that is known by published facts alone."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.models import catalog_filters
from app.models import catalog_table as catalog_table
from backend.catalog.bundled import published
from backend.domain.jobs.jobs import JobState
from backend.domain.rules.catalog_filter import CatalogFilter
from backend.service import Workspace
from backend.service.models import catalog, technique_checks
from tests import studio

pytestmark = pytest.mark.without_supervisor

LLAMA, GPTQ = "meta-textgeneration-llama-3-70b", "huggingface-llm-mistral-7b-openorca-gptq"


def shown(at: AppTest) -> Any:
    return at.dataframe[0].value


def test_the_catalog_shows_what_is_published_beside_what_is_checked(studio_home: Workspace) -> None:
    at = studio.open_page("catalog")
    table = shown(at)
    assert list(table["Model"])[:2] == ["starter", "starter-draft"] and "1 to 20 of 75" in studio.says(at)
    assert table.loc[0, "INT8 (W8A8)"] == "✓ works" and table.loc[1, "Draft model"] == "✗ no"
    cells = [catalog_filters.CELLS[name] for name in catalog_filters.CELLS]
    assert [list(table.loc[0, name]) for name in cells] == [[], [], []]  # no page lists the starter
    falcon = table[table["Id"] == "huggingface-llm-falcon-180b-chat-bf16"].iloc[0]
    assert [list(falcon[name]) for name in cells] == [["No"], ["Yes"], ["No"]] and falcon["Fits"] == ""
    assert "never derived from each other" in studio.says(at)
    assert not studio.links(at), "a click on a row opens it: no second list of links"


def test_what_does_not_fit_is_said_once_in_place_of_crosses(studio_home: Workspace) -> None:
    """On a processor nearly every published model is too large."""
    at = studio.open_page("catalog")
    table = shown(at)
    unfit = table[table["Fits"] == ""]
    assert len(unfit) > 10 and not (unfit[list(catalog_table.GROUPS)] == "✗").to_numpy().any()
    assert f"{len(unfit)} of these 20 models do not fit on this machine" in studio.says(at)
    assert "Choose an instance under Runs on" in studio.says(at)
    somewhere = studio.open_page("catalog", catalog_instance="ml.p4d.24xlarge")
    assert "do not fit" not in studio.says(somewhere) and set(shown(somewhere)["Fits"]) == {"✓ fits"}


@pytest.mark.parametrize(
    ("fits", "words"),
    [
        ([False, True], "1 of these 2 models does not fit on this machine as published. A mark in its row"),
        ([False, False, True], "2 of these 3 models do not fit on this machine as published. A mark in their rows"),
        ([False], "This model does not fit on this machine"),
        ([False, False], "None of these models fits on this machine"),
    ],
)
def test_one_model_that_does_not_fit_is_not_said_as_several(fits: list[bool], words: str) -> None:
    lines: list[Any] = [SimpleNamespace(fits=each) for each in fits]
    assert words in str(catalog_table.unfit_sentence(lines, None))


def test_a_blank_cell_of_the_page_stays_blank(studio_home: Workspace) -> None:
    table = shown(studio.open_page("catalog", catalog_words="phi-2"))
    assert (
        list(table["Published: quantization"][0]) == ["Yes"] and list(table["Published: speculative decoding"][0]) == []
    )


def test_all_filters_stand_in_the_address(studio_home: Workspace) -> None:
    values = {
        "catalog_words": "llama",
        "catalog_technique": ["INT4 (AWQ)", "Published: provided draft"],
        "catalog_instance": "ml.g5.12xlarge",
        "catalog_family": "LLaMA",
        "catalog_licence": "llama2",
        "catalog_origin": "published",
        "catalog_min_parameters": "6",
        "catalog_max_parameters": "20",
        "catalog_min_context": "4096",
        "catalog_max_context": "4096",
        "catalog_sort": "Most parameters",
    }
    at = studio.open_page("catalog", **values)  # type: ignore[arg-type]
    result = shown(at)
    assert result["Id"][0].startswith("meta-textgeneration-llama-2-13b") and 0 < len(result) < 10
    assert (
        set(result["INT4 (AWQ)"]) == {"✓ works"}
        and set(result["Context"]) == {4096}
        and set(result["Licence"]) == {"llama2"}
    )
    for name, value in values.items():
        assert at.query_params[name] in (value, [value]), name


def test_the_filter_on_an_instance_answers_with_those_that_fit(studio_home: Workspace) -> None:
    at = studio.open_page(
        "catalog",
        catalog_technique="INT4 (AWQ)",
        catalog_instance="ml.g5.12xlarge",
        catalog_origin="published",
        catalog_sort="Most parameters",
    )
    expected = CatalogFilter(techniques=("awq",), target="ml.g5.12xlarge", origins=("published",))
    assert f"of {catalog.count(studio_home, expected)}." in studio.says(at) and "on ml.g5.12xlarge" in studio.says(at)
    assert "Llama 3 70B" in list(shown(at)["Model"])
    assert "No model matches" in studio.says(
        studio.open_page("catalog", catalog_technique="INT8 (W8A8)", catalog_instance="ml.inf2.48xlarge")
    )


def test_why_not_is_said_with_reason_and_source(studio_home: Workspace) -> None:
    at = studio.open_page("catalog", catalog_why="true", catalog_origin="comes with Whetstone")
    assert "no provided draft" in " ".join(at.dataframe[1].value["Why not"]) and set(at.dataframe[1].value["Source"])


def test_the_table_fits_the_screen_and_every_kind_has_its_group(studio_home: Workspace) -> None:
    at = studio.open_page("catalog")
    order = list(at.dataframe[0].proto.column_order)
    assert order == list(catalog_table.COMPACT)
    assert sum(catalog_table.column_config()[name]["width"] for name in order) <= 882, (
        "what a window of 1280 leaves beside the menu"
    )
    row = shown(at).iloc[0]
    assert (row["8-bit"], row["Prune"], row["Compile"]) == ("✓", "5 of 6", "✓")  # it has no experts
    assert row["Lowest hourly price"].startswith("ml.")
    assert sorted(kind for kinds in catalog_table.GROUPS.values() for kind in kinds) == sorted(
        technique_checks.kind_titles()
    )
    whole = studio.open_page("catalog", catalog_columns="true")
    assert not whole.dataframe[0].proto.column_order


def test_a_catalog_model_has_a_token_price_with_load_region_and_instance(studio_home: Workspace) -> None:
    at = studio.open_page("catalog", catalog_words="llama-3-8b")
    row, message = shown(at).iloc[0], studio.says(at)
    assert re.fullmatch(r"[\d.]+–[\d.]+", row["USD per million"]) and row["Priced on"].startswith("g")
    assert "estimated at 622 tokens in, 250 out, 16 streams, on the instance with the lowest price per token" in message
    assert "us-west-2" in message and "us-east-1" not in message
    named = studio.open_page("catalog", catalog_words="llama-3-8b", catalog_instance="ml.g5.12xlarge")
    assert set(shown(named)["Priced on"]) == {"g5.12xlarge"} and "the instance chosen above" in studio.says(named)
    assert shown(named).iloc[0]["USD per million"] != row["USD per million"]


def test_a_models_page_opens_with_its_price_on_the_instance_that_is_chosen(studio_home: Workspace) -> None:
    at = studio.open_page("model", id=LLAMA)
    text, tiles = studio.says(at), {tile.label: tile.value for tile in at.metric}
    assert re.fullmatch(r"[\d.]+ to [\d.]+ USD", tiles["Price per million output tokens"])
    assert re.search(r"estimated on ml\.\S+, the lowest price per token", text)
    assert list(tiles) == ["Parameters", "Memory", "Price per million output tokens", "Best preset"]
    assert re.search(
        r"On ml\.\S+ \(us-\S+\) at [\d.]+ USD per hour; 622 tokens in, 250 out, 16 streams; estimated", text
    )
    named = studio.says(studio.open_page("model", id=LLAMA, model_on="ml.p4d.24xlarge"))
    assert "estimated on ml.p4d.24xlarge, chosen below" in named and "On ml.p4d.24xlarge (us-west-2)" in named
    small = studio.says(studio.open_page("model", id=LLAMA, model_on="ml.g5.xlarge"))
    assert "No price per million tokens on ml.g5.xlarge: it does not run there" in small


def test_names_look_like_links_and_figures_keep_their_digits(studio_home: Workspace) -> None:
    proto = studio.open_page("catalog").dataframe[0].proto.arrow_data
    assert f"color: {catalog_table.LINK['light']}" in proto.styler.styles


def test_every_filter_can_be_reached_without_the_menu(studio_home: Workspace) -> None:
    at = studio.open_page("catalog")
    assert not [field for field in (*at.sidebar.multiselect, *at.sidebar.number_input) if "catalog" in field.key]
    assert {"Origin", "Family", "Licence"} <= {field.label for field in at.multiselect}


def test_nothing_found_offers_a_way_on(studio_home: Workspace) -> None:
    assert "No model matches" in studio.says(studio.open_page("catalog", catalog_words="nothing like it"))


def test_a_folder_used_before_stands_in_the_catalog_even_when_it_is_gone(studio_home: Workspace) -> None:
    card = studio.optimize_spec(studio_home).model.model_copy(
        update={"id": "mine", "origin": "folder", "path": "/nowhere/mine"}
    )
    studio.artifact(studio_home, studio.optimize_job(studio_home, JobState.SUCCEEDED), card)
    table = shown(studio.open_page("catalog"))
    assert list(table["Model"])[2] == "mine" and list(table["Origin"])[2] == "folder is gone"


def test_the_catalog_pages_what_is_long_and_filters_before_it_pages(studio_home: Workspace) -> None:
    last = studio.open_page("catalog", catalog_page="4")
    assert "61 to 75 of 75" in studio.says(last) and list(shown(last)["Id"])[-1] == "huggingface-llm-phi-2"
    assert list(shown(studio.open_page("catalog", catalog_words="PHI-2"))["Model"]) == ["Phi-2"]


@pytest.mark.parametrize("required", ["99", "-1", "x", "<b>", "9" * 400])
def test_a_page_that_is_none_shows_one_that_is(studio_home: Workspace, required: str) -> None:
    assert "of 75" in studio.says(studio.open_page("catalog", catalog_page=required))


@pytest.mark.parametrize("required", ["<img src=x onerror=y>", "é" * 5000, "%", "a\0b", "no such technique"])
def test_odd_filters_in_the_address_leave_a_page_and_no_markup(studio_home: Workspace, required: str) -> None:
    names = ("technique", "instance", "sort", "min_parameters", "family", "origin")
    for request in ({"words": required}, dict.fromkeys(names, required)):
        at = studio.open_page("catalog", **request)
        assert "<img" not in "".join(str(element.value) for element in (*at.markdown, *at.caption))
        assert at.title[0].value == "Catalog" and len(at.error) == 0


def test_bounds_the_wrong_way_round_are_one_sentence(studio_home: Workspace) -> None:
    at = studio.open_page("catalog", catalog_min_parameters="70", catalog_max_parameters="7")
    assert len(at.error) == 1 and "exchange them" in at.error[0].value


def test_a_file_edited_wrongly_is_told_and_the_studio_still_opens(
    studio_home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio.open_page("catalog")
    edited = tmp_path / "models.toml"
    edited.write_text(published.MODELS.read_text().replace("falcon-40b-instruct-bf16", "falcon-40b-bf16"))
    monkeypatch.setattr(published, "MODELS", edited)
    at = studio.open_page("catalog")
    assert len(at.error) == 0 and "two rows with jumpstart" in studio.says(at)
    assert "of 75" in studio.says(at)
    for page in ("home", "build", "import"):
        assert len(studio.open_page(page).error) == 0


def test_every_column_that_is_configured_is_one_of_the_table(studio_home: Workspace) -> None:
    line = catalog.listing(studio_home, CatalogFilter(words="phi-2"))[0]
    assert (
        set(catalog_table.column_config())
        <= set(catalog_table.row(line))
        >= set(technique_checks.kind_titles().values())
    )


def test_a_published_model_shows_its_cells_beside_our_checks_and_why_one_is_greyed(studio_home: Workspace) -> None:
    at = studio.open_page("model", id=GPTQ, model_on="ml.g5.12xlarge")
    text = studio.says(at)
    assert "Mistral 7B OpenOrca GPTQ" in text and "Not downloaded" in text and "apache-2.0" in text
    assert "As published" in text and "Compatibility on ml.g5.12xlarge" in text
    assert "is already quantized (gptq): start from its 16-bit original" in text and "Closest alternative" in text
    assert "N-gram speculation works" in text.replace("*", "") or re.search(r"N-gram speculation.* work", text)
    assert text.count("is already quantized (gptq)") == 5, (
        "alike refusals are said once: those of quantizing and pruning, and of methods with a reason more"
    )
    assert re.search(r"\d+ techniques\*\*\] ", text)
    assert [badge for badge in text.splitlines() if "badge" in badge and "Yes" in badge]
    assert "Lowest hourly price that fits: `ml." in text and "estimated" in text


def test_a_published_model_leads_to_import_and_to_the_builder(studio_home: Workspace) -> None:
    at = studio.open_page("model", id=LLAMA)
    assert {"Import", "Plan a recipe"} <= {button.label for button in at.button}
    assert "Gated" in studio.says(at) and "Pre-optimized" in studio.says(at)
    assert "meta-llama/Llama-3.2-1B" in studio.says(at)


def test_what_was_chosen_on_the_model_is_carried_into_the_builder(studio_home: Workspace) -> None:
    at = studio.open_page("model", id=LLAMA, model_on="ml.g5.12xlarge", model_weights="INT4 (AWQ)")
    next(button for button in at.button if button.label == "Plan a recipe").click().run()
    studio.check(at)
    assert at.query_params["target"] in ("ml.g5.12xlarge", ["ml.g5.12xlarge"])
    assert "awq" in studio.says(at).lower()
    assert "622 tokens in, 250 out, 16 streams" in studio.says(at), "the load of the price on the page before"


def test_a_draft_that_is_published_but_not_known_is_said(studio_home: Workspace) -> None:
    assert "no public one is known" in studio.says(studio.open_page("model", id="huggingface-llm-mistral-7b"))


def test_memory_is_shown_by_weights_and_as_a_table(studio_home: Workspace) -> None:
    at = studio.open_page("model", id=LLAMA, model_weights="INT4 (AWQ)")
    rows = next(table.value for table in at.dataframe if "Accelerators used" in table.value)
    fits = dict(zip(rows["Hardware"], rows["Fits"], strict=True))
    assert fits["4 x A10G (g5)"] == "yes" and fits["1 x A10G (g5)"] == "no"
    original = studio.open_page("model", id=LLAMA)
    rows = next(table.value for table in original.dataframe if "Accelerators used" in table.value)
    assert dict(zip(rows["Hardware"], rows["Fits"], strict=True))["4 x A10G (g5)"] == "no"


def test_an_embedding_model_has_no_cache(studio_home: Workspace) -> None:
    assert "an embedding model generates no tokens" in studio.says(
        studio.open_page("model", id="huggingface-textembedding-bloom-7b1")
    )


@pytest.mark.parametrize("name", list(published.published())[::24])
def test_a_published_models_page_opens(studio_home: Workspace, name: str) -> None:
    assert len(studio.open_page("model", id=name).error) == 0


def test_a_catalog_with_filters_opens_import_without_them(studio_home: Workspace) -> None:
    at = studio.open_page("catalog", catalog_words="gptq", catalog_instance="ml.g5.12xlarge")
    next(button for button in at.button if button.label == "Import a model").click().run()
    studio.check(at)
    assert at.title[0].value == "Import" and not at.query_params
