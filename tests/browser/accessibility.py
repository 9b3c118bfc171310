"""axe-core on a page of the studio: what it finds that is serious or worse, and is ours to mend."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

SEVERE = ("serious", "critical")
STREAMLITS_OWN = {
    # st.navigation draws the entries of a section as <ul><div><li>; there is no other menu with sections.
    "list": "[data-testid=stSidebarNavItems]",
    "listitem": "[data-testid=stSidebarNavItems] li",
    # A toast is a dialog that is named by a title which st.toast does not draw.
    "aria-dialog-name": "[data-testid=stToast]",
}
"""Rule -> the elements of Streamlit's that break it and that this project cannot reach."""

RUN = """async ([severe, streamlits]) => {
    const found = await axe.run(document, {resultTypes: ["violations"]})
    const excused = (rule, node) => {
        const selector = streamlits[rule]
        const element = selector && document.querySelector(node.target.join(" "))
        return Boolean(element) && element.matches(selector)
    }
    return found.violations.filter(rule => severe.includes(rule.impact)).flatMap(rule => rule.nodes
        .filter(node => !excused(rule.id, node))
        .map(node => `${rule.id} (${rule.impact}): ${node.html.slice(0, 200)} ${node.failureSummary}`))
}"""


@cache
def _axe() -> str:
    """The one file of the package that is of use: axe.min.js."""
    return (files("axe_playwright_python") / "axe.min.js").read_text()


def violations(page: Page) -> list[str]:
    """One sentence an element, with the rule, how bad, and what axe says of it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_axe())
    results: list[Any] = page.evaluate(RUN, [SEVERE, STREAMLITS_OWN])
    return [str(sentence) for sentence in results]
