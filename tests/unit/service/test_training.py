"""What stands against a training before it starts, a sentence each with what works; and where its draft may be used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import RequestError
from backend.domain.jobs.jobs import InstallSpec
from backend.domain.recipe.draft_training import Training
from backend.domain.recipe.recipe import read
from backend.service import Workspace
from backend.service.jobs import artifacts, job_rows, jobs
from backend.service.models import models, variants
from backend.service.plans import training
from tests import studio
from tests.cases import stored
from tests.homes import open_home
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return open_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def test_a_training_is_queued_with_its_claim(opened: Workspace) -> None:
    spec = training.prepare(opened, "starter", Training(minutes=2))
    job = training.submit(opened, spec)
    assert (job.kind, job.title) == ("train", "Train a draft for starter: small model, LK hybrid")
    assert job_rows.make_claim(spec, job.terms).memory_bytes > 4 * spec.model.parameters
    assert set(jobs.specification(opened, job.id)["seen"]) == {spec.model.path}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"minutes": 0.2},
            "0.2 minutes end before a first checkpoint, since the model answers prompts first: give 1 or more",
        ),
        ({"kind": "medusa", "layers": 3}, "goes with a small model, not with medusa: leave it out"),
        ({"kind": "eagle3", "on_policy": 0.5}, "goes with a small model, which answers by itself: leave it out"),
        ({"start": "pruned", "layers": 3}, "is no smaller than starter, which has 3: give 1"),
        ({"start": "pruned", "hidden": 64}, "a pruned draft is as wide as its model"),
        ({"hidden": 512, "layers": 4}, "M parameters and starter 11.1 M: give 320"),
    ],
)
def test_options_that_cannot_work_are_refused(opened: Workspace, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        training.prepare(opened, "starter", Training(**options))
    assert sentence in str(refused.value)


def test_prompts_are_looked_at_before_the_start(opened: Workspace, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text("\n")
    for path, sentence in (
        (tmp_path / "gone.jsonl", "There is no file"),
        (tmp_path / "own.jsonl", "own.jsonl has no prompts"),
    ):
        with pytest.raises(RequestError) as refused:
            training.prepare(opened, "starter", Training(), str(path))
        assert str(refused.value).startswith(sentence)


@pytest.mark.process
def test_a_quantized_target_is_refused_with_its_original(opened: Workspace, tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "other"))
    stored.store(folder, stored.fp8)
    with pytest.raises(RequestError, match="drafts are trained on 16-bit weights: give its 16-bit original"):
        training.prepare(opened, str(folder), Training())


@pytest.fixture
def home_with_draft(tmp_path: Path) -> Iterator[tuple[Workspace, dict[str, str]]]:
    """A home with a draft for the starter, and an artifact that speculates with it."""
    home = open_home(tmp_path / "home")
    starter, job = models.resolve(home, "starter"), jobs.submit(home, InstallSpec(engine="serve"), "any")
    speculating = {"draft": {"method": "draft"}, "speculating": {"method": "ngram"}}
    by_name = {
        name: studio.artifact(
            home,
            job,
            starter,
            recipe=read({"name": name, "steps": [{"speculate": step}]}),
            training={"asked": {"kind": "small"}} if name == "draft" else None,
        )
        for name, step in speculating.items()
    }
    yield home, by_name


def test_a_target_that_speculates_already_is_named_with_what_it_was_made_from(
    home_with_draft: tuple[Workspace, dict[str, str]],
) -> None:
    home, ids = home_with_draft
    for name, words in (("speculating", "already speculates"), ("draft", "is a draft itself")):
        with pytest.raises(RequestError) as refused:
            training.prepare(home, ids[name], Training())
        assert str(refused.value).startswith(f"{ids[name]} {words}: train for starter, the model that it was made from")


def test_a_draft_is_no_variant(home_with_draft: tuple[Workspace, dict[str, str]]) -> None:
    home, ids = home_with_draft
    with pytest.raises(RequestError, match=f"name it in a recipe .*method: draft, draft: {ids['draft']}"):
        variants.resolve(home, ids["draft"])
    assert [view.id for view in artifacts.variants(home)] == [ids["speculating"]]
    assert [view.id for view in artifacts.drafts(home, models.resolve(home, "starter"))] == [ids["draft"]]


def test_a_draft_of_another_model_is_refused(home_with_draft: tuple[Workspace, dict[str, str]], tiny: Path) -> None:
    home, ids = home_with_draft
    recipe = read({"name": "r", "steps": [{"speculate": {"method": "draft", "draft": ids["draft"]}}]})
    with pytest.raises(
        RequestError, match="was trained for starter, not for tiny: train one with `whetstone train tiny`"
    ):
        models.find_draft(home, models.resolve(home, str(tiny)), recipe)


def test_the_fields_of_the_specification_are_the_options(opened: Workspace) -> None:
    spec = training.prepare(opened, "starter", Training(seed=3, steps=5, minutes=0.5))
    assert json.loads(spec.model_dump_json())["options"]["seed"] == 3
