"""From a `speculate` step as a person writes it to what the rules are told: drafts, heads and proposers where they
lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.artifacts import artifact_folder, variants
from backend.domain.errors import ImpossibleStack, InvalidModel, RequestError, UnknownModel
from backend.domain.evaluation import vllm_flags
from backend.domain.jobs.artifact import Manifest
from backend.domain.recipe.recipe import read
from backend.service import Workspace
from backend.service.models import models
from backend.service.models.variants import resolve
from backend.service.plans import cases, optimize
from backend.serving import vllm_options
from backend.settings import ASSETS, PLUGIN
from backend.store.tables import ArtifactRow
from tests.heads import head
from tests.homes import open_home


def case(home: Workspace, **step: Any) -> cases.Case:
    chosen = read({"steps": [{"speculate": step}], "serving": {"enforce_eager": True}})
    return cases.resolve(home, models.resolve(home, "starter"), chosen)


def reasons_of(result: cases.Case) -> str:
    return " ".join(reason.message for reason in result.verdict.reasons)


def eagle3(home: Workspace, folder: Path, **changes: int) -> Path:
    card = models.resolve(home, "starter")
    sizes = {"hidden_size": card.hidden_size, "vocab_size": card.vocabulary, "num_attention_heads": card.heads}
    return head(
        folder,
        {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            **sizes,
            **changes,
        },
    )


def test_a_head_is_taken_by_its_folder_and_goes_with_the_job(home: Workspace, tmp_path: Path) -> None:
    folder = eagle3(home, tmp_path / "head")
    result = case(home, method="eagle3", draft=str(folder))
    assert result.works and result.draft is not None and result.draft.id == "head"
    spec = optimize.prepare(home, result).spec
    assert spec.draft is not None and spec.draft.path == str(folder)
    strange = eagle3(home, tmp_path / "strange", hidden_size=64)
    assert "trained for another model (hidden size 64" in reasons_of(case(home, method="eagle3", draft=str(strange)))
    with pytest.raises(UnknownModel, match="give the folder of a head"):
        case(home, method="medusa", draft=str(tmp_path / "nothing"))
    assert "name its folder" in reasons_of(case(home, method="eagle", draft="auto"))
    assert "head is an EAGLE-3 head: use `method: eagle3`" in reasons_of(case(home, method="medusa", draft=str(folder)))
    whole = str(ASSETS / "starter" / "draft")
    assert "draft is a whole model and no head: use `method: draft`" in reasons_of(
        case(home, method="eagle", draft=whole)
    )
    with pytest.raises(InvalidModel, match=r"a head that drafts for another model: name its folder in a recipe"):
        models.resolve(home, str(folder))


def artifact(home: Workspace, *parts: str, **step: Any) -> str:
    """One that a job is said to have made, with a head's few bytes as the weights of each part."""
    staged = home.settings.home / "staged"
    for part in parts:
        eagle3(home, staged / part)
    recipe = read({"name": "made", "steps": [{"speculate": step}] if step else []})
    manifest = Manifest(
        job=f"j-{len(parts)}",
        parent=models.resolve(home, "starter"),
        recipe=recipe,
        recipe_hash=recipe.hash,
        bytes_before=1,
        bytes_after=1,
        files=artifact_folder.describe(staged),
    )
    artifact_folder.write_manifest(staged, manifest)
    path = home.settings.artifacts / manifest.id
    path.parent.mkdir(parents=True, exist_ok=True)
    staged.rename(path)
    row = ArtifactRow(
        id=manifest.id,
        job_id=manifest.job,
        owner="ann",
        model="m",
        recipe="made",
        recipe_hash=recipe.hash,
        path=str(path),
        bytes=1,
        manifest=manifest.model_dump_json(),
    )
    with home.store.session() as session:
        session.add(row)
    return manifest.id


@pytest.mark.parametrize("part", ["model", "draft"])
def test_an_artifact_that_is_a_head_is_taken_by_its_id(home: Workspace, part: str) -> None:
    artifact_id = artifact(home, part)
    result = case(home, method="eagle3", draft=artifact_id)
    assert result.works and result.draft is not None and result.draft.id == artifact_id
    assert optimize.prepare(home, result).spec.draft.path == str(home.settings.artifacts / artifact_id / part)  # type: ignore[union-attr]


def test_what_speculates_already_is_neither_a_draft_nor_a_target(home: Workspace) -> None:
    artifact_id = artifact(home, "model", "draft", method="draft", draft="auto")
    with pytest.raises(
        ImpossibleStack, match=f"{artifact_id} speculates itself, so it cannot draft for another: name its draft alone"
    ):
        case(home, method="draft", draft=artifact_id)
    with pytest.raises(
        UnknownModel, match="was made of starter by made and already speculates: start from starter with one recipe"
    ):
        models.resolve(home, artifact_id)


def test_a_proposer_runs_only_from_the_folder_that_the_owner_named(tmp_path: Path) -> None:
    (code := tmp_path / "code").mkdir()
    (code / "mine.py").write_text("class Proposer: ...")
    step = {"method": "custom", "proposer": "mine.Proposer"}
    assert "WHETSTONE_PROPOSERS=FOLDER" in reasons_of(case(open_home(tmp_path / "closed"), **step))
    opened = open_home(tmp_path / "open", proposers=str(code))
    result = case(opened, **step)
    assert result.works and "foreign code" in " ".join(result.verdict.plan.notes)  # type: ignore[union-attr]
    assert "no module `other`" in reasons_of(case(opened, method="custom", proposer="other.Proposer"))
    recipe = result.recipe
    manifest = Manifest(
        job="j-1",
        parent=models.resolve(opened, "starter"),
        recipe=recipe,
        recipe_hash=recipe.hash,
        bytes_before=1,
        bytes_after=1,
        files=[],
    )
    served = variants.variant_of_artifact(opened.settings, str(tmp_path), manifest, "a-1")
    assert served.speculation is not None and served.speculation.proposers == str(code)
    chosen = vllm_options.environment(tmp_path, cpu=True, openmp=None, proposers=served.speculation.proposers)
    assert chosen["PYTHONPATH"].split(":") == [str(PLUGIN), str(code)]


def test_adaptive_n_grams_run_in_our_servers_from_our_folder_and_nowhere_else(home: Workspace, tmp_path: Path) -> None:
    result = case(home, method="ngram_adaptive", tokens=8)
    assert result.works and "foreign code" not in " ".join(result.verdict.plan.notes)  # type: ignore[union-attr]
    model = models.resolve(home, "starter")
    there = cases.resolve(home, model, result.recipe, "ml.g6.xlarge")
    assert "`method: ngram_adaptive` runs in servers that Whetstone starts, not on ml.g6.xlarge" in reasons_of(there)
    manifest = Manifest(
        job="j-1",
        parent=model,
        recipe=result.recipe,
        recipe_hash=result.recipe.hash,
        bytes_before=1,
        bytes_after=1,
        files=[],
    )
    speculation = variants.variant_of_artifact(home.settings, str(tmp_path), manifest, "a-1").speculation
    assert speculation is not None and speculation.proposers == str(PLUGIN)
    config = vllm_flags.speculative_config(speculation, "")
    module, _, name = config.pop("model").rpartition(".")
    assert config == {"method": "custom_class", "num_speculative_tokens": 8}
    assert f"class {name}:" in (PLUGIN / f"{module}.py").read_text()
    for cpu in (True, False):
        chosen = vllm_options.environment(tmp_path, cpu=cpu, openmp=None, proposers=speculation.proposers)
        assert chosen["PYTHONPATH"] == str(PLUGIN)


def test_suffix_decoding_is_refused_where_its_library_is_not(home: Workspace) -> None:
    assert "needs arctic-inference" in reasons_of(case(home, method="suffix"))


def test_an_artifact_is_measured_with_other_draft_lengths_than_its_own(home: Workspace) -> None:
    artifact_id = artifact(home, "model", "draft", method="draft", draft="auto", tokens_by_batch={1: 4, 8: 0})
    own, two, none = (resolve(home, f"{artifact_id}{rest}") for rest in ("", "@tokens=2", "@tokens=0"))
    assert [variant.name for variant in (own, two, none)] == ["made", "made, 2 tokens", "made, no draft"]
    assert {variant.source for variant in (own, two, none)} == {artifact_id}
    assert two.speculation is not None and (two.speculation.tokens, two.speculation.tokens_by_batch) == (2, None)
    assert none.speculation is None and len({variant.recipe_hash for variant in (own, two, none)}) == 3
    for written in ("17", "many", "-1", ""):
        with pytest.raises(RequestError, match=r"is wrong: give 0 \(no speculation\) to 16"):
            resolve(home, f"{artifact_id}@tokens={written}")
    plain = artifact(home, "model")
    with pytest.raises(RequestError, match=f"{plain} does not speculate"):
        resolve(home, f"{plain}@tokens=2")
