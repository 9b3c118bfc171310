"""Models that were imported have names of their own, and are found by them."""

from pathlib import Path

import pytest

from backend import service
from backend.domain.errors import RequestError, UnknownModel
from backend.service import Workspace
from backend.service.models import catalog, imports, models, variants
from tests.tiny import tiny_llama


@pytest.mark.process
def test_two_folders_called_model_have_two_names_and_are_found_by_them(home: Workspace, tmp_path: Path) -> None:
    first, second = (tiny_llama(tmp_path / name / "model", hidden=64, layers=1) for name in ("reviews", "letters"))
    assert models.remember(home, str(first)).card.id == "reviews-model"
    assert models.remember(home, str(second)).card.id == "letters-model"
    third = tiny_llama(tmp_path / "x" / "reviews" / "model", hidden=64, layers=1)
    assert models.remember(home, str(third)).card.id == "reviews-model-2"
    assert models.remember(home, str(first)).card.id == "reviews-model", "importing it again keeps its name"
    assert models.resolve(home, "Letters-Model").path == str(second)
    assert models.resolve(home, str(third)).id == "reviews-model-2"
    assert variants.resolve(home, "reviews-model-2").model_path == str(third)
    assert catalog.show(home, "letters-model").id == "letters-model"
    assert not imports.is_remote(home, "letters-model")


def test_a_name_is_chosen_once(home: Workspace, tmp_path: Path) -> None:
    first, second = (tiny_llama(tmp_path / name, hidden=64, layers=1) for name in ("one", "two"))
    assert models.remember(home, str(first), name="summaries").card.id == "summaries"
    for wrong in ("Summaries", "starter", "a-1", "", "x y"):
        with pytest.raises(RequestError):
            models.remember(home, str(second), name=wrong)
    with pytest.raises(UnknownModel, match="summaries"):
        models.resolve(home, "summarise")


def test_the_documented_example_runs_as_it_stands(home: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_HOME", str(home.settings.home))
    lines = (service.__doc__ or "").split("\n\n")[1]
    space: dict[str, object] = {}
    exec(compile(lines, "the docstring", "exec"), space)
    assert "starter" in str(space["card"])


def test_a_gguf_file_that_is_missing_or_not_imported_is_called_a_file(home: Workspace, tmp_path: Path) -> None:
    (tmp_path / "here.gguf").touch()
    for resolve in (models.resolve, models.resolve_facts):
        with pytest.raises(UnknownModel, match=r"^There is no file `.*gone\.gguf`: check the path of the GGUF file\.$"):
            resolve(home, str(tmp_path / "gone.gguf"))
        with pytest.raises(UnknownModel, match=r"here\.gguf` is a GGUF file: import it first"):
            resolve(home, str(tmp_path / "here.gguf"))
    with pytest.raises(UnknownModel, match="There is no file"):
        variants.resolve(home, str(tmp_path / "gone.gguf"))
