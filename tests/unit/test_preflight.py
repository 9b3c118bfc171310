"""One look at a model's files before any job: what is sound, what is said, and what is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from backend import preflight
from backend.catalog.cards.card import read_card
from backend.domain.errors import InvalidModel
from backend.domain.model.preflight import Preflight
from backend.domain.recipe.recipe import read
from backend.service import open_workspace
from backend.service.models import preflight as kept
from backend.service.plans import cases as cases_of_recipes
from backend.settings import Settings
from tests.cases import preflight as cases
from tests.cases.models import CHAT, edit, llama
from tests.cases.stored import gptq_model, head_tied_but_other, modelopt_model
from tests.families import KINDS, tiny
from tests.tiny import FURTHER_HEADS, with_further_head

Maker = Callable[[Path], Path]


def looked(folder: Path) -> Preflight:
    """The answer without the child."""
    return Preflight.model_validate(preflight.inspect(preflight.card_facts(read_card(folder))))


@pytest.mark.parametrize(
    "make",
    [
        cases.consolidated,
        partial(cases.named_templates, default=True),
        partial(cases.template, written=cases.GEMMA_LIKE),
        partial(cases.template, written=cases.TYPED),
        cases.extra_files,
        partial(llama, template=None),
        modelopt_model,
        gptq_model,
    ],
)
def test_what_is_sound_stays_without_a_word(tmp_path: Path, make: Maker) -> None:
    assert looked(make(tmp_path / "model")) == Preflight()


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_is_sound(tmp_path: Path, kind: str) -> None:
    checks = looked(tiny(tmp_path / kind, kind))
    assert (checks.refusal, checks.unbuilt, checks.unrewritable) == (None, None, None)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (cases.without_head, ("lm_head.weight", "is missing", "does not tie it")),
        (head_tied_but_other, ("lm_head.weight is another matrix",)),
        (cases.misshapen, ("up_proj.weight is stored as 500 x 256", "config.json asks for 512 x 256")),
        (cases.missing_tensor, ("layers.1.self_attn.k_proj.weight is missing",)),
        (cases.scaling_without_factor, ("config.json cannot be read by transformers", "factor")),
        (cases.sentencepiece_alone, ("No tokenizer can be built", "sentencepiece", "tokenizer.json")),
    ],
)
def test_what_is_not_sound_is_refused_and_named(tmp_path: Path, make: Maker, words: tuple[str, ...]) -> None:
    folder = make(tmp_path / "model")
    try:
        refusal = looked(folder).refusal
    except InvalidModel as error:  # the card says so already
        refusal = str(error)
    assert refusal and all(word in refusal for word in words)


def test_padding_beyond_the_vocabulary_stands_against_scoring_alone(tmp_path: Path) -> None:
    checks = looked(cases.padding_beyond(tmp_path / "model"))
    assert checks.refusal is None and checks.unbuilt and "`pad_token_id` 1024" in checks.unbuilt


def test_a_layout_that_our_engine_does_not_know_stands_against_rewriting_alone(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "moe", "qwen3-moe")
    edit(folder / "config.json", mlp_only_layers=[0])
    checks = looked(folder)
    assert (checks.refusal, checks.unbuilt) == (None, None)
    assert checks.unrewritable and "mlp_only_layers" in checks.unrewritable


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (cases.tokenizer_beyond_embedding, "<|im_start|>, token 1020, and the embedding has 1020 rows"),
        (partial(cases.named_templates, default=False), "none called `default`, only rag, tool_use"),
        (partial(cases.template, written=cases.NEEDS_TOOLS), "A tools list is required"),
        (
            partial(cases.template, written="{% for m in messages %}{{ m['role'] }}{% endfor %}"),
            "leaves out what is said",
        ),
    ],
)
def test_a_template_that_writes_no_plain_chat_is_said(tmp_path: Path, make: Maker, why: str) -> None:
    checks = looked(make(tmp_path / "model"))
    assert checks.refusal is None and checks.no_chat and why in checks.no_chat


def test_few_positions_and_a_class_that_reads_otherwise_are_notes(tmp_path: Path) -> None:
    (positions,) = looked(cases.few_positions(tmp_path / "gpt2")).notes
    assert "sequences of 64 tokens in place of 512" in positions
    (reads,) = looked(cases.rebuilt_by_class(tmp_path / "class")).notes
    assert "tokenizer.json is taken as it is" in reads


@pytest.mark.parametrize("name", FURTHER_HEADS)
def test_heads_for_further_tokens_are_no_reason_but_against_a_rotation(tmp_path: Path, name: str) -> None:
    begin, _, further = FURTHER_HEADS[name]
    assert looked(with_further_head(tmp_path / "model", begin, further)) == Preflight(further_heads=True)


@pytest.mark.process
def test_a_rotation_of_a_checkpoint_with_further_heads_is_refused_before_any_job(tmp_path: Path) -> None:
    card = read_card(with_further_head(tmp_path / "model", "mtp.layers.0.", None))
    workspace = open_workspace(Settings(home=tmp_path / "home"))
    for rotate, words in ((True, ["leave `rotate` out"]), (False, [])):
        recipe = read({"name": "w8a8", "steps": [{"quantize": {"method": "w8a8", "rotate": rotate}}]})
        reasons = cases_of_recipes.resolve(workspace, card, recipe, "local:cpu").verdict.reasons
        assert [reason.rule for reason in reasons] == ["model-files"] * len(words)
        assert all(word in reason.message for word, reason in zip(words, reasons, strict=True))


@pytest.mark.process
def test_the_answer_is_kept_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = llama(tmp_path / "model", template=None)
    first = kept.run_preflight(tmp_path / "cache", read_card(folder))
    assert first == Preflight() and len(list((tmp_path / "cache" / "preflight").iterdir())) == 1

    def again(card: object) -> Preflight:
        raise AssertionError("looked at a second time")

    with monkeypatch.context() as patched:
        patched.setattr(preflight, "inspect_in_sandbox", again)
        assert kept.run_preflight(tmp_path / "cache", read_card(folder)) == first
    edit(folder / "tokenizer_config.json", chat_template=cases.NEEDS_TOOLS)
    assert kept.run_preflight(tmp_path / "cache", read_card(folder)).no_chat
    edit(folder / "tokenizer_config.json", chat_template=CHAT)
    assert kept.run_preflight(tmp_path / "cache", read_card(folder)) == first


@pytest.mark.process
def test_a_file_larger_than_the_childs_memory_is_looked_at(tmp_path: Path) -> None:
    folder = cases.large(tmp_path / "large")
    assert (folder / "model.safetensors").stat().st_size > preflight.MEMORY_BYTES
    assert preflight.inspect_in_sandbox(read_card(folder)) == Preflight()


def test_what_comes_with_whetstone_and_what_is_gone_is_not_looked_at(tmp_path: Path, starter_target: Path) -> None:
    card = read_card(starter_target)
    assert kept.run_preflight(tmp_path, card) == Preflight()
    assert kept.run_preflight(tmp_path, card.model_copy(update={"path": str(tmp_path / "gone")})) == Preflight()


def test_an_adapter_alone_and_a_cache_folder_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"adapter .* for acme/base, no model: merge it into its base"):
        read_card(cases.adapter(tmp_path / "adapter"))
    snapshot = cases.hub_snapshot(tmp_path)
    with pytest.raises(InvalidModel, match="give the folder below its `snapshots`"):
        read_card(snapshot.parents[1])
    assert read_card(snapshot).id == "acme/Tiny-Chat-1B"
