"""Odd checkpoints through the real command: each is used, with what is said of it, or refused in one sentence before a
job."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from backend.domain.evaluation.document import Variant
from backend.domain.recipe.recipe import Serving
from backend.layered import tokenizers
from backend.service import Workspace
from backend.serving.vllm import VllmServer
from tests.cases import preflight as cases
from tests.integration.cli.calling import Answer, one_sentence, process, whetstone

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]
Maker = Callable[[Path], Path]

USED: dict[str, tuple[Maker, str]] = {
    "consolidated": (cases.consolidated, ""),
    "template-default": (partial(cases.named_templates, default=True), ""),
    "gemma-like": (partial(cases.template, written=cases.GEMMA_LIKE), ""),
    "typed-content": (partial(cases.template, written=cases.TYPED), ""),
    "extra-files": (cases.extra_files, ""),
    "rebuilt-by-class": (cases.rebuilt_by_class, "tokenizer.json is taken as it is"),
    "beyond-embedding": (cases.tokenizer_beyond_embedding, "token 1020, and the embedding has 1020 rows"),
    "no-default": (partial(cases.named_templates, default=False), "none called `default`, only rag, tool_use"),
    "needs-tools": (partial(cases.template, written=cases.NEEDS_TOOLS), "A tools list is required"),
    "few-positions": (cases.few_positions, "sequences of 64 tokens in place of 512"),
}
REFUSED: dict[str, tuple[Maker, str]] = {
    "without-head": (cases.without_head, "(lm_head.weight) is missing"),
    "misshapen": (cases.misshapen, "is stored as 500 x 256, and config.json asks for 512 x 256"),
    "missing": (cases.missing_tensor, "self_attn.k_proj.weight is missing"),
    "scaling": (cases.scaling_without_factor, "config.json cannot be read by transformers"),
    "sentencepiece": (cases.sentencepiece_alone, "No tokenizer can be built"),
}
CALIBRATED = ("rebuilt-by-class", "beyond-embedding", "few-positions")
"""Those that are quantized with calibration, each for another reason."""


def output_of(answer: Answer) -> str:
    """What a call that went well wrote."""
    assert answer.returncode == 0, answer
    return answer.stdout


@pytest.mark.parametrize("name", USED)
def test_what_can_be_used_is_with_a_word_where_it_is_read_otherwise(home: Workspace, tmp_path: Path, name: str) -> None:
    make, words = USED[name]
    model, place = make(tmp_path / name), home.settings.home
    card = json.loads(output_of(whetstone(place, "models", "inspect", model, "--json")))
    checked = json.loads(output_of(whetstone(place, "recipe", "check", "awq", "--model", model, "--json")))
    imported = output_of(whetstone(place, "models", "import", model))
    assert checked["valid"]
    for notes in (" ".join(card["notes"]), " ".join(checked["notes"]), imported):
        assert words in notes
    if not words:
        assert card["notes"] == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_sound_is_refused_in_the_same_words_everywhere(home: Workspace, tmp_path: Path, name: str) -> None:
    make, words = REFUSED[name]
    model, place = make(tmp_path / name), home.settings.home
    for arguments in (
        ("models", "inspect", model),
        ("models", "import", model),
        ("optimize", model, "--recipe", "awq"),
        ("evaluate", model),
    ):
        assert words in one_sentence(whetstone(place, *arguments))
    checked = whetstone(place, "recipe", "check", "awq", "--model", model)
    assert checked.returncode == 2 and words in checked.stdout + checked.stderr
    assert json.loads(output_of(whetstone(place, "jobs", "list", "--json"))) == []


def test_a_padding_token_beyond_the_vocabulary_is_said_before_a_job(home: Workspace, tmp_path: Path) -> None:
    model, place = cases.padding_beyond(tmp_path / "padding"), home.settings.home
    for arguments in (("optimize", model, "--recipe", "awq"), ("evaluate", model)):
        assert "`pad_token_id` 1024" in one_sentence(whetstone(place, *arguments))


def test_a_chat_is_not_asked_of_what_cannot_write_one(home: Workspace, tmp_path: Path) -> None:
    model = cases.named_templates(tmp_path / "no-default", default=False)
    refused = one_sentence(whetstone(home.settings.home, "evaluate", model, "--workload", "assistant"))
    assert "A chat cannot be asked of no-default" in refused and "only rag, tool_use" in refused


def test_a_snapshot_of_a_hubs_cache_is_called_by_its_id(home: Workspace, tmp_path: Path) -> None:
    snapshot, place = cases.hub_snapshot(tmp_path), home.settings.home
    assert json.loads(output_of(whetstone(place, "models", "inspect", snapshot, "--json")))["id"] == "acme/Tiny-Chat-1B"
    assert output_of(whetstone(place, "models", "import", snapshot)).startswith("acme/Tiny-Chat-1B is in the catalog")
    assert "Valid" in output_of(whetstone(place, "recipe", "check", "w8a8", "--model", "acme/Tiny-Chat-1B"))


def test_an_adapter_alone_is_refused_by_name(home: Workspace, tmp_path: Path) -> None:
    adapter = cases.adapter(tmp_path / "adapter")
    for verb in ("inspect", "import"):
        assert "merge it into its base" in one_sentence(whetstone(home.settings.home, "models", verb, adapter))


@pytest.mark.parametrize("name", CALIBRATED)
def test_calibration_and_scoring_end_in_an_artifact(home: Workspace, tmp_path: Path, name: str) -> None:
    model = USED[name][0](tmp_path / name)
    done = process(home.settings.home, "optimize", model, "--recipe", "awq", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    artifact = Path(json.loads(done.stdout)["path"]) / "model"
    assert not list(artifact.glob("consolidated*"))
    manifest = json.loads((artifact.parent / "manifest.json").read_bytes())
    assert manifest["calibration"]["length"] == (64 if name == "few-positions" else 512)
    for line in tokenizers.LINES:
        ids = tokenizers.load(model)(line, add_special_tokens=False)["input_ids"]
        assert tokenizers.load(artifact)(line, add_special_tokens=False)["input_ids"] == ids


@pytest.mark.vllm
def test_the_tokenizer_that_was_measured_is_served(tmp_path: Path, serve_python: Path, vllm_cache: Path) -> None:
    from tokenizers import Tokenizer

    model = cases.rebuilt_by_class(tmp_path / "model")
    variant = Variant(name="m", source="m", kind="model", model_path=str(model), serving=Serving(enforce_eager=True))
    own = Tokenizer.from_file(str(model / "tokenizer.json"))
    log = tmp_path / "server.log"
    with VllmServer(variant, python=serve_python, log=log, cache_root=vllm_cache, kv_cache_gib=0.0625) as server:
        for line in tokenizers.LINES:
            served = server.answer("/tokenize", {"prompt": line, "add_special_tokens": False})["tokens"]
            assert served == own.encode(line, add_special_tokens=False).ids
