"""Every field of a model that takes typed text: part of a name chooses the model, what fits none is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Multiselect, Selectbox

from backend.service import Workspace
from backend.service.models import models
from backend.settings import ASSETS
from tests import studio

NAME = "SmolLM2-135M-Instruct"
PRESET = "llama-3-8b/balanced"
FIELDS: dict[str, Callable[[AppTest], Selectbox[str] | Multiselect[str]]] = {
    "build": lambda at: next(field for field in at.selectbox if field.label == "Model"),
    "train": lambda at: next(field for field in at.selectbox if field.label == "Model"),
    "presets": lambda at: next(field for field in at.selectbox if field.label == "To model"),
    "evaluate": lambda at: at.multiselect(key="evaluate_variants"),
}


@pytest.fixture
def smol(studio_home: Workspace, tmp_path: Path) -> str:
    """Import a model of a name that nothing else has. Return its source."""
    folder = tmp_path / "weights"
    shutil.copytree(ASSETS / "starter" / "draft", folder)
    return models.remember(studio_home, str(folder), name=NAME).source


def opened(page: str) -> AppTest:
    return studio.open_page(page, **({"selected": PRESET} if page == "presets" else {}))


@pytest.mark.parametrize("page", FIELDS)
def test_part_of_a_name_chooses_the_only_model_that_has_it(smol: str, page: str) -> None:
    at = opened(page)
    studio.type_text(at, FIELDS[page](at), "smol")
    assert FIELDS[page](at).value == (smol if page != "evaluate" else [smol])
    assert "There is no model" not in studio.says(at)


@pytest.mark.parametrize("page", FIELDS)
def test_text_that_fits_several_or_none_stays_and_names_models_like_it(smol: str, page: str) -> None:
    at = opened(page)
    studio.type_text(at, FIELDS[page](at), "smoll2-135")
    refused = next(error.value for error in at.error if "There is no model" in error.value)
    assert f"one of {NAME}" in refused.replace("\\", "") and "falcon" not in refused
