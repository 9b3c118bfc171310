"""The load is set once, in the sidebar: pages follow it, links and Back carry it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app import url_parameters
from app.load_bar import address
from app.sidebar import load_bar
from backend.service import Workspace
from backend.service.evaluations import workloads
from backend.service.planned_load import workload_tokens
from tests import simulated, studio
from tests.helpers.price_tables import keep, refreshed

LINES = b'{"prompt": "What is a token?", "max_tokens": 40}\n{"prompt": "Why? And how?", "max_tokens": 20}\n'
LLAMA = "meta-textgeneration-llama-3-8b"
FULL = {"load": "2000-300", "load_users": "8", "slo_ttft": "400", "load_kl": "0.05", "load_target": "ml.g5.12xlarge"}


def opened(at: AppTest, name: str) -> AppTest:
    """Another page by the menu, whose links have no parameters."""
    for parameter in list(at.query_params):
        del at.query_params[parameter]
    at.switch_page(f"../pages/{name}.py").run()
    studio.check(at)
    return at


def test_a_change_is_in_the_address_at_once_and_goes_on_to_other_pages(studio_home: Workspace) -> None:
    at = studio.open_page("jobs")
    assert "Chat, 622/250 tokens · 16 users" in studio.says(at) and "load" not in at.query_params
    at.selectbox(key="load_profile").set_value("code").run()
    at.number_input(key="load_concurrency").set_value(4).run()
    studio.check(at)
    assert (studio.param(at, "load"), studio.param(at, "load_users")) == ("code", "4")
    at = opened(at, "presets")
    assert "Estimates are for 4 users, 1,500/13 tokens." in studio.says(at)
    assert (studio.param(at, "load"), studio.param(at, "load_users")) == ("code", "4")


def test_tokens_of_ones_own_are_a_custom_load_and_back_undoes_it(studio_home: Workspace) -> None:
    at = studio.open_page("jobs")
    at.number_input(key="load_input").set_value(99).run()
    assert studio.param(at, "load") == "99-250" and at.selectbox(key="load_profile").value is None
    del at.query_params["load"]
    studio.step_back(at)
    assert at.selectbox(key="load_profile").value == "chat" and at.number_input(key="load_input").value == 622


def test_fields_that_the_session_has_dropped_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one run is being stopped and the next has begun, either may drop fields of the session."""
    full = address.parse({**FULL, "load_discount": "0.1", "load_region": "eu-west-1"})
    monkeypatch.setattr(st, "session_state", {address.LOAD: full, "load_input": 99})
    load_bar._take()
    assert address.current() == full.model_copy(update={"input_tokens": 99})


@pytest.mark.parametrize(("page", "own"), [("jobs", {}), ("catalog", {"catalog_words": "gptq"})])
def test_a_change_before_the_browser_has_the_new_address_keeps_the_last_one(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch, page: str, own: dict[str, str]
) -> None:
    """Also on a page that has a field of its own in the address, which only the browser may write."""
    monkeypatch.setattr(url_parameters, "BARE_LATE_S", 3600.0)
    at = studio.open_page(page, **own)
    at.number_input(key="load_concurrency").set_value(4).run()
    del at.query_params["load_users"]  # what the browser had when the next field was left
    at.number_input(key="load_input").set_value(99).run()
    studio.check(at)
    assert (studio.param(at, "load"), studio.param(at, "load_users")) == ("99-250", "4")
    assert {name: studio.param(at, name) for name in own} == own


@pytest.mark.parametrize("changed", [{}, {"load_rate": "3"}])
def test_a_choice_that_is_reported_as_empty_changes_nothing(studio_home: Workspace, changed: dict[str, str]) -> None:
    """Streamlit's browser code does so at times with a choice that nobody touched, also as one goes back."""
    at = studio.open_page("jobs", load_rate="2", slo_percentile="p99")
    for parameter in ("load_rate", "slo_percentile"):
        del at.query_params[parameter]
    for name, value in changed.items():
        at.query_params[name] = value
    for key in ("load_demand", "load_percentile"):
        at.segmented_control(key=key).set_value(None)
    at.run()
    studio.check(at)
    assert {name: studio.param(at, name) for name in at.query_params} == changed
    assert at.segmented_control(key="load_percentile").value == "p95"
    assert at.segmented_control(key="load_demand").value == ("Requests per second" if changed else "Users at once")


def test_every_card_is_at_the_load_of_a_shared_link(studio_home: Workspace) -> None:
    at = studio.open_page("build", model=LLAMA, recipe="awq", **FULL)
    text = studio.says(at)
    assert "Estimated for ml.g5.12xlarge: 2,000 tokens in, 300 out, 8 streams" in text
    assert "Time to first token: your limit is 400 ms, and the estimate" in text
    at.button(key="build_use-floor").click().run()
    studio.check(at)
    assert "max_kl: 0.05" in studio.param(at, "recipe")
    at = studio.open_page("model", id=LLAMA, **FULL)
    assert at.selectbox(key="model_on").value == "ml.g5.12xlarge"
    assert "2,000 tokens in, 300 out, 8 streams" in studio.says(at)
    ranked = at.dataframe[0].value
    assert ranked["≈ Price vs lowest"].min() == 1.0
    assert len(ranked) == 5 and set(ranked["Your limits"]) <= {"✓", "✗"} and "✓" in set(ranked["Your limits"])
    at = studio.open_page("catalog", catalog_words="llama-3-8b", **FULL)
    assert "estimated at 2,000 tokens in, 300 out, 8 streams, on the instance chosen above" in studio.says(at)
    at = studio.open_page("evaluate", new="true", **FULL)
    assert at.text_input(key="evaluate_concurrency").value == "1, 8"
    assert at.number_input(key="evaluate_max_tokens").value == 300


def test_a_discount_is_off_every_price(studio_home: Workspace) -> None:
    usual = studio.says(studio.open_page("build", model=LLAMA, target="ml.g5.12xlarge", recipe="awq"))
    cheaper = studio.says(
        studio.open_page("build", model=LLAMA, target="ml.g5.12xlarge", recipe="awq", load_discount="0.5")
    )
    assert "7.09 USD per hour" in usual and "3.545 USD per hour" in cheaper and "50% off" in cheaper


def test_an_open_page_follows_a_change(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", new="true")
    assert at.text_input(key="evaluate_concurrency").value == "1, 4"
    at.button(key="evaluate_use-load").click().run()
    assert at.text_input(key="evaluate_concurrency").value == "1, 16"
    assert at.number_input(key="evaluate_max_tokens").value == 250
    at.number_input(key="load_concurrency").set_value(2).run()
    studio.check(at)
    assert at.text_input(key="evaluate_concurrency").value == "1, 2"
    at = studio.open_page("build", model=LLAMA, recipe="awq")
    at.selectbox(key="load_place").set_value("ml.g5.12xlarge").run()
    studio.check(at)
    assert studio.param(at, "target") == "ml.g5.12xlarge"


def test_compare_has_the_limits_and_the_floor_of_the_load(studio_home: Workspace) -> None:
    name = studio.evaluation(studio_home, simulated.evaluation())
    at = studio.open_page("compare", ids=name, slo_ttft="5", load_kl="0.0001")
    assert at.slider[0].value == 5.0 and at.number_input(key="load_ttft").value == 5.0
    text = studio.says(at)
    assert "Above your quality floor (KL divergence at most 0.0001)" in text
    assert "96/64 tokens in/out. Your load is another, 16 users, 622/250 tokens: no figure is adapted to it." in text
    at.slider[0].set_value(10.0).run()
    assert studio.param(at, "slo_ttft") == "10" and "TTFT p95 ≤ 10.0 ms" in studio.says(at)
    at.number_input(key="load_ttft").set_value(1e6).run()
    studio.check(at)
    assert at.slider[0].value == at.slider[0].max and studio.param(at, "slo_ttft") == "1000000"


def test_the_percentile_of_the_limits_is_chosen_once(studio_home: Workspace) -> None:
    name = studio.evaluation(studio_home, simulated.evaluation())
    at = studio.open_page("compare", ids=name, slo_ttft="1000", slo_percentile="p99")
    assert at.slider[0].label == "At most: Time to first token, p99 (ms)"
    assert "TTFT p99 ≤" in studio.says(at)
    assert any("TTFT p99 (ms)" in table.value.columns for table in at.dataframe)
    at.button_group(key="load_percentile").set_value("p50").run()
    studio.check(at)
    assert studio.param(at, "slo_percentile") == "p50"
    assert at.slider[0].label == "At most: Time to first token, p50 (ms)"
    at = studio.open_page("evaluate", new="true", evaluate_load="Search", slo_ttft="5", slo_percentile="p90")
    assert at.selectbox(key="evaluate_search_share").value == 90
    at = studio.open_page("evaluate", id=name, evaluate_view="Price", slo_percentile="p90", evaluate_cost_ttft="0.001")
    assert "TTFT p90 at most 0.00100 ms" in studio.says(at)


def test_a_rate_is_planned_on_as_many_instances_as_carry_it(studio_home: Workspace) -> None:
    at = studio.open_page("build", model=LLAMA, target="ml.g5.12xlarge", recipe="awq", load_rate="2")
    text = studio.says(at)
    assert "622 tokens in, 250 out, 2 requests/s (" in text and "in flight)" in text
    assert "USD per million output that 2 requests/s ask for" in text and "One instance carries" not in text
    at.number_input(key="load_rate").set_value(500.0).run()
    studio.check(at)
    text = studio.says(at)
    assert studio.param(at, "load_rate") == "500" and "Chat, 622/250 tokens · 500 requests/s" in text
    assert "One instance carries" in text and "instances carry 500 requests/s, for" in text
    at = studio.open_page("model", id=LLAMA, load_rate="500")
    assert "per token that 500 requests/s ask for" in studio.says(at)
    assert all(" x ml." in name for name in at.dataframe[0].value["Instance"])
    at = studio.open_page("catalog", catalog_words="llama-3-8b", load_rate="500")
    assert "Prices are per token that 500 requests/s ask for" in studio.says(at)
    at = studio.open_page("presets", presets_of_model="llama-3-70b-instruct", load_rate="0.5")
    assert "Estimates are for 0.5 requests/s, 622/250 tokens. Prices are per token" in studio.says(at)


def test_users_and_rate_are_exchanged_and_the_form_begins_with_the_rate(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", new="true", load_users="8")
    assert at.radio(key="evaluate_load").value == "Streams"
    at.button_group(key="load_demand").set_value("Requests per second").run()
    studio.check(at)
    assert studio.param(at, "load_rate") == "1" and at.radio(key="evaluate_load").value == "Rate"
    at.number_input(key="load_rate").set_value(2.5).run()
    assert at.text_input(key="evaluate_rate").value == "2.5"
    at.button_group(key="load_demand").set_value("Users at once").run()
    studio.check(at)
    assert "load_rate" not in at.query_params and studio.param(at, "load_users") == "8"
    assert at.radio(key="evaluate_load").value == "Streams"
    name = studio.evaluation(studio_home, simulated.evaluation())
    at = studio.open_page("compare", ids=name, load_rate="3")
    assert "Your load is another, 3 requests/s, 622/250 tokens: no figure is adapted to it." in studio.says(at)


def test_prices_are_those_of_the_chosen_region_on_every_page(studio_home: Workspace) -> None:
    at = studio.open_page("jobs")
    assert "Prices: us-west-2, or the region named beside a price." in studio.says(at)
    assert [link.proto.label for link in at.sidebar.get("page_link")] == ["Fetch another region"]
    keep(studio_home, refreshed(datetime(2026, 11, 1, tzinfo=UTC), "eu-west-1", ml_g5_12xlarge=8.4))
    # 1. Chosen in the bar, in the address, on Build.
    at = studio.open_page("build", model=LLAMA, target="ml.g5.12xlarge", recipe="awq")
    at.selectbox(key="load_price_region").set_value("eu-west-1").run()
    studio.check(at)
    assert studio.param(at, "load_region") == "eu-west-1"
    text = studio.says(at)
    assert "8.4 USD per hour, on demand, eu-west-1, as of 2026-11-01" in text and "prices of eu-west-1" in text
    # 2. An instance without a price there says so, and is ranked nowhere.
    text = studio.says(
        studio.open_page("build", model=LLAMA, target="ml.g6.12xlarge", recipe="awq", load_region="eu-west-1")
    )
    assert "price: none is known in eu-west-1 for ml.g6.12xlarge" in text
    at = studio.open_page("model", id=LLAMA, load_region="eu-west-1")
    assert set(at.dataframe[0].value["Instance"]) == {"ml.g5.12xlarge"}
    at = studio.open_page("hardware", load_region="eu-west-1", hardware_words="g6.12xlarge")
    assert "none in eu-west-1" in {value for table in at.dataframe for value in table.value.get("Price is", ())}
    # 3. The snapshot's own region has its prices again.
    text = studio.says(
        studio.open_page("build", model=LLAMA, target="ml.g5.12xlarge", recipe="awq", load_region="us-west-2")
    )
    assert "7.09 USD per hour, on demand, us-west-2" in text


@pytest.mark.parametrize("page", ["home", "catalog", "build", "evaluate", "compare", "presets", "endpoints"])
def test_a_wrong_load_in_the_address_ends_no_page(studio_home: Workspace, page: str) -> None:
    at = studio.open_page(
        page, load="poem", load_users="-1", slo_ttft="x", load_target="ml.none", load_region="mars", load_discount="9"
    )
    text = studio.says(at)
    assert "Chat, 622/250 tokens · 16 users" in text and "ml.none" not in text and "load_target" not in at.query_params
    assert "mars" not in text and "load_region" not in at.query_params


def test_a_workload_of_ones_own_is_uploaded_in_the_bar(studio_home: Workspace) -> None:
    at = studio.open_page("jobs", load_users="2")
    at.file_uploader(key="load_upload_file").set_value(("mine.jsonl", LINES, "application/json")).run()
    studio.check(at)
    (name,) = workloads.list_saved(studio_home)
    read = workload_tokens.read_tokens(studio_home, name)
    assert read.model is not None and read.counted == 2 and read.output_tokens == 30
    assert at.selectbox(key="load_profile").value == f"file:{name}"
    assert (studio.param(at, "load_file"), studio.param(at, "load")) == (name, f"{read.input_tokens}-30")
    text = studio.says(at)
    assert f"{name}, {read.input_tokens}/30 tokens · 2 users" in text
    assert "the mean of 2 prompts, by the tokenizer of" in text and "Tokens out: the mean of" in text
    at.number_input(key="load_input").set_value(500).run()
    assert "load_file" not in at.query_params and studio.param(at, "load") == "500-30"


def test_a_link_to_a_workload_of_ones_own_fills_the_load_and_the_form(studio_home: Workspace) -> None:
    name = workloads.save(studio_home, "mine.jsonl", b'{"prompt": "What is a token?"}\n')
    at = studio.open_page("evaluate", new="true", variants="starter", load_file=name)
    tokens = workload_tokens.read_tokens(studio_home, name).input_tokens
    assert studio.param(at, "load") == f"{tokens}-250" and f"{name}, {tokens}/250 tokens" in studio.says(at)
    assert at.selectbox(key=f"evaluate_workload_{name}").value == name
    at.selectbox(key="load_profile").set_value("code").run()
    studio.check(at)
    assert "load_file" not in at.query_params and studio.param(at, "load") == "code"
    at = studio.open_page("evaluate", new="true", variants="starter", load_file="gone-12345678")
    assert "There is no workload gone-12345678 here" in studio.says(at).replace("`", "")
    assert at.selectbox(key="load_profile").value == "chat"


def test_without_a_tokenizer_characters_are_counted(studio_home: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    name = workloads.save(studio_home, "mine.jsonl", b'{"prompt": "What is a token?"}\n')
    monkeypatch.setattr(workload_tokens, "_find_model", lambda workspace: None)
    at = studio.open_page("jobs", load_file=name)
    assert studio.param(at, "load") == "4-250" and "at 4 characters a token" in studio.says(at)
