"""Compare: evaluations side by side, their prices and limits, and what the address keeps of them. Figures are
simulated, stores are real."""

from __future__ import annotations

import re

import pytest
from streamlit.testing.v1 import AppTest

from app import navigation
from app.compare import side_by_side
from app.evaluate import load_fields
from backend.domain.errors import RequestError
from backend.domain.evaluation.document import Evaluation
from backend.domain.what_if import costs
from backend.domain.what_if.costs import WhatIf
from backend.service import Workspace
from backend.service.evaluations import evaluations
from tests import simulated, studio
from tests.helpers.evaluation_pages import two_evaluations


def test_nothing_to_compare_says_what_will_stand_there(studio_home: Workspace) -> None:
    assert "side by side" in studio.says(studio.open_page("compare"))


def test_compare_opens_with_the_latest_evaluation(studio_home: Workspace) -> None:
    two_evaluations(studio_home)
    at = studio.open_page("compare")
    latest = evaluations.listing(studio_home, limit=1)[0].id
    assert studio.param(at, "ids") == latest and "Speed per user against total throughput" in studio.headings(at)[0]
    assert "ids" not in studio.open_page("compare", presets="starter/lower-cost").query_params


def test_evaluations_of_the_url_stand_side_by_side_pareto_first(studio_home: Workspace) -> None:
    at = studio.open_page("compare", ids=",".join([*two_evaluations(studio_home), "e-gone"]))
    assert "Speed per user against total throughput" in studio.headings(at)[0]
    assert "e-gone" in at.error[0].value
    conditions = next(frame.value for frame in at.dataframe if "Condition" in frame.value.columns)
    assert "Hardware" in list(conditions["Condition"])
    assert "Workload" not in list(conditions["Condition"])
    assert "there is no test between them" in studio.says(at)
    at.toggle(key="compare_differences").set_value(False).run()
    studio.check(at)
    conditions = next(frame.value for frame in at.dataframe if "Condition" in frame.value.columns)
    assert "Workload" in list(conditions["Condition"])


def test_a_price_is_recomputed_and_kept_in_the_url(studio_home: Workspace) -> None:
    at = studio.open_page("compare", ids=",".join(two_evaluations(studio_home)))
    at.number_input(key="compare_price_e-2").set_value(0.6).run()
    at.number_input(key="compare_discount").set_value(50.0).run()
    studio.check(at)
    assert studio.param(at, "prices") == ",0.6"
    assert studio.param(at, "discount") == "50"
    assert "the cheapest here" in studio.says(at)
    again = studio.open_page("compare", ids="e-1,e-2", prices=",0.6", discount="50")
    assert again.number_input(key="compare_price_e-2").value == 0.6
    assert again.number_input(key="compare_discount").value == 50.0


def test_what_is_downloaded_has_the_prices_that_are_shown(studio_home: Workspace) -> None:
    two_evaluations(studio_home)

    def script() -> None:
        import streamlit as st

        from app.compare import form, what_if_url
        from app.session import workspace
        from backend.service.evaluations import evaluations

        what_if_url.follow()
        views = [evaluations.show(workspace(), name) for name in ("e-1", "e-2")]
        for request, document in form.what_if(views):
            st.text(
                f"{request.per_hour} {request.discount} {document.options.price_per_hour} {document.options.discount}"
            )

    at = AppTest.from_function(script, default_timeout=studio.TIMEOUT_S).run()
    assert [text.value for text in at.text] == ["None None 1.2 0.0", "None None None 0.0"]
    at.number_input(key="compare_price_e-2").set_value(0.6).run()
    at.number_input(key="compare_discount").set_value(50.0).run()
    studio.check(at)
    assert [text.value for text in at.text] == ["None 0.5 1.2 0.5", "0.6 0.5 0.6 0.5"]


def test_the_fields_follow_the_address_when_a_link_or_back_changes_it(studio_home: Workspace) -> None:
    at = studio.open_page("compare", ids=",".join(two_evaluations(studio_home)))
    at.number_input(key="compare_price_e-2").set_value(0.6).run()
    at.slider[0].set_value(at.slider[0].max / 4).run()
    assert at.number_input(key="compare_price_e-2").value == 0.6
    at.query_params["prices"] = "2.5,0.8"
    del at.query_params["slo_ttft"]
    at.run()
    studio.check(at)
    assert [field.value for field in at.number_input][:2] == [2.5, 0.8]
    assert at.slider[0].value == at.slider[0].max
    at.number_input[1].set_value(0.9).run()
    assert studio.param(at, "prices") == "2.5,0.9"
    assert at.code[0].value.endswith("?ids=e-1%2Ce-2&prices=2.5%2C0.9"), "the link to copy is that of the fields"


def test_a_latency_limit_names_the_best_level_of_each_variant_and_stays_in_the_url(studio_home: Workspace) -> None:
    at = studio.open_page("compare", ids=",".join(two_evaluations(studio_home)))
    before = list(at.dataframe[0].value["Best at"])
    slider = at.slider[0]
    slider.set_value(slider.max / 4).run()
    studio.check(at)
    remaining = studio.param(at, "slo_ttft")
    assert float(remaining) == pytest.approx(slider.max / 4)
    limited = list(at.dataframe[0].value["Best at"])
    assert limited != before
    again = studio.open_page("compare", ids="e-1,e-2", slo_ttft=remaining)
    assert list(again.dataframe[0].value["Best at"]) == limited
    at.slider[0].set_value(slider.max).run()
    assert "slo_ttft" not in at.query_params


@pytest.mark.parametrize(
    "query", [{"prices": "x,-1,nan"}, {"discount": "many"}, {"discount": "400"}, {"prices": "1e400"}]
)
def test_malformed_prices_in_the_url_are_left_out(studio_home: Workspace, query: dict[str, str]) -> None:
    at = studio.open_page("compare", ids=",".join(two_evaluations(studio_home)), **query)
    assert at.number_input(key="compare_price_e-1").value == 1.2
    assert not at.error


def test_picking_evaluations_writes_the_url(studio_home: Workspace) -> None:
    two_evaluations(studio_home)
    at = studio.open_page("compare")
    at.multiselect(key="compare_ids").set_value(["e-2"]).run()
    studio.check(at)
    assert studio.param(at, "ids") == "e-2"
    assert studio.headings(at) and at.success[0].value.startswith("**w8a8** is "), "the verdict comes first"
    assert re.fullmatch(r"Second, \d{4}-\d\d-\d\d \d\d:\d\d", at.multiselect(key="compare_ids").options[0])


def test_repricing_takes_the_hour_less_the_discount() -> None:
    level = simulated.level(4)
    document = simulated.evaluation(["a"], [1.0], per_hour=2.0).model_copy(
        update={"variants": [simulated.result("a", [level])]}
    )
    assert costs.repriced(document, WhatIf(per_hour=2.0)) is document
    (half,) = costs.repriced(document, WhatIf(discount=0.5)).variants[0].levels
    (double,) = costs.repriced(document, WhatIf(per_hour=4.0, discount=0.5)).variants[0].levels
    assert half.price and double.price
    assert double.price.per_million_output == pytest.approx(2.0 / (level.output_tokens_per_s * 3600 / 1e6))
    assert double.price.blended == pytest.approx(2 * (half.price.blended or 0))


def test_a_document_without_a_price_stays_without_one() -> None:
    document = simulated.evaluation(per_hour=None)
    assert costs.repriced(document, WhatIf(discount=0.3)) == document
    assert side_by_side.cheapest_sentence(document) is None


def test_words_of_the_url_are_read_in_order_and_once() -> None:
    assert navigation.distinct_values(["a,b", "b, c ,"]) == ["a", "b", "c"]
    assert load_fields.parse_levels("1, 4 16") == (1, 4, 16)
    assert side_by_side.parse_prices("1,,2", 4) == [1.0, None, 2.0, None]
    with pytest.raises(RequestError):
        load_fields.parse_levels("four")


def test_merged_documents_keep_every_provenance(studio_home: Workspace) -> None:
    views = [evaluations.show(studio_home, identity) for identity in two_evaluations(studio_home)]
    whole: Evaluation = side_by_side.merge(views, [view.document for view in views])
    assert [result.name for result in whole.variants][::4] == ["original · A", "original · B"]
    assert "Another CPU" in str(whole.hardware)
