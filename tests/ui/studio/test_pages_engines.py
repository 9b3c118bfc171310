"""The engine of a model on the pages that serve or measure it: which are offered, why not others, and the address."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.service import Workspace
from backend.service.models import models
from tests import gguf_files, studio
from tests.tiny import tiny_llama


@pytest.fixture
def imported(studio_home: Workspace, tmp_path: Path) -> str:
    """A known model with the GGUF file that it was imported from."""
    folder = tiny_llama(tmp_path / "tiny", intermediate=128)
    (folder / "gguf").mkdir()
    gguf_files.write(folder / "gguf" / "tiny.gguf", folder)
    return models.remember(studio_home, str(folder)).source


def test_evaluate_offers_engines_and_the_same_model_on_another(imported: str) -> None:
    at = studio.open_page("evaluate", variants=imported)
    field = at.selectbox(key=f"evaluate_engine_{imported}")
    assert field.options == ["vLLM (not installed)", "llama.cpp (not installed)", "Automatic"]
    at.button(key=f"evaluate_also_{imported}@engine=llama.cpp").click().run()
    studio.check(at)
    assert at.multiselect(key="evaluate_variants").value == [imported, f"{imported}@engine=llama.cpp"]
    at.selectbox(key=f"evaluate_engine_{imported}").select("auto").run()
    studio.check(at)
    assert at.multiselect(key="evaluate_variants").value[0] == f"{imported}@engine=auto"


def test_evaluate_adds_a_variant_with_another_setting(imported: str) -> None:
    source = f"{imported}@engine=llama.cpp"
    at = studio.open_page("evaluate", variants=source)
    at.selectbox(key="evaluate_set_name").select("kv_cache_dtype").run()
    at.selectbox(key="evaluate_set_value_kv_cache_dtype").select("u8").run()
    assert at.button(key="evaluate_set_add").disabled and "no key-value cache of type u8" in studio.says(at)
    at.selectbox(key="evaluate_set_value_kv_cache_dtype").select("q8_0").run()
    at.button(key="evaluate_set_add").click().run()
    studio.check(at)
    assert at.multiselect(key="evaluate_variants").value == [source, f"{source}@kv_cache_dtype=q8_0"]


def test_build_with_settings_alone_leads_to_an_evaluation(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="steps: []\nserving: {max_num_seqs: 4}")
    assert "nothing is to be made" in studio.says(at)


def test_the_playground_asks_one_model_on_two_engines(imported: str) -> None:
    at = studio.open_page("playground", original=imported, optimized=imported)
    assert "Both sides are the same" in studio.says(at)
    at.selectbox(key="playground_engine_optimized").select("llama.cpp").run()
    studio.check(at)
    assert at.query_params["optimized"] == f"{imported}@engine=llama.cpp"
    assert at.button(key="playground_start").label == "Start both"


def test_the_playground_says_which_engine_serves_a_model_and_why_not_another(studio_home: Workspace) -> None:
    at = studio.open_page("playground", original="starter@engine=llama.cpp")
    (served,) = [caption.proto for caption in at.caption if "Served by vLLM" in caption.value]
    assert "Not by llama.cpp" in served.help and "llama.cpp reads GGUF files" in served.help.replace("\\", "")
    assert at.selectbox(key="playground_original").value == "starter"
