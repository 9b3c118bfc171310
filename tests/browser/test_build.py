"""Build as a person uses it: back and forward, a refresh, two people at once."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from tests.browser.running import Studio
from tests.browser.visit import Visit, visiting

VALID = "Valid for this model on this machine"
W8A8, NGRAM, DRAFT = "Quantize to 8 bits (w8a8)", "Speculate with n-grams", "Speculate with a draft model"


def start(visit: Visit, goal: str) -> None:
    visit.open("/build?model=starter")
    visit.button(goal).click()
    expect(visit.main.get_by_text(VALID)).to_be_visible()


def add(visit: Visit, step: str) -> None:
    """Choose it in the menu of steps, which lies over the page."""
    visit.button("Add a step").click()
    visit.page.get_by_role("button", name=step).click()


def has_steps(visit: Visit, *titles: str) -> None:
    """Exactly these cards, in this order."""
    steps = visit.main.get_by_text(re.compile(r"^\d\. "))
    expect(steps).to_have_text([f"{number}. {title}" for number, title in enumerate(titles, 1)])


def test_back_in_build_undoes_the_last_change_and_forward_repeats_it(chromium: Browser, studio: Studio) -> None:
    with visiting(chromium, studio.url) as visit:
        start(visit, "Lower cost")
        has_steps(visit, W8A8)
        add(visit, NGRAM)
        has_steps(visit, W8A8, NGRAM)
        visit.drawn()  # the address is written when the script ends
        visit.page.go_back()
        has_steps(visit, W8A8)
        visit.drawn()
        visit.page.go_forward()
        has_steps(visit, W8A8, NGRAM)


def test_a_half_built_recipe_survives_a_walk_to_another_page_and_a_refresh(chromium: Browser, studio: Studio) -> None:
    with visiting(chromium, studio.url) as visit:
        start(visit, "Lower latency")
        has_steps(visit, W8A8, DRAFT)
        visit.menu("Jobs")
        visit.menu("Build")
        has_steps(visit, W8A8, DRAFT)
        visit.reload()
        has_steps(visit, W8A8, DRAFT)


def test_two_people_build_at_once_and_neither_sees_the_others_recipe(chromium: Browser, studio: Studio) -> None:
    with visiting(chromium, studio.url) as one, visiting(chromium, studio.url) as other:
        start(one, "Lower cost")
        start(other, "Lower latency")
        add(one, NGRAM)
        has_steps(one, W8A8, NGRAM)
        has_steps(other, W8A8, DRAFT)
        for visit, steps in ((one, [W8A8, NGRAM]), (other, [W8A8, DRAFT])):
            visit.menu("Jobs")
            visit.menu("Build")
            has_steps(visit, *steps)


def test_two_tabs_of_one_person_hold_two_recipes(chromium: Browser, studio: Studio) -> None:
    with visiting(chromium, studio.url) as first:
        start(first, "Lower cost")
        second = Visit(first.page.context.new_page(), studio.url)
        start(second, "Lower latency")
        first.reload()
        has_steps(first, W8A8)
        has_steps(second, W8A8, DRAFT)
        assert second.heard() == []
