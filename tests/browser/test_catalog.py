"""The catalog by clicks: fill in the filters, open a model by its row, see why a technique is greyed, and go on from
there."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.accessibility import violations
from tests.browser.running import Studio
from tests.browser.visit import visiting

CHECK_MS = 120_000
"""All models are checked for the instance, once."""
GPTQ = "huggingface-llm-mistral-7b-openorca-gptq"


def test_from_a_filter_to_the_reason_why_a_technique_is_greyed(chromium: Browser, empty_studio: Studio) -> None:
    with visiting(chromium, empty_studio.url) as visit:
        visit.open("/catalog")
        visit.field("Runs on").fill("ml.g5.12xlarge")
        visit.page.get_by_role("option", name="ml.g5.12xlarge", exact=True).click()
        visit.page.wait_for_url(re.compile(r"[?&]catalog_instance=ml\.g5\.12xlarge(&|$)"), timeout=CHECK_MS)
        checked = visit.main.get_by_text("our own check of the architecture on ml.g5.12xlarge")
        expect(checked).to_be_visible(timeout=CHECK_MS)  # a page that has its address may not have begun to be drawn
        visit.drawn()  # what is drawn anew moves the field
        visit.field("Search").fill("openorca gptq")
        field, count = (
            place.bounding_box() for place in (visit.field("Search"), visit.main.get_by_test_id("InputInstructions"))
        )
        assert field and count and count["y"] > field["y"] + field["height"], "the count is not over what is typed"
        visit.field("Search").press("Tab")
        expect(visit.main.get_by_text("1 to 1 of 1")).to_be_visible()
        visit.drawn()  # the address is written when the script ends
        assert "catalog_instance=ml.g5.12xlarge" in visit.page.url and "catalog_words=openorca+gptq" in visit.page.url
        visit.reload()
        expect(visit.main.get_by_text("1 to 1 of 1")).to_be_visible()
        visit.first_row()
        visit.heading("Mistral 7B OpenOrca GPTQ")
        expect(visit.main.get_by_text("Compatibility on ml.g5.12xlarge")).to_be_visible()
        expect(visit.main.get_by_text("is already quantized (gptq)").first).to_be_visible()
        visit.button("Import").click()
        visit.heading("Import")
        expect(visit.field("Folder, hub id, S3 prefix, GGUF file or package")).to_have_value(
            "TheBloke/Mistral-7B-OpenOrca-GPTQ"
        )


def test_a_published_model_can_be_read_everywhere(
    chromium: Browser, empty_studio: Studio, screenshots: Path | None
) -> None:
    with visiting(chromium, empty_studio.url) as visit:
        visit.open(f"/model?id={GPTQ}&model_on=ml.g5.12xlarge")
        for check in visit.appearances(every=screenshots is not None):
            visit.photograph(screenshots, f"model-published-{check}.png")
            expect(
                visit.main.get_by_role("figure", name=re.compile("on each kind of instance, estimated"))
            ).to_be_attached()
            assert visit.overflow() == 0 and violations(visit.page) == []
