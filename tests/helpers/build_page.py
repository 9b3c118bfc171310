"""The page Build as tests read and click it."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from backend.domain.recipe.recipe import Recipe
from backend.service.plans import recipe_files
from tests import studio

W8A8 = "name: mine\nsteps:\n- quantize: {method: w8a8}\n"
"""A recipe as text."""


def built(at: AppTest) -> Recipe:
    """What the URL holds."""
    return recipe_files.read_text(studio.param(at, "recipe"))


def labelled(at: AppTest, label: str, index: int = 0) -> AppTest:
    """Click the button of that label."""
    [button for button in at.button if button.label == label][index].click().run()
    studio.check(at)
    return at


def field(at: AppTest, name: str) -> str:
    """The key of a field of the first step."""
    kinds = (at.selectbox, at.file_uploader)
    return next(
        str(w.key)
        for kind in kinds
        for w in kind
        if str(w.key).startswith("build-") and str(w.key).endswith(f"-0-{name}")
    )
