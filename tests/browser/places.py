"""The pages of the studio by name and address, with nothing in the home and with a measured model in it."""

from __future__ import annotations

from urllib.parse import urlencode

from app import navigation
from backend.service.evaluations.evaluations import EvaluationView
from backend.settings import CHECKOUT

SCREENSHOTS = CHECKOUT / "build" / "screenshots"
PAGES = [entry.name for entries in navigation.existing_sections().values() for entry in entries]
"""Every page there is, so that a new one is looked at from the day it arrives."""
SHOWING = [
    *(
        "model-card",
        "build-recipe",
        "job-optimize",
        "job-evaluate",
        "evaluate-form",
        "evaluation",
        "compare-evaluation",
    ),
    *("preset", "compare-presets"),
]
"""Pages with something of the home on them."""


def plain(page: str) -> str:
    """The page as the menu opens it."""
    return "/" if page == "home" else f"/{page}"


def showing(name: str, view: EvaluationView, made_by: str) -> str:
    """The page with what was measured on it. `made_by` is the job that made the second variant."""
    original, artifact = (result.variant.source for result in view.document.variants[:2])
    page, query = {
        "model-card": ("model", {"id": original}),
        "build-recipe": ("build", {"model": original, "recipe": "w8a8-draft"}),
        "job-optimize": ("job", {"id": made_by}),
        "job-evaluate": ("job", {"id": view.job_id}),
        "evaluate-form": ("evaluate", {"variants": f"{original},{artifact}"}),
        "evaluation": ("evaluate", {"id": view.id}),
        "compare-evaluation": ("compare", {"ids": view.id}),
        "preset": ("presets", {"selected": "llama-3-70b-instruct/lower-cost"}),
        "compare-presets": ("compare", {"presets": "starter/lower-cost,llama-3-70b/lower-cost", "ids": view.id}),
    }[name]
    return f"/{page}?{urlencode(query)}"
