"""`whetstone catalog` as a user meets it: the documented keys, the published cells, one sentence for what is wrong."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from backend.catalog.bundled import published
from tests.integration.cli.calling import one_sentence, whetstone

KEYS = {
    "id",
    "origin",
    "family",
    "published",
    "checked",
    "preoptimized",
    "precompiled",
    "parameters",
    "kv_bytes_per_token",
}


def test_the_73_models_are_listed_with_the_published_cells_and_ours_beside(tmp_path: Path) -> None:
    parsed = json.loads(whetstone(tmp_path, "catalog", "list", "--origin", "published", "--json").stdout)
    assert len(parsed) == 73 and all(set(row) >= KEYS for row in parsed)
    with published.MATRIX.open() as file:
        matrix = {row["jumpstart_model_id"]: row for row in csv.DictReader(file)}
    for row in parsed:
        assert (
            row["published"] == {name: matrix[row["id"]][name] for name in row["published"]}
            and len(row["published"]) == 3
        )
        assert all(cell["supported"] == (cell["reason"] == "") for cell in row["checked"].values())
    assert sum(row["preoptimized"] for row in parsed) == 11 and sum(row["precompiled"] for row in parsed) == 8
    assert {row["origin"] for row in json.loads(whetstone(tmp_path, "catalog", "list", "--json").stdout)} == {
        "starter",
        "published",
    }
    fits = json.loads(
        whetstone(tmp_path, "catalog", "list", "--instance", "ml.g5.12xlarge", "--technique", "awq", "--json").stdout
    )
    names = {row["id"] for row in fits}
    assert "meta-textgeneration-llama-3-70b" in names and "huggingface-llm-falcon-180b-bf16" not in names
    assert all(row["checked"]["awq"]["supported"] and row["checked_on"] == "ml.g5.12xlarge" for row in fits)


def test_a_model_is_shown_with_reasons_nearest_and_memory(tmp_path: Path) -> None:
    name = "huggingface-llm-mistral-7b-openorca-gptq"
    shown = json.loads(whetstone(tmp_path, "catalog", "show", name, "--instance", "ml.g5.12xlarge", "--json").stdout)
    assert shown["checked"]["awq"]["supported"] is False and "already quantized" in shown["checked"]["awq"]["reason"]
    assert shown["checked"]["awq"]["nearest"] and shown["published"]["quantization"] == "Yes"
    assert any(row["fits"] and "ml.g5.12xlarge" in row["instances"] for row in shown["memory"])
    assert shown["presets"] == []
    text = whetstone(tmp_path, "catalog", "show", "starter")
    assert "starter/lower-cost" in text.stdout
    assert text.returncode == 0 and "As checked for this machine" in text.stdout and "(blank)" in text.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--instance", "ml.g5.13xlarge"), "ml.g5.12xlarge"),
        (("--technique", "awk", "--family", "lama"), "the nearest is `awq`"),
    ],
)
def test_a_wrong_filter_is_one_sentence(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in one_sentence(whetstone(tmp_path, "catalog", "list", *arguments))


def test_a_catalog_file_edited_by_hand_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = tmp_path / "models.toml"
    edited.write_text(published.MODELS.read_text().replace("num_hidden_layers = 60", 'num_hidden_layers = "60"', 1))
    monkeypatch.setattr(published, "MODELS", edited)
    assert "`num_hidden_layers` is wrong" in one_sentence(whetstone(tmp_path / "home", "catalog", "list", "--json"))
