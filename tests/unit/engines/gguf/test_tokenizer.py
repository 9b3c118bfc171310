"""The tokenizer of an imported GGUF file gives the tokens that the file's own data imply, for every kind that is
carried."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import InvalidModel
from backend.domain.model.gguf.pretokenizers import PRE_TOKENIZERS, tokenizer_plan
from backend.engines.gguf import tokenizer
from backend.engines.gguf.gguf_file import GgufFile
from backend.engines.gguf.token_rules import TEXTS, TokenRules
from tests.cases import ggufs
from tests.cases.models import tokenizer_folder


def byte_level(**changes: Any) -> dict[str, Any]:
    """The keys of a byte-level tokenizer that was trained on text, with a token of the user's."""
    import json

    document = json.loads((tokenizer_folder() / "tokenizer.json").read_bytes())
    words = document["model"]["vocab"] | {added["content"]: added["id"] for added in document["added_tokens"]}
    tokens = [*sorted(words, key=lambda word: words[word]), "user defined"]
    special = {added["content"] for added in document["added_tokens"]}
    kinds = [ggufs.CONTROL if token in special else ggufs.NORMAL for token in tokens]
    kinds[-1] = ggufs.USER_DEFINED
    stated = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": kinds,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "merges": [" ".join(pair) for pair in document["model"]["merges"]],
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (stated | changes).items()}


def sentence_piece(**changes: Any) -> dict[str, Any]:
    stated = {key: value for key, value in ggufs.keys().items() if key.startswith("tokenizer.")}
    return stated | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def carried(folder: Path, stated: dict[str, Any]) -> Any:
    """The tokenizer that an import writes, held against the file's own rules, as transformers loads it."""
    from transformers import AutoTokenizer

    stored = GgufFile(
        [ggufs.write(folder / "x.gguf", {"token_embd.weight": ggufs.tensors()["token_embd.weight"]}, stated)]
    )
    plan = tokenizer_plan("x.gguf", stored.values, {key: len(values) for key, values in stored.lists.items()})
    tokenizer.write(stored, plan, folder, 512)
    assert tokenizer.check(stored, plan, folder) > len(TEXTS)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_every_way_of_splitting_texts_is_carried(tmp_path: Path, kind: str) -> None:
    loaded = carried(tmp_path, byte_level(pre=kind))
    ids = loaded("x 1234 user defined</s>")["input_ids"]
    assert (ids[0] == 0) is PRE_TOKENIZERS[kind].begins
    assert ids[-1] == 1 and "user defined" in loaded.convert_ids_to_tokens(ids)
    assert loaded.decode(ids, skip_special_tokens=True) == "x 1234 user defined"


def test_a_way_of_splitting_is_not_taken_for_another(tmp_path: Path) -> None:
    """The check tells the kinds apart: GPT-2's splitting does not pass for that of a file that says smollm."""
    path = ggufs.write(tmp_path / "x.gguf", {"token_embd.weight": ggufs.tensors()["token_embd.weight"]}, byte_level())
    stored = GgufFile([path])
    lengths = {key: len(values) for key, values in stored.lists.items()}
    tokenizer.write(stored, tokenizer_plan("x.gguf", stored.values, lengths), tmp_path, 512)
    other = tokenizer_plan("x.gguf", stored.values | {"tokenizer.ggml.pre": "llama-bpe"}, lengths)
    with pytest.raises(InvalidModel, match="its tokenizer cannot be carried: in "):
        tokenizer.check(stored, other, tmp_path)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece_is_carried_with_its_bytes_and_its_space(tmp_path: Path, prefix: bool) -> None:
    loaded = carried(tmp_path, sentence_piece(add_space_prefix=prefix))
    ids = loaded("the ñ inn<spare1>the")["input_ids"]
    names = loaded.convert_ids_to_tokens(ids)
    assert names[:2] == ["<s>", "▁the" if prefix else "t"] and "<0xC3>" in names and "<spare1>" in names
    assert loaded.decode(ids[1:]).replace("<spare1> ", "<spare1>") == "the ñ inn<spare1>the"


def test_a_piece_that_merges_cannot_reach_is_refused(tmp_path: Path) -> None:
    words, scores, kinds = ggufs.tokens()
    words[-1], kinds[-1], scores[-1] = "qq▁zz", ggufs.NORMAL, 5.0
    words[-2], kinds[-2], scores[-2] = "▁12", ggufs.NORMAL, 5.0  # digits are no tokens: bytes stand for them
    words[-3], kinds[-3], scores[-3] = "12", ggufs.NORMAL, 5.0
    with pytest.raises(InvalidModel, match="its tokenizer cannot be carried: in "):
        carried(tmp_path, sentence_piece(tokens=words, scores=scores, token_type=kinds))


BYTES = [f"<0x{number:02X}>" for number in range(256)]


def test_pieces_whose_letters_are_no_tokens_are_found_whole(tmp_path: Path) -> None:
    """llama.cpp joins letters whose text is a piece, whether or not the letters are tokens."""
    pieces = [*(f"▁{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"), "w0", "w1", "w10"]
    words = ["<unk>", "<s>", "</s>", *BYTES, *pieces]
    kinds = [2, 3, 3, *[6] * 256, *[ggufs.NORMAL] * len(pieces)]
    stated = sentence_piece(tokens=words, scores=[0.0] * len(words), token_type=kinds)
    loaded = carried(tmp_path, stated)
    ids = loaded("add w10 w2")["input_ids"]
    assert loaded.convert_ids_to_tokens(ids) == [
        "<s>",
        "▁a",
        "<0x64>",
        "<0x64>",
        "▁w",
        "<0x31>",
        "<0x30>",
        "▁w",
        "<0x32>",
    ]
    assert loaded.decode(ids, skip_special_tokens=True) == "add w10 w2"
    assert loaded.convert_ids_to_tokens(loaded("xw10")["input_ids"])[-1] == "w10"
    stored = GgufFile([tmp_path / "x.gguf"])
    plan = tokenizer_plan("x.gguf", stored.values, {key: len(values) for key, values in stored.lists.items()})
    rules, draw = TokenRules(stored.lists, plan, tokenizer.vocabulary(stored)), random.Random(0)
    for _ in range(200):
        text = "".join(draw.choices("adwx10 \né▁", k=draw.randint(1, 12)))
        assert loaded(text)["input_ids"] == rules.encode(text), text


def test_pieces_are_found_whole_only_where_the_order_of_joining_does_not_count() -> None:
    assert tokenizer.whole_pieces(["ab", "bc"], [1, 1], [0.0, 1.0]) == []
    # the leftmost of equal ones is joined
    assert tokenizer.whole_pieces(["ab", "bc"], [1, 1], [0.0, 0.0]) == ["ab", "bc"]
    assert tokenizer.whole_pieces(["bc", "abc", "ca"], [1, 1, 1], [0.0, 0.0, 0.0]) == []  # abc grows from its end
    # nothing joins to xyz
    assert tokenizer.whole_pieces(["ab", "abc", "xyz"], [1, 1, 1], [0.0, 2.0, 1.0]) == ["abc", "ab"]


def test_two_tokens_of_one_text_are_refused(tmp_path: Path) -> None:
    words, _, _ = ggufs.tokens()
    with pytest.raises(InvalidModel, match="two tokens of the same text"):
        carried(tmp_path, sentence_piece(tokens=[*words[:-1], words[5]]))


def test_chat_templates_are_carried_by_their_names(tmp_path: Path) -> None:
    named = {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["a"],
    }
    loaded = carried(tmp_path, sentence_piece() | named)
    assert loaded.chat_template == {"default": "plain", "tool_use": "tools"}


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (byte_level(pre="deepseek-llm"), "says `tokenizer.ggml.pre` = deepseek-llm, which this import does not carry"),
        (byte_level(pre="made-up"), "says `tokenizer.ggml.pre` = made-up"),
        (byte_level(pre=None), "does not say how its tokenizer splits texts"),
        (byte_level(model="t5"), "says `tokenizer.ggml.model` = t5"),
        (byte_level(merges=None), "no whole `tokenizer.ggml.merges`"),
        (byte_level(token_type=[1, 1]), "no whole `tokenizer.ggml.token_type`"),
        (sentence_piece(scores=None), "no whole `tokenizer.ggml.scores`"),
        (byte_level(add_space_prefix=True), "says `tokenizer.ggml.add_space_prefix` = True"),
        (byte_level(eos_token_id=10**6), "no token 1000000 for `tokenizer.ggml.eos_token_id`"),
        (byte_level(pre="llama-bpe", bos_token_id=None), "begins texts with a token that it does not name"),
    ],
)
def test_what_cannot_be_known_of_a_tokenizer_is_refused(stated: dict[str, Any], message: str) -> None:
    values = {key: value for key, value in stated.items() if not isinstance(value, list) and value is not None}
    with pytest.raises(InvalidModel) as refused:
        tokenizer_plan("x.gguf", values, {key: len(value) for key, value in stated.items() if isinstance(value, list)})
    assert message in str(refused.value)
