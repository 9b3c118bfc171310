"""Build, Evaluate and Compare by the keyboard alone: Tab reaches every step, and one sees where the focus is."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.running import Studio
from tests.browser.visit import visiting

MOST_TABS = 120
DRAWN = """element => {
    const styles = []
    for (let part = element, depth = 0; part && depth < 6; part = part.parentElement, depth += 1) {
        const style = getComputedStyle(part)
        styles.push([style.outline, style.boxShadow, style.borderColor, style.backgroundColor, style.color].join("|"))
    }
    return styles.join("; ")
}"""
"""How an element and what is around it are drawn; what differs with the focus is how one sees it."""
STILL = "() => !document.getAnimations().some(each => each.playState === 'running')"
NAME = """element => {
    const words = element.getAttribute("aria-label") || element.innerText || element.getAttribute("placeholder") || ""
    return words.trim()
}"""


def press_through(page: Page) -> dict[str, bool]:
    """Press Tab until the focus leaves the page. Return each control by name, and whether one sees its focus."""
    focus_seen: dict[str, bool] = {}
    page.locator("#stMain h1").first.click()
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        focused = page.evaluate_handle("document.activeElement").as_element()
        if focused is None or not page.evaluate("document.querySelector('#stMain').contains(document.activeElement)"):
            break
        page.wait_for_function(STILL)
        with_focus, name = focused.evaluate(DRAWN), focused.evaluate(NAME)
        focused.evaluate("element => element.blur()")
        page.wait_for_function(STILL)
        focus_seen[name] = with_focus != focused.evaluate(DRAWN)
        focused.evaluate("element => element.focus()")
    return focus_seen


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("path", "goal", "steps"),
    [
        ("/build?model=starter", "Lower cost", ("Add a step", "Optimize")),
        ("/evaluate?new=true&variants=starter", None, ("Concurrency (streams)", "Evaluate  Ctrl + Enter")),
        ("/compare", None, ("Copy link", "New evaluation", "Presets")),
    ],
    ids=["Build", "Evaluate", "Compare"],
)
def test_every_step_is_reached_by_the_keyboard_and_seen(
    chromium: Browser, empty_studio: Studio, path: str, goal: str | None, steps: tuple[str, ...]
) -> None:
    with visiting(chromium, empty_studio.url) as visit:
        visit.open(path)
        if goal:
            visit.button(goal).press("Enter")
            expect(visit.main.get_by_text("Valid for this model on this machine")).to_be_visible()
            visit.drawn()
        focus_seen = press_through(visit.page)
    names = [" ".join(name.split()) for name in focus_seen]
    assert [step for step in steps if not any(" ".join(step.split()) in name for name in names)] == [], names
    assert [name for name, is_seen in focus_seen.items() if not is_seen] == []
