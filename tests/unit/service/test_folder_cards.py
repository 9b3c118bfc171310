"""The card of a folder is remembered as long as its files are the same, and no longer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from backend.catalog.bundled import models
from backend.catalog.cards import import_record
from backend.domain.errors import InvalidModel, UnknownModel
from backend.domain.model.facts import QuantizedBefore
from backend.service.models import models as service_models
from tests.homes import open_home


@pytest.fixture
def folder(tmp_path: Path, starter_draft: Path) -> Path:
    shutil.copytree(starter_draft, tmp_path / "mine")
    return tmp_path / "mine"


def test_the_same_files_are_read_once(folder: Path) -> None:
    assert models.folder_card(str(folder)) is models.folder_card(f"{folder}/../mine")


def test_a_changed_file_is_read_anew(folder: Path) -> None:
    before = models.folder_card(str(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 77}))
    after = models.folder_card(str(folder))
    assert after.max_positions == 77 and after.revision != before.revision


def test_another_file_of_the_same_size_and_time_is_read_anew(folder: Path) -> None:
    tokenizer, other = folder / "tokenizer.json", folder / "other"
    document = json.loads(tokenizer.read_text())
    tokenizer.write_text(json.dumps(document))
    before, was = models.folder_card(str(folder)).tokenizer_hash, tokenizer.stat()
    tokens = list(document["model"]["vocab"])
    document["model"]["vocab"] = {token: number for number, token in enumerate(reversed(tokens))}
    other.write_text(json.dumps(document))
    assert other.stat().st_size == was.st_size
    os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
    other.replace(tokenizer)
    assert models.folder_card(str(folder)).tokenizer_hash != before


def test_a_folder_that_has_gone_or_broken_is_told_though_it_was_read(folder: Path) -> None:
    models.folder_card(str(folder))
    (folder / "config.json").write_text("no")
    with pytest.raises(InvalidModel, match="not valid JSON"):
        models.folder_card(str(folder))
    shutil.rmtree(folder)
    with pytest.raises(UnknownModel, match="no folder"):
        models.folder_card(str(folder))


def test_a_record_that_somebody_put_into_a_folder_gives_no_name_source_or_licence(
    tmp_path: Path, starter_draft: Path
) -> None:
    """Only that of a folder which an import of this home made counts. That weights were quantized before is a
    warning."""
    home = open_home(tmp_path / "home")
    before = QuantizedBefore(format="Q4_K", block=32, bits=4.5)
    forged = import_record.ImportRecord(
        source="meta-llama/Llama-3.3-70B-Instruct",
        revision="1" * 40,
        endpoint="https://hub.example.org",
        licence="apache-2.0",
        name="llama-3.3-70b",
        quantized_before=before,
        files={},
    )
    handed_on, created = tmp_path / "handed-on", home.settings.models / "meta-llama" / f"Llama@{'1' * 40}"
    for folder in (handed_on, created):
        shutil.copytree(starter_draft, folder)
        import_record.write(folder, forged)
    for origin in ("folder", "imported"):  # before and after it is in the catalog
        card = service_models.resolve(home, str(handed_on))
        assert (card.id, card.origin, card.licence) == ("handed-on", origin, None)
        assert card.quantized_before == before
        service_models.remember(home, str(handed_on))
    card = service_models.resolve(home, str(created))
    assert (card.id, card.origin, card.licence) == ("llama-3.3-70b", "imported", "apache-2.0")
