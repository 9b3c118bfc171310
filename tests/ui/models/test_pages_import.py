"""Import: a folder is read before anything happens, what is wrong with it is one sentence, and the catalog then lists
it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from backend.catalog.cards.licence import licence
from backend.domain.errors import NotFound
from backend.service import Workspace
from backend.service.models import models
from backend.settings import ASSETS
from tests import studio
from tests.cases import ggufs

HOSTILE = "<img src=x onerror=alert(1)> *b* :red[x], $y$"


def folder(parent: Path, name: str = "mine") -> Path:
    """A sound model: the starter's draft under another name."""
    shutil.copytree(ASSETS / "starter" / "draft", parent / name)
    return parent / name


def test_an_empty_page_says_what_it_takes_and_what_will_stand_there(studio_home: Workspace) -> None:
    at = studio.open_page("import")
    text = studio.says(at)
    assert "compatible techniques of the model appear here" in text and "comes from elsewhere is downloaded" in text
    assert "Imported models appear here" in text
    assert at.button(key="import_submit").disabled


def test_a_folder_is_read_before_it_is_imported_and_then_stands_in_the_catalog(
    studio_home: Workspace, tmp_path: Path
) -> None:
    path = folder(tmp_path)
    (path / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Mine\n")
    at = studio.open_page("import", import_folder=str(path))
    text = studio.says(at)
    assert "mine" in text and "Licence apache-2.0 (README.md)" in text.replace("*", "") and "Parameters" in text
    assert "Technique" in at.dataframe[0].value.columns
    assert models.list_remembered(studio_home) == []
    at.button(key="import_submit").click().run()
    studio.check(at)
    assert "is in the catalog" in at.success[0].value
    assert [known.card.path for known in models.list_remembered(studio_home)] == [str(path)]
    catalog = studio.open_page("catalog")
    assert "mine" in list(catalog.dataframe[0].value["Model"])


def test_a_folder_gets_the_name_that_a_person_gives_it(studio_home: Workspace, tmp_path: Path) -> None:
    path = str(folder(tmp_path, "model"))
    at = studio.open_page("import", import_folder=path)
    field = at.text_input(key=f"import_name-{path}")
    assert field.label == "Name (optional)"
    field.input("-no name")
    at.button(key="import_submit").click().run()
    assert "is no name of a model" in at.error[0].value and models.list_remembered(studio_home) == []
    at.text_input(key=f"import_name-{path}").input("my-llama")
    at.button(key="import_submit").click().run()
    studio.check(at)
    assert [known.card.id for known in models.list_remembered(studio_home)] == ["my-llama"]
    assert "my-llama" in list(studio.open_page("catalog").dataframe[0].value["Model"])


def test_imported_twice_it_is_listed_once_and_forgotten_it_is_gone(studio_home: Workspace, tmp_path: Path) -> None:
    path = folder(tmp_path)
    for source in (str(path), f"{path}/../mine"):
        models.remember(studio_home, source)
    assert len([known for known in models.list_known(studio_home) if known.card.path == str(path)]) == 1
    at = studio.open_page("import")
    at.button(key=f"import_forget-{path}").click().run()
    studio.check(at)
    assert models.list_remembered(studio_home) == []
    with pytest.raises(NotFound, match="was not imported"):
        models.forget(studio_home, str(path))


def test_a_folder_that_went_away_is_said(studio_home: Workspace, tmp_path: Path) -> None:
    path = folder(tmp_path)
    models.remember(studio_home, str(path))
    shutil.rmtree(path)
    assert "the folder is gone" in studio.says(studio.open_page("import"))
    assert [known.present for known in models.list_remembered(studio_home)] == [False]


def test_a_bundled_model_is_there_already(studio_home: Workspace) -> None:
    at = studio.open_page("import", import_folder="starter")
    assert "comes with Whetstone" in at.success[0].value
    assert models.remember(studio_home, "starter").card.origin == "starter"
    assert models.list_remembered(studio_home) == []


def break_config(path: Path) -> None:
    (path / "config.json").unlink()


def break_pickle(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def break_header(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"\xff" * 64)


def break_json(path: Path) -> None:
    (path / "config.json").write_text("{")


def break_agreement(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))


def break_tokenizer(path: Path) -> None:
    for file in path.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (break_config, "has no config"),
        (break_pickle, "pickled weights"),
        (break_header, "model.safetensors"),
        (break_json, "not valid JSON"),
        (break_agreement, "belong to different models"),
        (break_tokenizer, "no tokenizer"),
        (shutil.rmtree, "There is no folder"),
    ],
)
def test_what_is_no_model_is_one_sentence(studio_home: Workspace, tmp_path: Path, breaks: object, says: str) -> None:
    path = folder(tmp_path)
    breaks(path)  # type: ignore[operator]
    at = studio.open_page("import", import_folder=str(path))
    assert len(at.error) == 1 and says in at.error[0].value.replace("\\", "")
    assert at.button(key="import_submit").disabled


@pytest.mark.parametrize(
    "requested", ["<b>x</b>", "../../../etc", "~nobody/x", "x" * 5000, "a\nb", "/dev/null", "\\\\host\\share", "   "]
)
def test_nonsense_in_the_address_is_at_most_one_sentence(studio_home: Workspace, requested: str) -> None:
    at = studio.open_page("import", import_folder=requested)
    assert len(at.error) == (0 if requested.isspace() else 1)
    assert all(len(error.value) < 2000 for error in at.error)


def test_a_name_with_markup_is_shown_as_words_everywhere(studio_home: Workspace, tmp_path: Path) -> None:
    path = folder(tmp_path, HOSTILE)
    models.remember(studio_home, str(path))
    for page, query in (
        ("import", {"folder": str(path)}),
        ("catalog", {}),
        ("model", {"id": str(path)}),
        ("build", {"model": str(path)}),
    ):
        at = studio.open_page(page, **query)
        kinds = (at.title, at.subheader, at.markdown, at.caption, at.info, at.success, at.error)
        for words in [str(element.value) for kind in kinds for element in kind] + [
            link.proto.label for link in at.get("page_link")
        ]:
            assert not re.search(r"(?<!\\)<img|(?<!\\):red", words), (page, words)
        assert not at.error, page


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"README.md": "---\nlicense: mit\n---\n"}, "mit (README.md)"),
        ({"README.md": "---\nlicense: other\nlicense_name: llama3\n---\n"}, "llama3 (README.md)"),
        (
            {"README.md": "# no front matter\nlicense: mit\n", "LICENSE": "\n  Apache License\n"},
            "Apache License (LICENSE)",
        ),
        ({"README.md": "---\nlicense: [a, b]\n---\n"}, None),
        ({"README.md": "---\n[[[\n---\n"}, None),
        ({"README.md": "---\nlicense: " + "x" * 500 + "\n---\n"}, "x" * 120 + " (README.md)"),
        ({}, None),
    ],
)
def test_a_licence_is_what_the_folder_says(tmp_path: Path, files: dict[str, str], says: str | None) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert licence(tmp_path) == says


def test_a_folder_that_may_not_be_named_is_one_sentence(
    studio_home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    (tmp_path / "x.gguf").touch()
    for named in (str(tmp_path), str(tmp_path / "x.gguf")):
        at = studio.open_page("import", import_folder=named)
        assert ["is outside the folders" in each.value for each in at.error] == [True]


def test_a_link_to_a_gguf_file_shows_its_card_without_the_network(studio_home: Workspace, tmp_path: Path) -> None:
    file = ggufs.write(tmp_path / "tiny.gguf", ggufs.tensors(), ggufs.keys())
    at = studio.open_page("import", import_folder=str(file))
    text = studio.says(at)
    assert "is not read yet" not in text and not at.button(key="import_submit").disabled
    assert "**File**" in text and "Nothing is downloaded" in text and "Download" not in text
    assert "counted from the head of the GGUF file" in text and "safetensors headers" not in text
