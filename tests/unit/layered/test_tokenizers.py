"""Tokenizers are read as tokenizer.json says, whatever class is named; and what chat templates can write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import InvalidModel
from backend.engines.native import calibration
from backend.engines.native.files import checkpoint
from backend.evaluate.quality import scoring
from backend.layered import tokenizers
from backend.serving import vllm_options
from backend.worker.kinds.optimize import copy_model
from tests.cases.models import CHAT, edit, llama, put_tokenizer, split
from tests.properties import examples

REBUILDING = [
    ("llama", "LlamaTokenizerFast"),
    ("qwen2", "PreTrainedTokenizerFast"),
    ("gpt2", "Qwen2Tokenizer"),
    ("gemma", None),
    ("llama", "BertTokenizer"),
    ("llama", "T5Tokenizer"),
]
"""Types and classes that build another tokenizer than this byte-level tokenizer.json, or none."""


def folder_of(folder: Path, model_type: str, named: str | None, **settings: Any) -> Path:
    """A folder with the tokenizer and a config.json of that type, without weights."""
    put_tokenizer(folder, **settings)
    path = folder / "tokenizer_config.json"
    document = json.loads(path.read_text()) | ({"tokenizer_class": named} if named else {})
    if named is None:
        document.pop("tokenizer_class", None)
    path.write_text(json.dumps(document))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 1024}))
    return folder


def as_the_file_says(folder: Path, text: str) -> tuple[list[int], str]:
    """Ids and decoded text by the `tokenizers` library, from tokenizer.json alone."""
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = own.encode(text, add_special_tokens=False).ids
    return ids, own.decode(ids)


def by_transformers(folder: Path, text: str) -> list[int]:
    """Ids as any program gets them that names the folder to transformers, vLLM and lm-eval among them."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return list(loaded(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize(("model_type", "named"), REBUILDING)
def test_every_reader_gets_the_tokens_of_tokenizer_json(tmp_path: Path, model_type: str, named: str | None) -> None:
    folder = folder_of(tmp_path / "model", model_type, named)
    loaded = tokenizers.load(folder)
    served = tokenizers.prepared(folder, tmp_path / "cache")
    assert served is not None
    for line in tokenizers.LINES:
        ids, text = as_the_file_says(folder, line)
        assert (ids, text) == (scoring.tokenize(folder, [line])[0], line)
        assert ids == calibration._encoded(loaded, line)
        assert ids == by_transformers(served, line)
    assert len(loaded) == 1022, "no token is added beyond those that have an embedding"


@pytest.mark.parametrize("named", ["LlamaTokenizerFast", "GPT2TokenizerFast", "PreTrainedTokenizerFast", None])
def test_any_text_is_cut_as_tokenizer_json_says(tmp_path_factory: pytest.TempPathFactory, named: str | None) -> None:
    folder = folder_of(tmp_path_factory.mktemp("model"), "llama", named)
    loaded = tokenizers.load(folder)

    @examples(300)
    @given(st.text(max_size=60))
    def holds(text: str) -> None:
        assert list(loaded(text, add_special_tokens=False)["input_ids"]) == as_the_file_says(folder, text)[0]

    holds()


def test_a_class_that_reads_as_the_file_is_left_alone(tmp_path: Path) -> None:
    for number, named in enumerate(("PreTrainedTokenizerFast", "GPT2TokenizerFast", None)):
        folder = folder_of(tmp_path / str(number), "llama", named)
        assert tokenizers.read(folder).sentence is None
        assert tokenizers.prepared(folder, tmp_path / "cache") is None


def test_the_difference_is_told_with_the_text_that_is_lost(tmp_path: Path) -> None:
    sentence = tokenizers.read(folder_of(tmp_path / "lost", "llama", "LlamaTokenizerFast")).sentence
    assert (
        sentence
        and "LlamaTokenizer" in sentence
        and "deff(x):" in sentence
        and "tokenizer.json is taken as it is" in sentence
    )
    unbuilt = tokenizers.read(folder_of(tmp_path / "unbuilt", "llama", "T5Tokenizer")).sentence
    assert unbuilt and "cannot be built" in unbuilt


def test_special_tokens_that_only_the_class_knows_stay(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", "llama", "LlamaTokenizerFast")
    path = folder / "tokenizer_config.json"
    named = {"tokenizer_class": "LlamaTokenizerFast"}
    path.write_text(json.dumps(named))
    loaded = tokenizers.load(folder)
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.unk_token_id) == (0, 1, 2)
    served = tokenizers.prepared(folder, tmp_path / "cache")
    assert served and json.loads((served / "tokenizer_config.json").read_text())["eos_token"] == "</s>"


def test_artifacts_carry_the_tokenizer_that_was_measured(tmp_path: Path) -> None:
    model = llama(tmp_path / "model")
    edit(model / "tokenizer_config.json", tokenizer_class="LlamaTokenizerFast")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text(CHAT)
    quantized = tmp_path / "quantized"
    quantized.mkdir()
    checkpoint.write_companions(model, quantized)
    copy_model(model, tmp_path / "copied")
    for artifact in (quantized, tmp_path / "copied"):
        (artifact / "config.json").write_bytes((model / "config.json").read_bytes())
        for line in tokenizers.LINES:
            assert by_transformers(artifact, line) == as_the_file_says(model, line)[0]
        assert (artifact / "additional_chat_templates" / "tool_use.jinja").read_text() == CHAT
    assert json.loads((model / "tokenizer_config.json").read_text())["tokenizer_class"] == "LlamaTokenizerFast"


def test_a_copy_leaves_out_weights_that_the_index_does_not_name(tmp_path: Path) -> None:
    model = llama(tmp_path / "model")
    whole = (model / "model.safetensors").read_bytes()
    split(model)
    (model / "consolidated.safetensors").write_bytes(whole)
    copy_model(model, tmp_path / "copied")
    assert sorted(path.name for path in (tmp_path / "copied").glob("*.safetensors")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_a_server_reads_the_standard_files_beside_those_of_mistral(tmp_path: Path) -> None:
    from backend.domain.evaluation.document import Variant

    variant = Variant(name="m", source="m", kind="model", model_path=str(tmp_path))
    assert vllm_options.standard_files(variant) == []
    (tmp_path / "consolidated-00001-of-00001.safetensors").touch()
    assert vllm_options.standard_files(variant) == [
        "--config-format",
        "hf",
        "--load-format",
        "safetensors",
        "--tokenizer-mode",
        "hf",
    ]


def test_a_folder_without_a_tokenizer_that_can_be_built_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0ano pieces")
    with pytest.raises(InvalidModel, match=r"No tokenizer can be built .*tokenizer\.json"):
        tokenizers.load(tmp_path)
    put_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(InvalidModel, match=r"tokenizer\.json of .* cannot be read"):
        tokenizers.load(tmp_path)


NEEDS_TOOLS = (
    "{% for m in messages %}{{ raise_exception('A tools list is required') if not tools }}{{ m['content'] }}{% endfor "
    "%}"
)
TYPED = "{% for m in messages %}{{ m['role'] }}: {% for p in m['content'] %}{{ p['text'] }}{% endfor %}\n{% endfor %}"
ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m['role'] }}>{{ m['content'] | trim }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "written", "problem"),
    [
        (CHAT, "<s><|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\nSo.<|im_end|>\n", None),
        (None, "How?\nSo.\n", None),
        (ALTERNATING, "<user>How?<assistant>So.", None),
        (TYPED, "user: How?assistant: So.", None),
        (NEEDS_TOOLS, "How?\nSo.\n", "A tools list is required"),
        (
            [{"name": "default", "template": ALTERNATING}, {"name": "rag", "template": CHAT}],
            "<user>How?<assistant>So.",
            None,
        ),
        ([{"name": "rag", "template": CHAT}], "How?\nSo.\n", "it has none called `default`, only rag"),
        ("{% for m in messages %}{{ m['role'] }}{% endfor %}", "How?\nSo.\n", "it leaves out what is said"),
    ],
)
def test_chat_is_written_as_a_server_would_or_as_plain_text(
    tmp_path: Path, template: Any, written: str, problem: str | None
) -> None:
    loaded = tokenizers.load(folder_of(tmp_path, "llama", None, template=template))
    assert tokenizers.format_answered(loaded, "How?", "So.") == written
    assert tokenizers.chat_problem(loaded) == problem
